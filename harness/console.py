"""What the commands print: progress on stderr, results on stdout."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

from harness import session
from harness.evidence.model import Run


@dataclass
class TerminalProgress:
    """Progress on stderr: a line when a run starts, its phases, how it ended."""

    _seen: set[str] = field(default_factory=set)

    def __call__(self, run: Run | None, phase: str, seconds: float) -> None:
        if run is None:
            print(phase, file=sys.stderr, flush=True)
            return
        if run.id not in self._seen:
            self._seen.add(run.id)
            print(f"[{len(self._seen)}] {run.id}", file=sys.stderr, flush=True)
        if phase:
            print(f"    {seconds:6.1f} s  {phase}", file=sys.stderr, flush=True)
        else:
            print(f"    {seconds:6.1f} s  ended", file=sys.stderr, flush=True)


def print_outcome(outcome: session.Outcome, *, as_json: bool) -> None:
    """Results on stdout, the count line first; with `as_json` one JSON object."""
    if as_json:
        print(session.outcome_json(outcome))
        return
    from harness.report.terminal import print_results

    print_results(outcome.view)
    if outcome.run_directory is not None and (outcome.run_directory / "report.html").exists():
        print(f"report: {outcome.run_directory / 'report.html'}")

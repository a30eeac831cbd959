"""The terminal: progress on stderr, results on stdout, the count line first. `NO_COLOR` is obeyed by rich."""

from __future__ import annotations

import sys
from typing import TextIO

from rich.console import Console
from rich.text import Text

from harness.evidence.model import Run
from harness.judge.verdict import Verdict
from harness.report import cards
from harness.report.outcome import outcome, undecided
from harness.report.text import figure, line, words
from harness.report.view import RunView

_STYLES = {
    "held": "green",
    "violated": "bold red",
    "undecided": "yellow",
    "not run": "dim",
    "error": "bold magenta",
    "waived": "blue",
}


def print_results(run: RunView, stream: TextIO | None = None) -> None:
    """Count line, a line a unit (worst first), what usually causes each failure, what would decide the rest."""
    console = _console(stream or sys.stdout)
    _say(console, run.count_line(), "bold")
    for warning in run.warnings():
        _say(console, f"WARNING: {line(warning, 2000)}", "bold red")
    if run.fault:
        _say(console, f"FIRE DRILL: the fault {line(run.fault)} was planted in this run on purpose.", "bold yellow")
    for verdict in cards.worst_first(run.verdicts):
        word = cards.word(run, verdict)
        unit = f"{line(verdict.claim, 80)} on {line(verdict.workload, 60)}"
        console.print(Text(f"{word:>9}  ", _STYLES[word]) + Text(f"{unit}: {line(verdict.message, 400)}"))
        signed = cards.waiver_line(run, verdict)
        if signed:
            _say(console, f"           {signed}")
        if word in {"violated", "error"}:
            _explain(console, run, verdict)
    for group in undecided(list(run.verdicts)):
        if group.remedy:
            units = "1 unit" if len(group.units) == 1 else f"{len(group.units)} units"
            _say(console, f"To decide {units} ({line(group.units[0].reason, 60)}): {group.remedy}.")
    result = outcome(run)
    _say(console, f"{result.word}: {result.sentence}", "bold")


def _explain(console: Console, run: RunView, verdict: Verdict) -> None:
    """Figures and usual causes below a failure, read like an assertion's."""
    for name, value in list(verdict.figures.items())[:8]:
        _say(console, f"           {words(name)}: {figure(value)}")
    claim = run.claim(verdict.contract, verdict.claim)
    if claim is not None:
        _say(console, f"           what usually causes this: {line(claim.if_fails, 600)}")


class Progress:
    """Progress on stderr: a line when a run starts, one for each phase, one at its end."""

    def __init__(self, total: int | None = None, stream: TextIO | None = None) -> None:
        self._console = _console(stream or sys.stderr)
        self._total, self._numbers = total, dict[str, int]()

    def __call__(self, run: Run, phase: str, seconds: float) -> None:
        """`phase` is empty when the run has ended; `seconds` count from its start."""
        if run.id not in self._numbers:
            self._numbers[run.id] = len(self._numbers) + 1
            of = f"/{self._total}" if self._total else ""
            _say(self._console, f"[{self._numbers[run.id]}{of}] {line(run.id, 120)}")
        # Runs may go side by side: each line says whose it is.
        said = f"[{self._numbers[run.id]}] {seconds:6.1f} s  {line(phase, 120) or 'ended'}"
        _say(self._console, said, "dim")


def _console(stream: TextIO) -> Console:
    """Plain lines: a file or a log gets neither colours nor line breaks of ours."""
    return Console(file=stream, highlight=False, soft_wrap=True, emoji=False, markup=False)


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(Text(text, style))

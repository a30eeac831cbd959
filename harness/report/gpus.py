"""Name the GPUs that a run used."""

from __future__ import annotations

from collections import Counter

from harness.report.view import ReportView


def gpus(view: ReportView) -> str:
    """Return the GPUs of the run with most ranks, as `2 × NVIDIA H200`; empty if there was none.

    Older evidence has the name of the first GPU alone.
    """
    facts = view.header.environment.gpu
    most = max((1 + len(run.ranks) for run in view.evidence.values()), default=1)
    names = facts.names[:most] or ((facts.name,) * min(most, facts.count or 1) if facts.name else ())
    return " and ".join(f"{number} × {name}" if number > 1 else name for name, number in Counter(names).items())

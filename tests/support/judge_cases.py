"""The shape of every row in the tables of `judge_cases_*.py`: a verdict, and the reason code that it must have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.judging.verdict import Verdict


@dataclass(frozen=True)
class Case:
    """`judged` builds evidence with one defect and judges it."""

    name: str
    reason: str
    judged: Callable[[], Verdict]


def figures(verdict: Verdict) -> dict[str, tuple[object, str]]:
    """Return value and unit of every figure, by name."""
    return {name: (figure.value, figure.unit) for name, figure in verdict.figures.items()}

"""A verdict, and the reason code it must carry: the shape of every row in the tables of `judge_cases_*.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.judging.verdict import Verdict


@dataclass(frozen=True)
class Case:
    """`judged` builds evidence in which one thing is wrong, and judges it."""

    name: str
    reason: str
    judged: Callable[[], Verdict]


def figures(verdict: Verdict) -> dict[str, tuple[object, str]]:
    """Value and unit of every figure by name."""
    return {name: (figure.value, figure.unit) for name, figure in verdict.figures.items()}

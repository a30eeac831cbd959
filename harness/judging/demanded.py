"""Hold a figure next to its demand: a judge compares the two, and a report shows them with a verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

Relation = Literal["none", "exactly", "at least", "at most"]


@dataclass(frozen=True)
class Interval:
    """What a figure was measured to lie between. called: the statistics' name for it. over: a denominator."""

    low: float
    high: float
    confidence: float
    called: str
    over: str


@dataclass(frozen=True)
class Demanded:
    """One comparison of a judge.

    noun: the figure's unit; under `none` what nothing may do, of as many as `of`.
    beside: it is a guard, or a default of the kind: where the claim demands more, it does not stand for the claim.
    part: what the names of a composite claim's part begin with.
    """

    figure: str
    value: float
    relation: Relation
    bound: float
    noun: str = ""
    of: int | None = None
    percent: bool = False
    interval: Interval | None = None
    beside: bool = False
    part: str = ""

    @property
    def is_met(self) -> bool:
        """Return True if the figure meets its demand; NaN meets no demand."""
        if self.relation == "at least":
            return self.value >= self.bound
        return self.value <= self.bound if self.relation == "at most" else self.value == self.bound

    @property
    def is_open(self) -> bool:
        """Return True if the figure may lie on either side of its bound, or misses it: such a demand is undecided."""
        ends = (self.interval.low, self.interval.high) if self.interval is not None else (self.value,)
        return not all(replace(self, value=end).is_met for end in ends)

    @property
    def room(self) -> float:
        """Return how far the figure lies from its bound, relative to the bound."""
        distance = abs(self.value - self.bound)
        return distance / abs(self.bound) if self.bound else math.inf if distance else 0.0


def tightest(demands: Sequence[Demanded]) -> Demanded | None:
    """Return the demand that represents a claim that holds: the one of its own demands with the least room."""
    return min(demands, key=lambda each: (each.beside, each.room), default=None)

"""Define the verdict: status, stable reason code, figures with units, denominators, what decided it, and a sentence."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

from pydantic import ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from harness.bounded_model import BoundedModel
from harness.numbers import Real, counted

# Hold a figure next to its demand: a judge compares the two, and a report shows them with a
# verdict.

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


class Status(StrEnum):
    """What a judge may answer. Order of severity: see `WORST_FIRST`."""

    PASS = "PASS"  # noqa: S105 - a verdict, not a password
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    NOT_RUN = "NOT_RUN"
    ERROR = "ERROR"


WORST_FIRST = (Status.ERROR, Status.FAIL, Status.INCONCLUSIVE, Status.NOT_RUN, Status.PASS)


class Figure(BoundedModel):
    """A number with its unit; `unit` is "" for a pure number or a text."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    value: bool | int | Real | str | None
    unit: str = ""


class Facts(BoundedModel):
    """What a judge found for one claim or part. Equal evidence gives equal facts, whatever the words of their day."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    status: Status
    reason: str
    figures: dict[str, Figure] = Field(default_factory=dict)
    denominators: dict[str, int] = Field(default_factory=dict)
    mechanism: str | None = None


class UnitFacts(Facts):
    """The facts of one unit: (contract, claim, workload)."""

    contract: str
    claim: str
    workload: str


class Judgement(Facts):
    """A judge's answer for one claim or part, before it is tied to a unit.

    message: one sentence, in today's words. demands: every comparison of the judge. decided: the violated one of a
    FAIL, the tightest one of what holds or is undecided. No file has these: they come from judging.
    """

    message: str
    demands: SkipJsonSchema[tuple[Demanded, ...]] = Field(default=(), exclude=True)
    decided: SkipJsonSchema[Demanded | None] = Field(default=None, exclude=True)


class Verdict(Judgement, UnitFacts):
    """A judgement of one unit."""

    @property
    def can_be_waived(self) -> bool:
        """Return True for a violation, or for a soundly measured ratio that decides nothing; not for an error."""
        return self.status is Status.FAIL or (self.status, self.reason) == (Status.INCONCLUSIVE, "undecided_ratio")


class Counts(BoundedModel):
    """The count line's numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    planned: int
    held: int
    violated: int
    undecided: int
    not_run: int
    errors: int

    def line(self) -> str:
        """Return the count line: `9 planned · 6 held · 0 violated · 0 undecided · 3 not run · 0 errors`."""
        return (
            f"{self.planned} planned · {self.held} held · {self.violated} violated · "
            f"{self.undecided} undecided · {self.not_run} not run · {counted(self.errors, 'error')}"
        )


def count(verdicts: Iterable[Facts]) -> Counts:
    """Count verdicts by status."""
    statuses = [verdict.status for verdict in verdicts]
    return Counts(
        planned=len(statuses),
        held=statuses.count(Status.PASS),
        violated=statuses.count(Status.FAIL),
        undecided=statuses.count(Status.INCONCLUSIVE),
        not_run=statuses.count(Status.NOT_RUN),
        errors=statuses.count(Status.ERROR),
    )

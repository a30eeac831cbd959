"""Define the verdict: status, reason code, figures with units, denominators, deciding demand, and message."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

from pydantic import ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from harness.bounded_model import BoundedModel
from harness.numbers import Real, counted

# The classes below hold a measured figure and the value that a claim requires. A judge compares the two, and a report
# shows both.

Relation = Literal["none", "exactly", "at least", "at most"]


@dataclass(frozen=True)
class Interval:
    """The confidence interval of a measured figure. called: the interval's name in statistics. over: name of the
    denominator that counts the measured things, such as processes."""

    low: float
    high: float
    confidence: float
    called: str
    over: str


@dataclass(frozen=True)
class Demanded:
    """A figure, and the demand (bound) that a claim sets for this figure.

    noun: the figure's unit. For the relation `none`, noun is a phrase such as `steps differ`, which must be true of no
    step. of: the number of judged things, such as steps.
    beside: True for a guard or default bound, which is shown as a claim's demand only if the claim has no other demand.
    part: the prefix of the figure's name if the demand belongs to a part of a composite claim.
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
        """Return True if the figure meets its demand. NaN meets no demand."""
        if self.relation == "at least":
            return self.value >= self.bound
        return self.value <= self.bound if self.relation == "at most" else self.value == self.bound

    @property
    def is_open(self) -> bool:
        """Return True if an end of the figure's interval (or, without an interval, the figure itself) does not meet the
        demand. The demand is then undecided or violated."""
        ends = (self.interval.low, self.interval.high) if self.interval is not None else (self.value,)
        return not all(replace(self, value=end).is_met for end in ends)

    @property
    def room(self) -> float:
        """Return the distance of the figure from its bound, divided by the bound."""
        distance = abs(self.value - self.bound)
        return distance / abs(self.bound) if self.bound else math.inf if distance else 0.0


def tightest(demands: Sequence[Demanded]) -> Demanded | None:
    """Return the demand that is shown for a claim: the one whose figure is closest to its bound. Guards and default
    bounds come last."""
    return min(demands, key=lambda each: (each.beside, each.room), default=None)


class Status(StrEnum):
    """The status of a verdict. `WORST_FIRST` orders the statuses by severity."""

    PASS = "PASS"  # noqa: S105 - a verdict, not a password
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    NOT_RUN = "NOT_RUN"
    ERROR = "ERROR"


WORST_FIRST = (Status.ERROR, Status.FAIL, Status.INCONCLUSIVE, Status.NOT_RUN, Status.PASS)


class Figure(BoundedModel):
    """A figure of a verdict: a number with its unit, or a text. The unit is "" for a pure number or a text."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    value: bool | int | Real | str | None
    unit: str = ""


class Facts(BoundedModel):
    """The result of a judge for one claim or part, without its message. For equal evidence, the facts are equal in all
    versions of the harness."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    status: Status
    reason: str
    figures: dict[str, Figure] = Field(default_factory=dict)
    denominators: dict[str, int] = Field(default_factory=dict)
    mechanism: str | None = None


class UnitFacts(Facts):
    """The facts of one unit: one claim of a contract on one workload."""

    contract: str
    claim: str
    workload: str


class Judgement(Facts):
    """The result of a judge for one claim or part, before it becomes the verdict of a unit.

    message: one sentence. Its words may change between versions. demands: all demands that the judge checked. decided:
    the violated demand if the status is FAIL, else the demand closest to its bound. Files do not store demands.
    """

    message: str
    demands: SkipJsonSchema[tuple[Demanded, ...]] = Field(default=(), exclude=True)
    decided: SkipJsonSchema[Demanded | None] = Field(default=None, exclude=True)


class Verdict(Judgement, UnitFacts):
    """The judgement of one unit (contract, claim, workload)."""

    @property
    def can_be_waived(self) -> bool:
        """Return True for a violation, and for a ratio of speeds that is undecided."""
        return self.status is Status.FAIL or (self.status, self.reason) == (Status.INCONCLUSIVE, "undecided_ratio")


class Counts(BoundedModel):
    """The number of verdicts with each status, in the order of the count line."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    planned: int
    held: int
    violated: int
    undecided: int
    not_run: int
    errors: int

    def line(self) -> str:
        """Return the numbers as one line, such as `45 units · 44 held · 1 undecided`."""
        return count_line({name.replace("_", " "): number for name, number in self if name != "planned"})


def count_line(numbers: Mapping[str, int]) -> str:
    """Return the number of units by outcome as one line, such as `45 units · 44 held · 1 undecided`. Outcomes without
    units are left out."""
    shown = [
        f"{number} {'error' if (word, number) == ('errors', 1) else word}" for word, number in numbers.items() if number
    ]
    return " · ".join([counted(sum(numbers.values()), "unit"), *shown])


def count(verdicts: Iterable[Facts]) -> Counts:
    """Return how many verdicts have each status."""
    statuses = [verdict.status for verdict in verdicts]
    return Counts(
        planned=len(statuses),
        held=statuses.count(Status.PASS),
        violated=statuses.count(Status.FAIL),
        undecided=statuses.count(Status.INCONCLUSIVE),
        not_run=statuses.count(Status.NOT_RUN),
        errors=statuses.count(Status.ERROR),
    )

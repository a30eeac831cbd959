"""Define judgements about what happens between two steps: a save and a load in another process, an evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from harness.contract.base import (
    ArmName,
    Count,
    CountsSteps,
    Demand,
    Equality,
    Judged,
    Natural,
    NoDemand,
    OptionalArm,
    Positive,
    Problem,
    StepsCompared,
    refuse,
)
from harness.contract.guards import bites_by_equality

MOST_SAVES = 8  # each takes a process of its own
Saves = Count | Annotated[list[Count], Field(min_length=1, max_length=MOST_SAVES)]


class Resume(Judged):
    """Training that is saved after some steps and goes on in other processes is the uninterrupted one."""

    kind: Literal["resume"]
    """Judges a training that was saved, and loaded by a new process, once or again and again, against an
    uninterrupted one."""
    candidate: ArmName
    """The arm that is saved and resumed; its system has the capability `resume`."""
    baseline: OptionalArm = None
    """The uninterrupted arm; left out, the candidate itself, uninterrupted."""
    save_at: Annotated[Saves, NoDemand("chooses the step: another one is an ERROR")]
    """After how many steps the training is saved: a number, or a list of numbers. A new process loads each save, and
    trains on to the next one."""
    steps_before_load: Annotated[Natural, NoDemand("another number in the evidence is an ERROR"), CountsSteps()] = 0
    """Steps that the last process takes before it loads, as it must to load into an arm that has captured already."""
    steps: Annotated[Count, Demand("vacuous_steps")]
    """Steps after the last load that must have been compared."""
    equality: Annotated[Equality, Demand("differs", "end_differs", "not_restored")]
    """`bitwise`: every bit of losses and end decides; `within`: `max_abs_difference` alone does."""
    max_abs_difference: Annotated[Positive, Demand("exceeds_tolerance")]
    """Largest absolute difference of the losses allowed; shown next to the bits under `bitwise`."""

    must_train_alike: ClassVar[bool] = True

    @property
    def saves(self) -> list[int]:
        """Return after how many steps the training is saved, in the order of the saves."""
        return self.save_at if isinstance(self.save_at, list) else [self.save_at]

    def contradictions(self) -> Iterator[Problem]:
        if any(later <= earlier for earlier, later in pairwise(self.saves)):
            yield Problem(("save_at",), "each number in `save_at` is larger than the one before", str(self.saves))

    def can_bite(self, path: str) -> bool:
        return bites_by_equality(path, self.equality) and super().can_bite(path)

    def beyond(self, steps: int) -> Iterator[tuple[tuple[str | int, ...], str]]:
        yield from super().beyond(steps)
        last = max(self.saves)
        if last >= steps:
            yield ("save_at",), f"`save_at` ({last}) leaves at least one of the workload's steps"
        elif self.steps > steps - last:
            yield ("steps",), f"`steps` ({self.steps}) is within the {steps - last} steps after `save_at`"

    def between_steps(self) -> dict[str, object]:
        return {"resume": self.saves}

    def candidate_capabilities(self) -> frozenset[str]:
        return frozenset({"resume"})

    def process_count(self) -> int:
        return 1


class Evaluation(Judged):
    """Training that is evaluated between its steps is, in every bit, the same training without evaluations; and, where
    the contract names a plain arm, its evaluations return what that one's do.
    """

    kind: Literal["evaluation"]
    """Judges an arm that is evaluated between its steps against the same arm that is not."""
    candidate: ArmName
    """The arm that is evaluated, and trained once more without; its system has the capability `evaluate`."""
    every: Annotated[Count, NoDemand("an evaluation that is missing there is an ERROR"), CountsSteps()]
    """After how many steps it is evaluated, again and again; after the last step too where that is a multiple."""
    evaluations: Annotated[Count, Demand("vacuous_evaluations")]
    """Evaluations that must have shown something: numbers of which one at least differs from those before it."""
    steps: StepsCompared
    """Steps that must have been compared."""
    plain: OptionalArm = None
    """A plain arm, evaluated after the same steps: what its evaluations return, the candidate's return, too."""
    max_relative_difference: Annotated[Positive | None, Demand("evaluations_differ")] = None
    """Of what they return: the largest difference, relative to the plain arm's number, that more than half of the
    evaluations may show. Others may be further apart: a rounding may tip a prediction, and an accuracy with it."""

    must_train_alike: ClassVar[bool] = True
    baseline_path: ClassVar[str] = "candidate"  # the same arm
    plain_path: ClassVar[str | None] = "plain"

    @model_validator(mode="after")
    def _compares_what_is_returned(self) -> Evaluation:
        if (self.plain is None) != (self.max_relative_difference is None):
            refuse("`plain` and `max_relative_difference` go together", "kind")
        return self

    def beyond(self, steps: int) -> Iterator[tuple[tuple[str | int, ...], str]]:
        yield from super().beyond(steps)
        if self.evaluations > steps // self.every:
            rule = f"`evaluations` ({self.evaluations}) is within the {steps // self.every} that there are"
            yield ("evaluations",), rule

    def process_count(self) -> int | None:
        return None if self.plain is None else 1

    def between_steps(self) -> dict[str, object]:
        return {"evaluate": self.every}

    def candidate_capabilities(self) -> frozenset[str]:
        return frozenset({"evaluate"})

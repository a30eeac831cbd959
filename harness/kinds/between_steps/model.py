"""Define the claims about events between two steps: `resume` (a save, and a load in another process) and `evaluation`
(an evaluation of the model)."""

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

MOST_SAVES = 8  # largest number of saves; each save needs one more process
Saves = Count | Annotated[list[Count], Field(min_length=1, max_length=MOST_SAVES)]


class Resume(Judged):
    """A training that is saved, and resumed in other processes, is equal to the uninterrupted training."""

    kind: Literal["resume"]
    """Compares an interrupted training with an uninterrupted one. The interrupted training was saved, and loaded by a
    new process, once or several times."""
    candidate: ArmName
    """The arm that is saved and resumed. Its system needs the capability `resume`."""
    baseline: OptionalArm = None
    """The uninterrupted arm. If no baseline is given, the candidate is also trained without interruption."""
    save_at: Annotated[Saves, NoDemand("chooses the step of the save; evidence of another step is an ERROR")]
    """The number of steps after which the training is saved, or a list of such numbers. After each save, a new process
    loads the saved state, and trains until the next save or the end."""
    steps_before_load: Annotated[
        Natural, NoDemand("chooses the number of steps; another number in the evidence is an ERROR"), CountsSteps()
    ] = 0
    """Number of steps that the last process makes before it loads, to test a load after a capture."""
    steps: Annotated[Count, Demand("vacuous_steps")]
    """Smallest number of steps after the last load that must have been compared."""
    equality: Annotated[Equality, Demand("differs", "end_differs", "not_restored")]
    """`bitwise`: losses and end state must be equal in every bit. `within`: only `max_abs_difference` decides."""
    max_abs_difference: Annotated[Positive, Demand("exceeds_tolerance")]
    """Largest allowed absolute difference of losses. With `equality: bitwise` the bound is only reported."""

    must_train_alike: ClassVar[bool] = True

    @property
    def saves(self) -> list[int]:
        """Return the numbers of steps after which the training is saved, in order."""
        return self.save_at if isinstance(self.save_at, list) else [self.save_at]

    def contradictions(self) -> Iterator[Problem]:
        if any(later <= earlier for earlier, later in pairwise(self.saves)):
            yield Problem(
                ("save_at",), "each number in `save_at` must be larger than the number before it", str(self.saves)
            )

    def can_bite(self, path: str) -> bool:
        return bites_by_equality(path, self.equality) and super().can_bite(path)

    def beyond(self, steps: int) -> Iterator[tuple[tuple[str | int, ...], str]]:
        yield from super().beyond(steps)
        last = max(self.saves)
        if last >= steps:
            yield ("save_at",), f"`save_at` ({last}) must be smaller than the workload's number of steps"
        elif self.steps > steps - last:
            yield (
                ("steps",),
                f"`steps` ({self.steps}) must be at most {steps - last}, the number of steps after `save_at`",
            )

    def between_steps(self) -> dict[str, object]:
        return {"resume": self.saves}

    def candidate_capabilities(self) -> frozenset[str]:
        return frozenset({"resume"})

    def process_count(self) -> int:
        return 1


class Evaluation(Judged):
    """Evaluations between steps change no bit of a training. If the claim names a plain arm, the evaluations must also
    return the same numbers as evaluations of the plain arm."""

    kind: Literal["evaluation"]
    """Compares a training with evaluations between its steps with the same training without evaluations."""
    candidate: ArmName
    """The arm that is trained with and without evaluations. Its system needs the capability `evaluate`."""
    every: Annotated[
        Count, NoDemand("chooses the interval of evaluations; a missing evaluation is an ERROR"), CountsSteps()
    ]
    """Number of steps between two evaluations. There is also an evaluation after the last step if the number of all
    steps is a multiple of `every`."""
    evaluations: Annotated[Count, Demand("vacuous_evaluations")]
    """Smallest number of evaluations that must return a different number than the evaluation before."""
    steps: StepsCompared
    """Number of steps that must have been compared."""
    plain: OptionalArm = None
    """A plain arm that is evaluated after the same steps. The candidate's evaluations must return the same numbers."""
    max_relative_difference: Annotated[Positive | None, Demand("evaluations_differ")] = None
    """Largest allowed difference of a returned number, relative to the plain arm's number. At least half of the
    evaluations must be within this bound. The others may differ more, because rounding can change a prediction."""

    must_train_alike: ClassVar[bool] = True
    baseline_path: ClassVar[str] = "candidate"  # the baseline is the candidate itself, trained without evaluations
    plain_path: ClassVar[str | None] = "plain"

    @model_validator(mode="after")
    def _compares_what_is_returned(self) -> Evaluation:
        if (self.plain is None) != (self.max_relative_difference is None):
            refuse("`plain` and `max_relative_difference` need each other; give both, or leave both out", "kind")
        return self

    def beyond(self, steps: int) -> Iterator[tuple[tuple[str | int, ...], str]]:
        yield from super().beyond(steps)
        if self.evaluations > steps // self.every:
            rule = (
                f"`evaluations` ({self.evaluations}) must be at most {steps // self.every}, the number of "
                "evaluations in the workload's steps"
            )
            yield ("evaluations",), rule

    def process_count(self) -> int | None:
        return None if self.plain is None else 1

    def between_steps(self) -> dict[str, object]:
        return {"evaluate": self.every}

    def candidate_capabilities(self) -> frozenset[str]:
        return frozenset({"evaluate"})

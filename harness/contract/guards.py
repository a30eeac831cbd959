"""Define the guards of a judgement about training, and the bounds that such judgements share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Self

from pydantic import model_validator

from harness.contract.base import (
    ArmName,
    Count,
    CountsSteps,
    Demand,
    EqualityOrNoise,
    Judged,
    Natural,
    NoDemand,
    Nothing,
    Positive,
    StepsCompared,
    Strict,
    refuse,
)


class TrainingEffect(Strict):
    """The candidate's mean loss over the last steps lies below the untrained control's by at least this."""

    control: ArmName
    """The arm that trains nothing (learning rate 0) on the same batches."""
    last: Annotated[Count, NoDemand("how many steps the effect is the mean of"), CountsSteps()]
    """How many last steps are averaged."""
    at_least: Annotated[Positive, Demand("vacuous_training_effect")]
    """Smallest difference of the mean losses that counts as training."""


class Floor(Strict):
    """Training did something: parameters moved, or the loss fell below that of an untrained control. One of both is
    enough: a loss may be 0 by construction, and a parameter may be large.
    """

    control: ArmName
    """The arm that trains nothing on the same batches."""
    moved: Annotated[Positive, NoDemand("less leaves the claim undecided")]
    """How far the median trainable tensor moves at least, over its norm at the start (L2). Zeros have no size."""
    standard_errors: Annotated[Positive, NoDemand("less leaves the claim undecided")]
    """Or by more than how many of its standard errors the mean loss of the last half lies below the control's."""


class Guards(Strict):
    """What must be true before PASS may be said; unmet, the verdict is FAIL with a `vacuous_…` code."""

    steps: StepsCompared
    """Steps that must have been compared."""
    distinct_batches: Annotated[Count | None, Demand("vacuous_batches_repeat"), Nothing(1), CountsSteps()] = None
    """Distinct batches, by digest, that must have been seen."""
    clip_active_steps: Annotated[Natural | None, Demand("vacuous_clip_inactive"), Nothing(0), CountsSteps()] = None
    """Steps in which the clip must have scaled at least one group."""
    training_effect: TrainingEffect | None = None
    """How much the training must have lowered the loss."""
    floor: Floor | None = None
    """The least that counts as training; unmet, the claim is undecided (`trained_too_little`)."""

    def controls(self) -> dict[str, str]:
        """Return the untrained arm of each guard that names one, by guard."""
        named = {"training_effect": self.training_effect, "floor": self.floor}
        return {guard: each.control for guard, each in named.items() if each is not None}


class Guarding(Judged):
    """Derive demands, arms and step counts from the guards of a judgement."""

    if TYPE_CHECKING:  # each kind declares them, after its own fields
        guards: Guards

    def candidate_capabilities(self) -> frozenset[str]:
        return frozenset({"gradient_norms"} if self.guards.clip_active_steps else ())

    def baseline_capabilities(self) -> frozenset[str]:
        return self.candidate_capabilities()


class Guarded(Guarding):
    """Derive demands from `equality` and its bound, too."""

    if TYPE_CHECKING:
        equality: EqualityOrNoise
        max_abs_difference: Positive | None

    def can_bite(self, path: str) -> bool:
        return bites_by_equality(path, self.equality) and super().can_bite(path)


class Bounded(Guarded):
    """With a bound relative to the baseline's value, instead of the absolute one or with it."""

    if TYPE_CHECKING:
        max_relative_difference: Positive | None

    @model_validator(mode="after")
    def _has_a_bound(self) -> Self:
        if self.equality != "noise" and self.max_abs_difference is None and self.max_relative_difference is None:
            refuse("say `max_abs_difference`, `max_relative_difference` or both", "equality")
        return self

    def demanded(self) -> dict[str, Demand]:
        """Return the demanded fields. Where there are two bounds, a fault breaks the bound that it names."""
        found = super().demanded()
        if self.max_relative_difference is not None and "max_abs_difference" in found:
            found["max_abs_difference"] = Demand("exceeds_tolerance", exceeded_bound="max_abs_difference")
        return found


def bites_by_equality(path: str, equality: EqualityOrNoise | None) -> bool:
    """Return True if the value at `path` decides. Bits or noise decide alone, or else the bounds do; never both."""
    if path == "equality":
        return equality in ("bitwise", "noise")
    return equality == "within" or path not in {"max_abs_difference", "max_relative_difference"}

"""Define guards of a judgement about training, bounds that such judgements share, and how far ends may be apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

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


# What torch's optimizers keep of gradients for each parameter: the next update is made of it.
_MOMENTS = (
    *("acc_delta", "ax", "eta", "exp_avg", "exp_avg_sq", "exp_inf", "grad_avg", "max_exp_avg_sq", "momentum_buffer"),
    *("mu", "prev", "square_avg", "step_size", "sum"),
)


def _of_bookkeeping(name: str) -> str:
    """Return the name of a bookkeeping tensor. Raise PydanticCustomError if the name shows that training reads it."""
    category, _, tensor = name.partition(" ")
    if category not in ("optimizer", "tensors") or not tensor.strip() or tensor.rpartition(".")[2] in _MOMENTS:
        raise PydanticCustomError(
            "no_bookkeeping",
            "Input should be a count as a verdict names it, such as `optimizer group0.step`: never a parameter, "
            "a buffer, a generator or a moment",
        )
    return name


EndName = Annotated[str, AfterValidator(_of_bookkeeping)]


class Ends(Strict):
    """Every parameter, buffer and other tensor that both arms keep is moved alike, as far as rounding lets it."""

    control: ArmName
    """An arm with the baseline's settings. The harness changes the parameters that it starts from by a rounding,
    so that it shows which tensors rounding alone moves, and how far."""
    at_most: Annotated[float, Field(gt=0, lt=1), Demand("ends_apart")]
    """Largest distance between the two arms' movements of any tensor, from its start to its end, over the baseline's
    (L2 norms); at 1 a parameter that is not trained at all would pass. One that ends within ten times the control's
    distance, or 1e-6 of the tensor, is rounding; where the median parameter is further apart than the control's, up to
    ten times as much further. Below the bound, a tensor further apart than ten times what the median parameter shows of
    rounding leaves the claim undecided."""

    def recorded_of(self, candidate: str, baseline: str) -> dict[str, dict[str, int | str]]:
        """Return what to record: how all three arms move each tensor, and that the control is nudged."""
        return {arm: {"moves": True, "nudged": arm == self.control} for arm in (candidate, baseline, self.control)}

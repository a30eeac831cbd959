"""Define the guards of claims about training, the bounds that such claims share, and the bounds on the state at the
end."""

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
    """A guard: over the last steps, the candidate's mean loss must be lower than the mean loss of an untrained control,
    by at least the amount `at_least`."""

    control: ArmName
    """The arm that trains nothing (learning rate 0) on the same batches."""
    last: Annotated[Count, NoDemand("states over how many steps the effect is averaged"), CountsSteps()]
    """Number of steps at the end of the training over which the loss is averaged."""
    at_least: Annotated[Positive, Demand("vacuous_training_effect")]
    """Smallest amount by which the candidate's mean loss must be below the control's mean loss."""


class Floor(Strict):
    """A guard: the training must have had an effect. It had an effect if the parameters moved, or if the loss fell
    below the loss of a control that trains nothing.

    One of the two is enough: the loss of some trainings is always 0, and a large parameter may move only little.
    """

    control: ArmName
    """The arm that trains nothing on the same batches."""
    moved: Annotated[Positive, NoDemand("a smaller value leaves the claim undecided")]
    """Smallest movement that counts as an effect. The movement of a trainable tensor is the distance from start to end,
    divided by the tensor's L2 norm at the start. The median over all trainable tensors counts. Tensors that start as
    zeros are left out."""
    standard_errors: Annotated[Positive, NoDemand("a smaller value leaves the claim undecided")]
    """The training also had an effect if the mean loss over the last half of the steps is below the control's mean loss
    by more than this number of standard errors."""


class Guards(Strict):
    """Conditions without which a PASS would prove nothing. If a condition is not met, the verdict is FAIL with a reason
    code that starts with `vacuous_`. If `floor` is not met, the claim is undecided instead."""

    steps: StepsCompared
    """Smallest number of steps that must be compared."""
    distinct_batches: Annotated[Count | None, Demand("vacuous_batches_repeat"), Nothing(1), CountsSteps()] = None
    """Smallest number of batches that must differ from each other, by digest."""
    clip_active_steps: Annotated[Natural | None, Demand("vacuous_clip_inactive"), Nothing(0), CountsSteps()] = None
    """Smallest number of steps in which the clip must scale at least one group of gradients."""
    training_effect: TrainingEffect | None = None
    """The smallest amount by which the candidate's loss must be below the loss of an untrained control."""
    floor: Floor | None = None
    """The smallest effect that counts as training. Below it, the claim is undecided (`trained_too_little`)."""

    def controls(self) -> dict[str, str]:
        """Return the names of the untrained control arms. The keys are the guards that name them."""
        named = {"training_effect": self.training_effect, "floor": self.floor}
        return {guard: each.control for guard, each in named.items() if each is not None}


class Guarding(Judged):
    """A judgement with guards. The tested systems must have the capabilities that these guards need."""

    # This declaration is only for type checkers. Each subclass declares `guards` itself, after its other fields.
    if TYPE_CHECKING:
        guards: Guards

    def candidate_capabilities(self) -> frozenset[str]:
        return frozenset({"gradient_norms"} if self.guards.clip_active_steps else ())

    def baseline_capabilities(self) -> frozenset[str]:
        return self.candidate_capabilities()


class Guarded(Guarding):
    """A judgement with guards. Its field `equality` determines which of its bounds can cause a FAIL."""

    if TYPE_CHECKING:
        equality: EqualityOrNoise
        max_abs_difference: Positive | None

    def can_bite(self, path: str) -> bool:
        return bites_by_equality(path, self.equality) and super().can_bite(path)


class Bounded(Guarded):
    """A judgement that can have an absolute bound, a bound relative to the baseline's value, or both."""

    if TYPE_CHECKING:
        max_relative_difference: Positive | None

    @model_validator(mode="after")
    def _has_a_bound(self) -> Self:
        if self.equality != "noise" and self.max_abs_difference is None and self.max_relative_difference is None:
            refuse("give `max_abs_difference`, `max_relative_difference` or both", "equality")
        return self

    def demanded(self) -> dict[str, Demand]:
        """Return the fields that can cause a FAIL. If the judgement has an absolute and a relative bound, the verdict's
        figure `exceeded_bound` names the exceeded bound. The absolute bound's `Demand` requires this figure."""
        found = super().demanded()
        if self.max_relative_difference is not None and "max_abs_difference" in found:
            found["max_abs_difference"] = Demand("exceeds_tolerance", exceeded_bound="max_abs_difference")
        return found


def bites_by_equality(path: str, equality: EqualityOrNoise | None) -> bool:
    """Return True if the value of the field `path` can cause a FAIL when the judgement has this `equality`.

    The two bounds on differences can cause a FAIL only if `equality` is `within`. The field `equality` itself can cause
    a FAIL only if it is `bitwise` or `noise`. All other fields can always cause a FAIL.
    """
    if path == "equality":
        return equality in ("bitwise", "noise")
    return equality == "within" or path not in {"max_abs_difference", "max_relative_difference"}


# Names of optimizer state tensors that torch's optimizers compute from gradients and use in the next update.
_MOMENTS = (
    *("acc_delta", "ax", "eta", "exp_avg", "exp_avg_sq", "exp_inf", "grad_avg", "max_exp_avg_sq", "momentum_buffer"),
    *("mu", "prev", "square_avg", "step_size", "sum"),
)


def _of_bookkeeping(name: str) -> str:
    """Return the name of a count, such as a step counter, unchanged. Raise PydanticCustomError if the name belongs to
    state that training reads (parameter, buffer, generator, moment)."""
    category, _, tensor = name.partition(" ")
    if category not in ("optimizer", "tensors") or not tensor.strip() or tensor.rpartition(".")[2] in _MOMENTS:
        raise PydanticCustomError(
            "no_bookkeeping",
            "Input should name a counter in the form that verdicts use, such as `optimizer group0.step`, and not a "
            "parameter, a buffer, a generator or a moment such as `exp_avg`",
        )
    return name


EndName = Annotated[str, AfterValidator(_of_bookkeeping)]


class Ends(Strict):
    """From start to end, both arms must change every parameter, buffer and other tensor in the same way, except for
    rounding."""

    control: ArmName
    """An arm with the baseline's settings. The harness changes its initial parameters by about one rounding error, so
    that this arm shows which tensors rounding alone moves, and how far."""
    at_most: Annotated[float, Field(gt=0, lt=1), Demand("ends_apart")]
    """Largest distance between the two arms' movements of any tensor, divided by the baseline's movement (L2 norms). A
    bound of 1 would let an untrained parameter pass. A distance above the bound still counts as rounding if it is at
    most ten times the control's distance from the baseline, or at most 1e-6 of the tensor's norm. The factor ten grows,
    at most to 100, if in the median parameter the candidate is further from the baseline than the control is. A
    distance within the bound leaves the claim undecided if it exceeds ten times the rounding that the median parameter
    shows."""

    def recorded_of(self, candidate: str, baseline: str) -> dict[str, dict[str, int | str]]:
        """Return fields of the planned arms (`PlannedArm`) for candidate, baseline and control. With `moves`, an arm
        records how its tensors move from start to end. With `nudged`, its initial parameters are slightly changed."""
        return {arm: {"moves": True, "nudged": arm == self.control} for arm in (candidate, baseline, self.control)}

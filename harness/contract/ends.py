"""Bound how far apart two arms may end: in what they trained, and in what no loss reads."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from harness.contract.base import ArmName, Demand, Strict

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

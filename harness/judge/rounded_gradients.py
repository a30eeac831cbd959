"""How many gradients may be taken for zeros but for rounding: a comparison that excuses most tensors compared none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from harness.judge import reasons
from harness.judge.sheet import settle, some

FEWEST_COMPARED = 0.5  # of a step's tensors: biases before a norm are a quarter of a network of convolutions


class OfTensor(Protocol):
    """A gradient of a tensor at a step, beside the baseline's."""

    @property
    def step(self) -> int: ...
    @property
    def tensor(self) -> str: ...
    @property
    def rounded(self) -> bool: ...
    @property
    def relative(self) -> float: ...


def require_most_compared(compared: Sequence[OfTensor], bound: float | None) -> None:
    """Settle INCONCLUSIVE where at some step more tensors lie beyond the relative bound than may be rounding alone.

    What is excused is measured by the step's largest gradient: one that is far larger than all others (a loss that is
    scaled in one place, a tensor that diverges) excuses each of them, whatever it is.
    """
    if bound is None:
        return
    for step in dict.fromkeys(each.step for each in compared):
        here = [each for each in compared if each.step == step]
        excused = [each.tensor for each in here if each.rounded and each.relative > bound]
        if len(excused) > (1 - FEWEST_COMPARED) * len(here):
            settle(
                reasons.GRADIENTS_UNDECIDED,
                f"at step {step}, {len(excused)} of {len(here)} gradients are beyond the relative bound and so far "
                f"below the step's largest that they could be rounding alone: {some(excused)}",
            )

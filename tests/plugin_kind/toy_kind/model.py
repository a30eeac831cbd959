"""What a contract may write under `kind: loss_below`."""

from typing import Annotated, Literal

from harness.contract.base import ArmName, Demand, Judged, Positive


class LossBelow(Judged):
    """The loss at the last step is below a number."""

    kind: Literal["loss_below"]
    """Judges where an arm's loss ends."""
    candidate: ArmName
    """The arm whose loss is read."""
    below: Annotated[Positive, Demand("loss_too_high")]
    """What the loss at the last step must be below."""

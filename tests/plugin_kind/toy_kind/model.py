"""What a contract may write under `kind: loss_below`."""

from typing import ClassVar, Literal

from harness.contract.base import Demand, Judged, Name, Positive


class LossBelow(Judged):
    """The loss at the last step is below a number."""

    kind: Literal["loss_below"]
    """Judges where an arm's loss ends."""
    candidate: Name
    """The arm whose loss is read."""
    below: Positive
    """What the loss at the last step must be below."""

    broken_by: ClassVar = {"below": Demand(("loss_too_high",))}
    no_demand: ClassVar = {"candidate": "names an arm"}

"""The row of `loss_below`, all that the harness imports to know of it."""

from harness.kinds import Kind
from harness.kinds.checks import SHARED_CHECKS

KIND = Kind(
    name="loss_below",
    model="toy_kind.model:LossBelow",
    judge="toy_kind.judge:judge",
    probes={"paired": ()},
    capabilities=frozenset(),
    card=("trajectories",),
    evidence_faults=("harness.drill.faults:MISSING_RUN", "toy_kind.fault:LAST_LOSS_HIGH"),
    leaves_out=dict.fromkeys(SHARED_CHECKS, "It reads the last loss alone."),
    reasons={"loss_too_high": ("FAIL", "The loss at the last step is not below the demanded one.")},
)

"""What `loss_below` must notice: planted in recorded evidence."""

from dataclasses import replace

from harness.drill.faults import EvidenceFault
from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.system.protocol import Expectation


def _high(execution: ArmEvidence) -> ArmEvidence:
    loss = execution.series.loss.copy()
    loss[-1] = 9.0
    return replace(execution, series=replace(execution.series, loss=loss))


def last_loss_high(evidence: RunEvidence) -> RunEvidence:
    return replace(evidence, arms={arm: [_high(each) for each in runs] for arm, runs in evidence.arms.items()})


LAST_LOSS_HIGH = EvidenceFault(
    "last_loss_high", "the last loss is 9", last_loss_high, Expectation("FAIL", "loss_too_high", {"last_loss": 9.0})
)

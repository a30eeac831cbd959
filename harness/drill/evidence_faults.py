"""Faults of the harness's own bookkeeping: planted in evidence that was recorded, because no system can cause them.

Importing this needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from harness.evidence.run_evidence import ArmEvidence, RunEvidence, Series
from harness.system.protocol import Expectation, FaultDescription

NO_STEPS = "no_steps"
MISSING_RUN = "missing_run"
KINDS = (
    "trajectory_match",
    "gradient_match",
    "capture",
    "throughput_ratio",
    "host_syncs",
    "ptx_target",
    "prewarm",
    "kernel_match",
    "repeatability",
    "memory_steady",
)


def without_steps(evidence: RunEvidence) -> RunEvidence:
    """The run as if no arm had been asked for a step."""
    arms = {arm: [_emptied(each) for each in executions] for arm, executions in evidence.arms.items()}
    return replace(evidence, arms=arms)


def _emptied(execution: ArmEvidence) -> ArmEvidence:
    import numpy as np  # `check` reads the faults' descriptions and must start fast

    series = Series(np.empty(0), [], np.empty(0, np.int64), np.empty(0, np.int64))
    end = None if execution.end is None else execution.end.model_copy(update={"steps_called": 0})
    return replace(execution, series=series, end=end)


# None: the run is planned and never executed, so that its directory is not there when the evidence is read
EVIDENCE_CHANGES: dict[str, Callable[[RunEvidence], RunEvidence] | None] = {
    NO_STEPS: without_steps,
    MISSING_RUN: None,
}
EVIDENCE_FAULTS: dict[str, FaultDescription] = {
    NO_STEPS: FaultDescription(
        NO_STEPS,
        "no arm is asked for a step: a comparison over zero steps",
        "both",
        {
            "trajectory_match": Expectation("FAIL", "vacuous_steps", {"steps_run": 0}),
            "repeatability": Expectation("FAIL", "vacuous_steps", {"steps_run": 0}),
        },
    ),
    MISSING_RUN: FaultDescription(
        MISSING_RUN,
        "the run was planned and left nothing: a unit that would disappear from the table",
        "both",
        {kind: Expectation("ERROR", "worker_incomplete") for kind in KINDS},
    ),
}

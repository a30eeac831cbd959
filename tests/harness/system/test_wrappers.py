"""The harness's own faults: described without torch, and wrapped without hiding what a run can do."""

from __future__ import annotations

import subprocess
import sys

import pytest
from step_function_systems import Regression

from harness.contract.schema import Arm, Workload
from harness.errors import UsageError
from harness.judge.reasons import REASONS
from harness.system.protocol import HasCapture, HasGradients, HasInputs, HasParameters, HasStepBody, TrainingRun
from harness.system.wrappers import HARNESS_FAULTS, SWAPPED_ARMS, wrap

WORKLOAD = Workload(model="any", batch_size=2, seq_len=4, steps=8)
WRAPPED = sorted(set(HARNESS_FAULTS) - {SWAPPED_ARMS})


@pytest.mark.parametrize("module", ["wrappers", "resolve", "step_function", "huggingface", "protocol"])
def test_describing_needs_no_torch(module: str) -> None:
    code = f"import sys, harness.system.{module} as m; assert 'torch' not in sys.modules, 'torch was imported'"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("fault", [name for name in WRAPPED if HARNESS_FAULTS[name].needs != "cuda"])
def test_a_wrapped_run_keeps_its_capabilities(fault: str) -> None:
    with wrap(Regression().open(WORKLOAD, Arm()), fault, steps=8) as run:
        for capability in (TrainingRun, HasInputs, HasParameters, HasGradients, HasCapture, HasStepBody):
            assert isinstance(run, capability), capability
        run.step(0)
        assert len(run.parameters()) == 4  # type: ignore[attr-defined]
        assert run.facts()["layers"] == 2


@pytest.mark.parametrize("fault", sorted(HARNESS_FAULTS))
def test_every_fault_names_reason_codes_that_judges_give(fault: str) -> None:
    expectations = HARNESS_FAULTS[fault].breaks
    assert expectations
    for kind, expectation in expectations.items():
        assert REASONS[expectation.reason].status.value == expectation.status, kind


def test_an_unknown_fault_is_told_the_known_ones() -> None:
    with pytest.raises(UsageError, match="busy_step, constant_loss, decoy_graph"):
        wrap(Regression().open(WORKLOAD, Arm()), "no_such", steps=8)

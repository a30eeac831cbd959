"""The harness's own faults: described without torch, and wrapped without hiding what a run can do."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from step_function_systems import Regression

from harness.contract.schema import Arm, Workload
from harness.errors import UsageError
from harness.judging.reasons import REASONS
from harness.system.protocol import HasCapture, HasGradients, HasInputs, HasParameters, HasStepBody, TrainingRun
from harness.system.wrappers import HARNESS_FAULTS, SWAPPED_ARMS, wrap

WORKLOAD = Workload(model="any", batch_size=2, seq_len=4, steps=8)
WRAPPED = sorted(set(HARNESS_FAULTS) - {SWAPPED_ARMS})


OF_TRAINERS = ["extras.trainers.made_trainer"]


@pytest.mark.parametrize(
    "module",
    [*(f"system.{name}" for name in ("wrappers", "resolve", "step_function", "made_step", "protocol")), *OF_TRAINERS],
)
def test_describing_a_wrapped_system_needs_no_torch(module: str) -> None:
    code = f"import sys, harness.{module} as m; assert 'torch' not in sys.modules, 'torch was imported'"
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


class _FarFallen(Regression):
    """Its losses lie where a millionth of what they moved is less than the first one's last bit."""

    def build(self, workload: Workload, arm: Arm) -> Any:
        _, batch, parameters = super().build(workload, arm)
        losses = iter([4.6, *(0.3 + 0.01 * number for number in range(7))])
        return lambda _batch: torch.tensor(next(losses)), batch, parameters


def test_the_flat_loss_fault_keeps_the_losses_moving_after_any_number_of_steps() -> None:
    with wrap(_FarFallen().open(WORKLOAD, Arm()), "flat_loss", steps=8) as run:
        losses = [float(run.step(index)) for index in range(8)]
    assert len(set(losses)) == 8
    assert max(abs(loss - losses[0]) for loss in losses) < 5e-6


def test_an_unknown_fault_is_refused_with_the_known_faults() -> None:
    with pytest.raises(
        UsageError, match="busy_step, constant_loss, constant_metric, consuming_evaluation, decoy_graph"
    ):
        wrap(Regression().open(WORKLOAD, Arm()), "no_such", steps=8)

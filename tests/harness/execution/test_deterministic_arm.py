"""An arm with `deterministic: true` runs under deterministic algorithms, and leaves the process as it was."""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harness.contract.schema import Arm, Workload
from harness.evidence.plan_records import PlannedArm, Run
from harness.execution.opening import opened
from harness.system.step_function import StepFunctionSystem

FILLING: Any = torch.utils.deterministic


class Told(StepFunctionSystem):
    """Its loss is 1 while torch's algorithms are deterministic, and 0 otherwise."""

    def build(self, workload: Workload, arm: Arm) -> tuple[object, object, object]:
        model = nn.Linear(2, 1)

        def step(batch: dict[str, Tensor]) -> Tensor:
            settings = (
                torch.are_deterministic_algorithms_enabled(),
                torch.backends.cudnn.deterministic,
                os.environ.get("CUBLAS_WORKSPACE_CONFIG") == ":4096:8",
                not FILLING.fill_uninitialized_memory,
            )
            loss: Tensor = torch.tensor(float(sum(settings))) + 0 * model(batch["x"]).sum()
            return loss

        return step, lambda _index: {"x": torch.ones(2, 2)}, model


@pytest.mark.parametrize(("deterministic", "settings"), [(True, 4.0), (False, 0.0)])
def test_an_arm_runs_deterministic_algorithms_only_if_it_requests_them(
    deterministic: bool, settings: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("told_system")
    module.System = Told()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "told_system", module)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    arm = PlannedArm(arm=Arm(deterministic=deterministic), system="told_system:System")
    workload = Workload(model="any", batch_size=2, seq_len=1, steps=8)
    run = Run(id="r", contract="c", probe="paired", workload_name="w", workload=workload, arms={"plain": arm})
    before = torch.backends.cudnn.deterministic
    with opened(run, "plain") as training:
        assert float(training.step(0)) == settings
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.deterministic is before
    assert FILLING.fill_uninitialized_memory
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ

"""Faults of the plain step: captured equals plain in bits, so that no comparison of the two sees them."""

from __future__ import annotations

import pytest
import torch

from harness.contract.schema import Needs
from harness.system.protocol import Arm, Workload
from reference_impl.faults import FAULTS, plain_step
from reference_impl.system import QLoRASystem

SHOWN_FROM = {
    "labels_not_shifted": 0,
    "reset_momentum": 3,
    "zeroed_gradient": 2,
    "wrong_nf4_value": 0,
    "constant_learning_rate": 1,
    "wrong_rotary_base": 0,
}
STEPS = 5


@pytest.mark.parametrize("fault", SHOWN_FROM)
def test_both_arms_are_wrong_alike(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_step, "RESET_STEP", 2)
    monkeypatch.setattr(plain_step, "ZEROED_FROM", 1)
    workload = Workload(model="tiny", batch_size=1, seq_len=8, steps=STEPS, needs=Needs(device="cpu"))

    def losses(arm: Arm, planted: str | None) -> list[float]:
        with QLoRASystem().open(workload, arm, fault=planted) as run:
            return [float(loss) for loss in torch.stack([run.step(index) for index in range(STEPS)])]

    right, wrong = losses(Arm(), None), losses(Arm(), fault)
    assert [step for step in range(STEPS) if right[step] != wrong[step]] == [*range(SHOWN_FROM[fault], STEPS)]
    assert losses(Arm(capture="step"), fault) == wrong
    assert FAULTS[fault].description.plant == "both"

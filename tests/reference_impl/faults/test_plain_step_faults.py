"""Faults of the plain step: captured equals plain in bits, so that no comparison of the two sees them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
import torch
from budget import slow_but

from harness.contract.schema import Needs
from harness.system.protocol import Arm, Workload
from reference_impl.config import MODEL_PRESETS
from reference_impl.faults import FAULTS, plain_step
from reference_impl.system import QLoRASystem

if TYPE_CHECKING:
    from reference_impl.trainer import Trainer

SHOWN_FROM = {
    "labels_not_shifted": 0,
    "reset_momentum": 3,
    "zeroed_gradient": 2,
    "wrong_nf4_value": 0,
    "constant_learning_rate": 1,
    "wrong_rotary_base": 0,
}
STEPS = 5


@pytest.mark.parametrize("fault", slow_but(["labels_not_shifted", "zeroed_gradient"], SHOWN_FROM))
def test_a_plain_step_fault_changes_both_arms_equally(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize("model", MODEL_PRESETS)
def test_the_wrong_rotary_base_differs_from_that_of_every_model(model: str) -> None:
    right = MODEL_PRESETS[model]
    trainer = SimpleNamespace(
        model_config=right, config=SimpleNamespace(seq_len=8), _buffers={}, set_shape=lambda _length: None
    )
    plain_step.wrong_rotary_base(cast("Trainer", trainer))
    assert trainer.model_config == replace(right, rope_theta=100 * right.rope_theta)

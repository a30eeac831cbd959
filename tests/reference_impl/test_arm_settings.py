"""Settings of an arm that the trainer reads beside those of its configuration: its own seed, and LoRA left out."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from harness.contract.schema import Arm, Workload
from reference_impl.config import MODEL_PRESETS, TrainConfig
from reference_impl.system import QLoRARun, train_config
from reference_impl.trainer import Trainer

SHAPE = MODEL_PRESETS["tiny"]
WORKLOAD = Workload(model="tiny", batch_size=1, seq_len=8, steps=2, seed=3)


@pytest.mark.parametrize(("settings", "seed"), [({}, 3), ({"seed": 123}, 123)])
def test_the_seed_of_an_arm_overrides_the_seed_of_the_workload(settings: dict[str, int], seed: int) -> None:
    assert train_config(WORKLOAD, Arm.model_validate(settings), None, None).seed == seed


def test_a_run_states_whether_its_weights_are_random() -> None:
    """Weights are random unless a checkpoint was loaded from a directory."""
    tiny = TrainConfig.preset("tiny", batch_size=1, seq_len=8, device="cpu")
    runs = [QLoRARun(config, [8], "none", None) for config in (tiny, replace(tiny, model=SHAPE))]
    stated = [run.facts()["random_weights"] for run in runs]
    assert stated == [False, True]


def first_loss(trainer: Trainer) -> torch.Tensor:
    trainer.prepare(0)
    return trainer.body().clone()


def test_without_adapters_the_value_of_lora_b_does_not_change_the_loss() -> None:
    """LoRA's B starts at zero.

    Another value changes the loss of a model with LoRA, and not that of a model without LoRA.
    """
    losses = {}
    for adapters in (True, False):
        for value in (0.0, 0.5):
            trainer = Trainer(TrainConfig.preset("tiny", batch_size=1, seq_len=8, device="cpu", adapters=adapters))
            for name, parameter in trainer.parameters().items():
                if "lora_b" in name:
                    parameter.fill_(value)
            losses[adapters, value] = first_loss(trainer).item()
    assert losses[True, 0.0] == losses[False, 0.0] == losses[False, 0.5]
    assert losses[True, 0.5] != losses[True, 0.0]

"""The training of the reference trainer, written a second time with the libraries transformers and peft (the twin).

The twin has the trainer's parameters, batches and learning rates, and nearly the same losses in a few steps.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from harness.contract.load import load_contract
from harness.contract.schema import Arm, Workload
from harness.system.protocol import NotAvailable
from reference_impl.config import TINY_CHECKPOINT, TrainConfig, learning_rate_at
from reference_impl.system import QLoRASystem
from reference_impl.trainer import Trainer
from reference_impl.transformers_twin.declared import declared
from reference_impl.transformers_twin.run import TwinRun, schedule
from reference_impl.transformers_twin.system import TransformersTwin
from reference_impl.transformers_twin.weights import through_nf4, through_table

ROOT = Path(__file__).parents[2]
CONTRACT = load_contract(ROOT / "contracts" / "traced-step-v1.yaml").contract
WORKLOAD, ARM = CONTRACT.workloads["reference"], CONTRACT.arms["transformers-float32"]


@pytest.fixture(autouse=True)
def libraries() -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("peft")


def opened(workload: Workload = WORKLOAD, arm: Arm = ARM, **places: str) -> TwinRun:
    return TransformersTwin().open(workload, arm, **places)


def changed(workload: Workload, **options: Any) -> Workload:
    return workload.model_copy(update={"options": {**workload.options, **options}})


def test_transformers_training_has_the_parameters_and_batches_of_the_reference_trainer(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the quick brown fox " * 20)
    (tmp_path / "b.txt").write_text("jumps over the lazy dog " * 20)
    workload = WORKLOAD.model_copy(update={"seed": 7})
    twin = opened(workload, data=str(tmp_path))
    trainer = QLoRASystem().open(workload, Arm(), data=str(tmp_path))
    theirs = trainer.parameters()
    assert twin.parameters().keys() == theirs.keys()
    assert all(torch.equal(each, theirs[name]) for name, each in twin.parameters().items())
    for index in (0, 1, 6, 7, 20):  # a pass over this text has 13 batches
        twin.evaluate(index, twin.parameters())
        tokens, targets = trainer.trainer.batch(index)
        assert torch.equal(twin.inputs()["tokens"], tokens), index
        assert torch.equal(twin.inputs()["targets"], targets), index


def test_both_implementations_of_nf4_quantization_give_the_same_weights() -> None:
    pytest.importorskip("bitsandbytes")
    weights = [each.float() for each in load_file(TINY_CHECKPOINT / "model.safetensors").values() if each.dim() == 2]
    assert len(weights) == 29
    for weight in (*weights, torch.zeros(2, 64)):
        assert torch.equal(through_table(weight), through_nf4(weight))


@pytest.mark.parametrize("warm_up", [0, 1, 5])
def test_transformers_training_has_the_learning_rates_of_the_reference_trainer(warm_up: int) -> None:
    told = declared(changed(WORKLOAD, warmup_steps=warm_up), ARM, None, None)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=told.learning_rate)
    scheduler, config = schedule(optimizer, told), TrainConfig.preset("tiny", warmup_steps=warm_up, device="cpu")
    for index in range(100):
        assert optimizer.param_groups[0]["lr"] == pytest.approx(learning_rate_at(config, index), rel=1e-12), index
        optimizer.step()
        scheduler.step()


def test_transformers_training_reads_its_model_config_from_the_given_directory(tmp_path: Path) -> None:
    shutil.copytree(TINY_CHECKPOINT, tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}))
    start = opened().parameters()
    losses = [float(run.evaluate(0, start)) for run in (opened(), opened(model_directory=str(tmp_path / "model")))]
    assert abs(losses[0] - losses[1]) > 1e-3


def test_transformers_training_reads_its_weights_from_the_given_directory(tmp_path: Path) -> None:
    shutil.copytree(TINY_CHECKPOINT, tmp_path / "model")
    weights = load_file(tmp_path / "model" / "model.safetensors")
    weights["model.layers.0.self_attn.v_proj.bias"] += 1
    save_file(weights, tmp_path / "model" / "model.safetensors", metadata={"format": "pt"})
    start = opened().parameters()
    losses = [float(run.evaluate(0, start)) for run in (opened(), opened(model_directory=str(tmp_path / "model")))]
    assert abs(losses[0] - losses[1]) > 1e-3


def test_transformers_training_has_the_losses_of_the_reference_trainer_for_a_few_steps() -> None:
    twin, trainer = opened(), Trainer(TrainConfig.preset("tiny", device="cpu", batch_size=2, seq_len=32, seed=0))
    ours, theirs = ([float(run.step(index)) for index in range(4)] for run in (twin, trainer))
    assert ours == pytest.approx(theirs, abs=1e-4)  # a lost update changes the loss by at least 8e-4
    moments = twin.state()["optimizer"]
    assert float(moments["exp_avg.layers.0.lora_b_q"].abs().max()) > 0


@pytest.mark.parametrize(("left_out", "where"), [("eps", "workload"), ("max_norm", "arm")])
def test_transformers_training_refuses_a_contract_that_does_not_declare_a_setting(left_out: str, where: str) -> None:
    options = {name: value for name, value in WORKLOAD.options.items() if name != left_out}
    settings = {name: value for name, value in ARM.settings().items() if name != left_out}
    with pytest.raises(ValueError, match=rf"the {where} of a .* twin has wrong settings; declare exactly .*{left_out}"):
        declared(WORKLOAD.model_copy(update={"options": options}), Arm.model_validate(settings), None, None)


def test_transformers_training_refuses_several_sequence_lengths() -> None:
    with pytest.raises(ValueError, match="sequences of several lengths"):
        declared(WORKLOAD.model_copy(update={"seq_len": [32, 64]}), ARM, None, None)


def test_transformers_training_is_not_available_without_peft(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reference_impl.transformers_twin.system.find_spec", lambda name: None if name == "peft" else 1)
    with pytest.raises(NotAvailable, match="needs the Python modules peft"):
        opened()


def test_transformers_training_refuses_to_plant_a_fault() -> None:
    with pytest.raises(ValueError, match="no fault can be planted"):
        TransformersTwin().open(WORKLOAD, ARM, fault="reset_momentum")

"""The checkpoint that a peer reads: one that is there, or seeded random weights, written once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from harness.system.protocol import Arm, HasCheckpoint, Workload
from reference_impl.checkpoint import CheckpointWeights, RandomWeights, read_config, weight_shapes
from reference_impl.config import MODEL_PRESETS, TINY_CHECKPOINT, ModelConfig
from reference_impl.export import write_checkpoint
from reference_impl.system import QLoRASystem

SMALL = ModelConfig(
    hidden_size=64,
    intermediate_size=128,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    vocab_size=32,
    rope_theta=1e6,
)
BYTES = replace(SMALL, vocab_size=256)  # a token for each byte of the text
CPU = torch.device("cpu")


def workload(model: str) -> Workload:
    return Workload.model_validate(
        {"model": model, "batch_size": 1, "seq_len": 4, "steps": 1, "seed": 3, "needs": {"device": "cpu"}}
    )


@pytest.mark.parametrize("biased", [True, False], ids=["qwen2", "llama"])
def test_a_written_checkpoint_is_read_back_in_bfloat16(biased: bool, tmp_path: Path) -> None:
    model = ModelConfig(**{**vars(SMALL), "attention_bias": biased, "tie_word_embeddings": biased})
    source = RandomWeights(model, 3, CPU)
    directory = write_checkpoint(model, source, tmp_path / "written")
    assert read_config(directory) == model
    weights = CheckpointWeights(directory, model, CPU)
    for name in weight_shapes(model):
        assert torch.equal(weights.tensor(name), source.tensor(name).bfloat16()), name


def test_a_model_that_already_has_a_checkpoint_is_not_written_again(tmp_path: Path) -> None:
    system = QLoRASystem()
    assert isinstance(system, HasCheckpoint)
    assert system.checkpoint(workload("tiny"), tmp_path) == TINY_CHECKPOINT
    assert system.checkpoint(workload("qwen2-1.5b"), tmp_path, model_directory=str(TINY_CHECKPOINT)) == TINY_CHECKPOINT
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_of_random_weights_contains_what_the_workloads_seed_draws(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODEL_PRESETS, "qwen2-1.5b", SMALL)
    directory = QLoRASystem().checkpoint(workload("qwen2-1.5b"), tmp_path)
    assert directory == tmp_path / "qwen2-1.5b"
    name = "model.layers.1.mlp.down_proj.weight"
    written = CheckpointWeights(directory, SMALL, CPU).tensor(name)
    assert torch.equal(written, RandomWeights(SMALL, 3, CPU).tensor(name).bfloat16())


def test_transformers_reads_a_written_checkpoint_like_the_trainer(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from reference_impl.transformers_twin.peer import TransformersPeer

    directory = write_checkpoint(BYTES, RandomWeights(BYTES, 3, CPU), tmp_path / "written")
    told = {"rank": 4, "alpha": 8.0, "warmup_steps": 1, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}
    trained = workload("qwen2-1.5b").model_copy(update={"options": told})
    arm = Arm.model_validate({"learning_rate": 1e-3, "max_norm": 0.1})
    exact = arm.model_copy(update={"dtype": "float64"})
    with (
        QLoRASystem().open(trained, arm, model_directory=str(directory)) as ours,
        TransformersPeer().open(trained, exact, model_directory=str(directory)) as theirs,
    ):
        assert float(ours.step(0)) == pytest.approx(float(theirs.step(0)), abs=1e-5)

"""Hugging Face directories: one file, shards, tied and untied heads, Llama; and every way a directory can be bad."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from reference_impl.checkpoint import (
    CheckpointWeights,
    RandomWeights,
    parameter_count,
    read_config,
    weight_shapes,
)
from reference_impl.config import MODEL_PRESETS, TINY_CHECKPOINT, ModelConfig, TrainConfig
from reference_impl.errors import ReferenceImplError
from reference_impl.trainer import Trainer

CPU = torch.device("cpu")
SHAPE = ModelConfig(
    hidden_size=64, intermediate_size=96, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16, vocab_size=256
)
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
GATE = "model.layers.1.mlp.gate_proj.weight"


def random_state(shape: ModelConfig = SHAPE) -> dict[str, Tensor]:
    source = RandomWeights(shape, 5, CPU)
    return {name: source.tensor(name) for name in weight_shapes(shape)}


def write(directory: Path, state: dict[str, Tensor], **config: Any) -> Path:
    (directory / "config.json").write_text(json.dumps({**CONFIG, **config}))
    save_file(state, directory / "model.safetensors")
    return directory


def write_shards(directory: Path, state: dict[str, Tensor]) -> Path:
    (directory / "config.json").write_text(json.dumps(CONFIG))
    names = sorted(state)
    weight_map = {}
    for number, part in enumerate((names[::2], names[1::2])):
        file = f"model-{number}.safetensors"
        save_file({name: state[name] for name in part}, directory / file)
        weight_map.update(dict.fromkeys(part, file))
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return directory


def first_losses(model: Path | ModelConfig) -> list[float]:
    name = model if isinstance(model, ModelConfig) else str(model)
    trainer = Trainer(TrainConfig(model=name, rank=4, batch_size=2, seq_len=32, device="cpu", seed=5))
    return [trainer.step(index).item() for index in range(2)]


def refusal(directory: Path) -> str:
    with pytest.raises(ReferenceImplError) as caught:
        CheckpointWeights(directory, read_config(directory), CPU)
    return str(caught.value)


def test_a_written_directory_trains_like_the_weights_it_was_written_from(tmp_path: Path) -> None:
    assert first_losses(write(tmp_path, random_state())) == first_losses(SHAPE)


def test_a_checkpoint_in_shards_loads_like_a_single_file(tmp_path: Path) -> None:
    assert first_losses(write_shards(tmp_path, random_state())) == first_losses(SHAPE)


def test_an_untied_head_of_a_checkpoint_is_used(tmp_path: Path) -> None:
    state = random_state()
    state["lm_head.weight"] = torch.zeros(256, 64)
    loss = first_losses(write(tmp_path, state, tie_word_embeddings=False))[0]
    assert loss == pytest.approx(torch.tensor(256.0).log().item())  # all logits are zero


def test_a_tied_checkpoint_may_repeat_its_head(tmp_path: Path) -> None:
    state = random_state()
    state["lm_head.weight"] = torch.zeros(256, 64)
    assert first_losses(write(tmp_path, state)) == first_losses(SHAPE)


def test_a_llama_checkpoint_is_read_without_biases(tmp_path: Path) -> None:
    state = {name: tensor for name, tensor in random_state().items() if not name.endswith(".bias")}
    directory = write(tmp_path, state, architectures=["LlamaForCausalLM"])
    assert not read_config(directory).attention_bias
    assert first_losses(directory) == first_losses(SHAPE)  # whose biases are zero


def test_rope_theta_is_read_from_both_of_its_config_keys(tmp_path: Path) -> None:
    write(tmp_path, random_state(), rope_theta=5000.0)
    assert read_config(tmp_path).rope_theta == 5000.0
    write(tmp_path, random_state(), rope_parameters={"rope_theta": 7000.0, "rope_type": "default"})
    assert read_config(tmp_path).rope_theta == 7000.0


def test_a_missing_checkpoint_tensor_is_named_in_the_error(tmp_path: Path) -> None:
    state = random_state()
    del state[GATE]
    assert refusal(write(tmp_path, state)) == f"{tmp_path}: tensor {GATE} is missing; complete the checkpoint"


def test_an_unexpected_checkpoint_tensor_is_named_in_the_error(tmp_path: Path) -> None:
    message = refusal(write(tmp_path, {**random_state(), "model.layers.2.input_layernorm.weight": torch.ones(64)}))
    assert "model.safetensors: unexpected tensor model.layers.2.input_layernorm.weight;" in message


def test_a_checkpoint_tensor_of_wrong_shape_is_named_in_the_error(tmp_path: Path) -> None:
    message = refusal(write(tmp_path, {**random_state(), GATE: torch.zeros(96, 63)}))
    assert f"model.safetensors: tensor {GATE} has shape (96, 63); config.json requires (96, 64)" in message


def test_a_missing_checkpoint_shard_is_named_in_the_error(tmp_path: Path) -> None:
    write_shards(tmp_path, random_state())
    (tmp_path / "model-1.safetensors").unlink()
    assert refusal(tmp_path) == f"{tmp_path / 'model-1.safetensors'}: does not exist; fetch the missing file"


def test_a_broken_shard_index_is_an_error_that_names_it(tmp_path: Path) -> None:
    write_shards(tmp_path, random_state())
    (tmp_path / "model.safetensors.index.json").write_text("[]")
    assert "model.safetensors.index.json: is not a JSON object" in refusal(tmp_path)


@pytest.mark.parametrize("damage", ["truncated", "garbage", "empty"])
def test_a_corrupt_checkpoint_file_is_named_in_the_error(tmp_path: Path, damage: str) -> None:
    path = write(tmp_path, random_state()) / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes({"truncated": content[:-1000], "garbage": b"\xff" * 5000, "empty": b""}[damage])
    assert f"{path}: is not a valid safetensors file" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "architecture GPT2LMHeadModel; use one of Qwen2ForCausalLM"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope scaling {'type': 'yarn', 'factor': 4.0}"),
        ({"use_sliding_window": True}, "use_sliding_window is set"),
        ({"num_key_value_heads": 3}, "num_kv_heads: got 3; use a divisor of num_heads (4)"),
        ({"num_attention_heads": 0}, "missing or zero"),
    ],
    ids=["architecture", "rope-scaling", "sliding-window", "kv-heads", "no-heads"],
)
def test_an_unusable_checkpoint_config_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    assert message in refusal(write(tmp_path, random_state(), **change))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
def test_a_json_file_of_100_gb_is_refused_before_it_is_read(tmp_path: Path, name: str) -> None:
    write(tmp_path, random_state())
    with (tmp_path / name).open("wb") as file:
        file.truncate(100 * 2**30)
    assert f"{name}: has 107374182400 bytes, more than 67108864" in refusal(tmp_path)


@pytest.mark.parametrize("text", ["[]", "1", '{"a": ' * 100_000, "\ud800".encode("utf-8", "surrogatepass"), b"{}\xff"])
def test_a_config_that_is_not_a_json_object_is_refused(tmp_path: Path, text: str | bytes) -> None:
    path = write(tmp_path, random_state()) / "config.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert "config.json: " in refusal(tmp_path)


def test_a_checkpoint_directory_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ReferenceImplError, match=r"config.json: cannot be read .*; give a directory with a Hugging Face model"
    ):
        read_config(tmp_path)


def test_random_weights_depend_on_seed_and_name() -> None:
    name = "model.layers.0.mlp.up_proj.weight"
    one = RandomWeights(SHAPE, 0, CPU).tensor(name)
    assert torch.equal(one, RandomWeights(SHAPE, 0, CPU).tensor(name))
    assert not torch.equal(one, RandomWeights(SHAPE, 1, CPU).tensor(name))
    assert not torch.equal(one, RandomWeights(SHAPE, 0, CPU).tensor(GATE))
    assert one.std().item() == pytest.approx(0.02, rel=0.05)


def test_the_tiny_checkpoint_equals_its_preset_and_is_small() -> None:
    shape = read_config(TINY_CHECKPOINT)
    assert shape == MODEL_PRESETS["tiny"]
    assert parameter_count(shape) == 821_376
    path = TINY_CHECKPOINT / "model.safetensors"
    assert path.stat().st_size <= 3_000_000
    assert {tensor.dtype for tensor in load_file(path).values()} == {torch.bfloat16}


def test_the_qwen2_preset_has_one_and_a_half_billion_parameters() -> None:
    assert parameter_count(MODEL_PRESETS["qwen2-1.5b"]) == 1_543_714_304

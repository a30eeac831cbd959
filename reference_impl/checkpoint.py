"""Provide the frozen weights: from a directory in the Hugging Face layout, or as seeded random numbers.

Both sources have the method `tensor(name)`, for the names that Qwen2 and Llama checkpoints use. Each call returns one
tensor. So only one matrix, such as qkv, and its parts are dense at any time while a quantized model is built.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from reference_impl.config import ModelConfig
from reference_impl.errors import ReferenceImplError
from reference_impl.files import read_json
from reference_impl.seeding import seeded_generator

MOST_LAYERS = 10_000
ARCHITECTURES = ("Qwen2ForCausalLM", "LlamaForCausalLM")
EMBEDDING, FINAL_NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"


class WeightSource(Protocol):
    """A source of frozen weights, by name."""

    def tensor(self, name: str) -> Tensor:
        """Return the tensor with this name, on the device that the source was created for."""
        ...


def weight_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return a dictionary from name to shape, for all tensors that a checkpoint for ``config`` must contain."""
    hidden, wide = config.hidden_size, config.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, hidden), FINAL_NORM: (hidden,)}
    if not config.tie_word_embeddings:
        shapes[HEAD] = (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        projections = {"q": config.query_dim, "k": config.kv_dim, "v": config.kv_dim}
        for name, rows in projections.items():
            shapes[f"{prefix}.self_attn.{name}_proj.weight"] = (rows, hidden)
            if config.attention_bias:
                shapes[f"{prefix}.self_attn.{name}_proj.bias"] = (rows,)
        shapes[f"{prefix}.self_attn.o_proj.weight"] = (hidden, config.query_dim)
        shapes[f"{prefix}.mlp.gate_proj.weight"] = (wide, hidden)
        shapes[f"{prefix}.mlp.up_proj.weight"] = (wide, hidden)
        shapes[f"{prefix}.mlp.down_proj.weight"] = (hidden, wide)
        shapes[f"{prefix}.input_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}.post_attention_layernorm.weight"] = (hidden,)
    return shapes


@dataclass(frozen=True)
class RandomWeights:
    """Random weights drawn on ``device``: matrices Normal(0, 0.02) as Qwen2 is initialized, gains 1, biases 0."""

    config: ModelConfig
    seed: int
    device: torch.device

    def tensor(self, name: str) -> Tensor:
        shape = weight_shapes(self.config)[name]
        if name.endswith(".bias"):
            return torch.zeros(shape, device=self.device)
        if len(shape) == 1:
            return torch.ones(shape, device=self.device)
        generator = seeded_generator(self.seed, name, self.device)
        return torch.randn(shape, generator=generator, device=self.device).mul_(0.02)


def read_config(directory: Path) -> ModelConfig:
    """Return the model's configuration from ``config.json`` in ``directory``.

    Raises `ReferenceImplError` if the file cannot be used, or if this trainer cannot train the model in the file.
    """
    path = directory / "config.json"
    raw = read_json(path, "give a directory with a Hugging Face model")
    try:
        return _config(path, raw)
    except (KeyError, ZeroDivisionError) as error:
        raise ReferenceImplError(
            str(path), f"a field is missing or zero ({error})", "give a complete config.json"
        ) from error
    except ReferenceImplError:
        raise
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ReferenceImplError(str(path), f"a value of another type ({error})", "give a valid config.json") from error


def _config(path: Path, raw: dict[str, Any]) -> ModelConfig:
    """Return the configuration in ``raw``, the content of the file ``path``.

    Values of a wrong type raise TypeError, ValueError, AttributeError or OverflowError.
    """
    architecture = (raw.get("architectures") or ["none"])[0]
    if architecture not in ARCHITECTURES:
        raise ReferenceImplError(str(path), f"architecture {architecture}", f"use one of {', '.join(ARCHITECTURES)}")
    # transformers 5 writes the field `rope_parameters`. Earlier versions wrote `rope_theta` and `rope_scaling` instead.
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        raise ReferenceImplError(str(path), f"rope scaling {rope}", "use a model without rope scaling")
    if raw.get("use_sliding_window"):
        raise ReferenceImplError(str(path), "use_sliding_window is set", "use a model with full attention")
    # Check the number of layers before anything else uses it. Otherwise a huge number would make the list of shapes
    # huge.
    if raw["num_hidden_layers"] > MOST_LAYERS:
        got = f"num_hidden_layers {raw['num_hidden_layers']}"
        raise ReferenceImplError(str(path), got, f"use a model of at most {MOST_LAYERS} layers")
    heads = raw.get("num_attention_heads", 0)
    return ModelConfig(
        hidden_size=raw["hidden_size"],
        intermediate_size=raw["intermediate_size"],
        num_layers=raw["num_hidden_layers"],
        num_heads=heads,
        num_kv_heads=raw.get("num_key_value_heads") or heads,
        head_dim=raw.get("head_dim") or raw["hidden_size"] // heads,
        vocab_size=raw["vocab_size"],
        rope_theta=float(rope.get("rope_theta", raw.get("rope_theta", 1e4))),
        rms_norm_eps=raw["rms_norm_eps"],
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        attention_bias=architecture == "Qwen2ForCausalLM",
    )


class CheckpointWeights:
    """Weights in a directory's safetensors files. The constructor checks the headers of all files and reads no tensor.

    The constructor raises `ReferenceImplError` if a file cannot be read, or if a tensor is missing, unexpected or has a
    wrong shape. The message names the file and the tensor.
    """

    def __init__(self, directory: Path, config: ModelConfig, device: torch.device) -> None:
        self._device = device
        self._file_of: dict[str, Path] = {}
        found: dict[str, tuple[int, ...]] = {}
        for path in _weight_files(directory):
            for name, shape in _header(path).items():
                found[name] = shape
                self._file_of[name] = path
        self._check(directory, found, config)

    def _check(self, directory: Path, found: dict[str, tuple[int, ...]], config: ModelConfig) -> None:
        expected = weight_shapes(config)
        for name, shape in expected.items():
            if name not in found:
                raise ReferenceImplError(str(directory), f"tensor {name} is missing", "complete the checkpoint")
            if found[name] != shape:
                raise ReferenceImplError(
                    str(self._file_of[name]),
                    f"tensor {name} has shape {found[name]}",
                    f"config.json requires {shape}; fetch both files again",
                )
        # Allow two kinds of tensors that the model does not read. If the head is the embedding, a checkpoint may
        # contain the embedding again as the head. Old Llama files contain tables of the rotary embedding.
        for name in found.keys() - expected.keys():
            if name != HEAD and not name.endswith("rotary_emb.inv_freq"):
                raise ReferenceImplError(
                    str(self._file_of[name]),
                    f"unexpected tensor {name}",
                    "fetch the weights and config.json from the same model",
                )

    def tensor(self, name: str) -> Tensor:
        path = self._file_of[name]
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                tensor: Tensor = file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise ReferenceImplError(str(path), f"tensor {name} is unreadable ({error})", "replace the file") from error
        return tensor.to(self._device)


def _weight_files(directory: Path) -> list[Path]:
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        content = read_json(index, "fetch the file again")
        try:
            names = sorted({_plain_name(name) for name in content["weight_map"].values()})
        except (KeyError, TypeError, AttributeError) as error:
            raise ReferenceImplError(str(index), f"is not a valid shard index ({error})", "replace the file") from error
        return [directory / name for name in names]
    return [directory / "model.safetensors"]


def _plain_name(name: object) -> str:
    if not isinstance(name, str) or Path(name).name != name:
        raise TypeError(f"{name!r:.60} is not the name of a file in the directory")
    return name


def _header(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors of one file, by name. Raises `ReferenceImplError` for an invalid file.

    The length of the file is not checked here, because safetensors compares it with the tensors' sizes.
    """
    if not os.path.isfile(path):  # noqa: PTH113 - a name that no file can have is none, and raises nothing
        raise ReferenceImplError(str(path), "does not exist", "fetch the missing file")
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 no iterator
    except (OSError, SafetensorError) as error:
        raise ReferenceImplError(str(path), f"is not a valid safetensors file ({error})", "replace the file") from error
    return shapes


def parameter_count(config: ModelConfig) -> int:
    """Return the number of elements of all tensors in a checkpoint: the frozen weights and the norms' gains."""
    return sum(math.prod(shape) for shape in weight_shapes(config).values())

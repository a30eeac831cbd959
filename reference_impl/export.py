"""Write the trainer's frozen weights as a Hugging Face checkpoint, so that other libraries can train the same model."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from reference_impl.checkpoint import WeightSource, weight_shapes
from reference_impl.config import ModelConfig


def write_checkpoint(model: ModelConfig, source: WeightSource, directory: Path) -> Path:
    """Write `config.json` and the weights to the new ``directory``; return ``directory``. The weights are bfloat16, as
    in published checkpoints."""
    directory.mkdir(parents=True)
    weights = {name: source.tensor(name).to(torch.bfloat16).cpu() for name in weight_shapes(model)}
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(hugging_face_config(model), indent=2) + "\n", encoding="utf-8")
    return directory


def hugging_face_config(model: ModelConfig) -> dict[str, object]:
    """Return the content of the model's `config.json`: Qwen2's if q, k and v have biases, else Llama's."""
    kind, architecture = ("qwen2", "Qwen2ForCausalLM") if model.attention_bias else ("llama", "LlamaForCausalLM")
    return {
        "architectures": [architecture],
        "model_type": kind,
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "rms_norm_eps": model.rms_norm_eps,
        "rope_parameters": {"rope_theta": model.rope_theta, "rope_type": "default"},
        "tie_word_embeddings": model.tie_word_embeddings,
    }

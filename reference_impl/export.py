"""The trainer's model and settings in Hugging Face's terms, so that transformers and peft can train the same."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from harness.system.protocol import CheckpointExport
from reference_impl.checkpoint import WeightSource, weight_shapes
from reference_impl.config import ModelConfig
from reference_impl.lora import TRAINABLE
from reference_impl.trainer import Trainer

_PEFT_NAMES = {
    "lora_a_q": "self_attn.q_proj.lora_A.default.weight",
    "lora_b_q": "self_attn.q_proj.lora_B.default.weight",
    "lora_a_v": "self_attn.v_proj.lora_A.default.weight",
    "lora_b_v": "self_attn.v_proj.lora_B.default.weight",
    "input_norm": "input_layernorm.weight",
    "post_attn_norm": "post_attention_layernorm.weight",
}


def export_checkpoint(trainer: Trainer, groups: dict[str, list[str]]) -> CheckpointExport:
    """Return base weights dequantized to float32 under Hugging Face's names, and the settings of LoRA, clip and
    AdamW.
    """
    model, config = trainer.model_config, trainer.config
    return CheckpointExport(
        config=hugging_face_config(model),
        state=base_weights(trainer),
        lora={
            "r": config.rank,
            "lora_alpha": config.alpha,
            "lora_dropout": 0.0,
            "target_modules": ["q_proj", "v_proj"],
        },
        trainable={
            f"layers.{layer}.{name}": f"base_model.model.model.layers.{layer}.{_PEFT_NAMES[name]}"
            for layer in range(model.num_layers)
            for name in TRAINABLE
        },
        groups=groups,
        max_norm=config.max_norm,
        optimizer={
            "betas": (config.beta1, config.beta2),
            "eps": config.eps,
            "weight_decay": config.weight_decay,
        },
    )


def write_checkpoint(model: ModelConfig, source: WeightSource, directory: Path) -> Path:
    """`config.json` and the weights in bfloat16, as published checkpoints have them; gives the directory."""
    directory.mkdir(parents=True)
    weights = {name: source.tensor(name).to(torch.bfloat16).cpu() for name in weight_shapes(model)}
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(hugging_face_config(model), indent=2) + "\n", encoding="utf-8")
    return directory


def hugging_face_config(model: ModelConfig) -> dict[str, object]:
    """`config.json` of the model: Qwen2 with biased q, k and v, Llama without."""
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


def base_weights(trainer: Trainer) -> dict[str, Tensor]:
    """Return the frozen weights, and the norm gains as they are now, in float32."""
    model, shape = trainer.model, trainer.model_config
    state = {
        "model.embed_tokens.weight": model.embedding.float(),
        "lm_head.weight": model.head.float(),
        "model.norm.weight": model.final_gain,
    }
    parts = [shape.query_dim, shape.kv_dim, shape.kv_dim]
    for layer, block in enumerate(model.blocks):
        prefix, weights = f"model.layers.{layer}", block.weights
        for name, weight in zip("qkv", torch.split(weights.qkv.dense(torch.float32), parts), strict=True):
            state[f"{prefix}.self_attn.{name}_proj.weight"] = weight
        if weights.qkv_bias is not None:
            for name, bias in zip("qkv", torch.split(weights.qkv_bias.float(), parts), strict=True):
                state[f"{prefix}.self_attn.{name}_proj.bias"] = bias
        state[f"{prefix}.self_attn.o_proj.weight"] = weights.output.dense(torch.float32)
        gate, up = weights.gate_up.dense(torch.float32).chunk(2)
        state[f"{prefix}.mlp.gate_proj.weight"], state[f"{prefix}.mlp.up_proj.weight"] = gate, up
        state[f"{prefix}.mlp.down_proj.weight"] = weights.down.dense(torch.float32)
        state[f"{prefix}.input_layernorm.weight"] = block.trainable.input_norm
        state[f"{prefix}.post_attention_layernorm.weight"] = block.trainable.post_attn_norm
    return state

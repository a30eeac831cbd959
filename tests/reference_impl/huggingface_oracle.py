"""A transformers + peft twin of a trainer on the CPU: the same weights, LoRA on q and v, norms trained, float32.

Its libraries load when a twin is built: every process of a suite in parallel imports this file, and they take seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from reference_impl.config import learning_rate_at
from reference_impl.trainer import Trainer

if TYPE_CHECKING:
    from transformers import Qwen2ForCausalLM

StepFunction = Callable[[int], Tensor]


def _plain_model(trainer: Trainer) -> Qwen2ForCausalLM:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    shape = trainer.model_config
    config = Qwen2Config(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        rms_norm_eps=shape.rms_norm_eps,
        rope_parameters={"rope_theta": shape.rope_theta, "rope_type": "default"},
        tie_word_embeddings=shape.tie_word_embeddings,
    )
    model = Qwen2ForCausalLM(config).float()
    state: dict[str, Tensor] = {
        "model.embed_tokens.weight": trainer.model.embedding,
        "lm_head.weight": trainer.model.head,
        "model.norm.weight": trainer.model.final_gain,
    }
    parts = [shape.query_dim, shape.kv_dim, shape.kv_dim]
    for layer, block in enumerate(trainer.model.blocks):
        prefix, weights, dtype = f"model.layers.{layer}", block.weights, torch.float32
        assert weights.qkv_bias is not None
        for name, weight, bias in zip(
            "qkv", torch.split(weights.qkv.dense(dtype), parts), torch.split(weights.qkv_bias, parts), strict=True
        ):
            state[f"{prefix}.self_attn.{name}_proj.weight"] = weight
            state[f"{prefix}.self_attn.{name}_proj.bias"] = bias
        state[f"{prefix}.self_attn.o_proj.weight"] = weights.output.dense(dtype)
        gate, up = weights.gate_up.dense(dtype).chunk(2)
        state[f"{prefix}.mlp.gate_proj.weight"], state[f"{prefix}.mlp.up_proj.weight"] = gate, up
        state[f"{prefix}.mlp.down_proj.weight"] = weights.down.dense(dtype)
        state[f"{prefix}.input_layernorm.weight"] = block.trainable.input_norm
        state[f"{prefix}.post_attention_layernorm.weight"] = block.trainable.post_attn_norm
    model.load_state_dict(state)
    return model


def trainable_parameters(model: Any, num_layers: int) -> dict[str, torch.nn.Parameter]:
    """The twin's trained parameters under the trainer's names."""
    parameters: dict[str, torch.nn.Parameter] = {}
    for index in range(num_layers):
        layer = model.base_model.model.model.layers[index]
        for name in "qv":
            projection = getattr(layer.self_attn, f"{name}_proj")
            parameters[f"layers.{index}.lora_a_{name}"] = projection.lora_A["default"].weight
            parameters[f"layers.{index}.lora_b_{name}"] = projection.lora_B["default"].weight
        parameters[f"layers.{index}.input_norm"] = layer.input_layernorm.weight
        parameters[f"layers.{index}.post_attn_norm"] = layer.post_attention_layernorm.weight
    return parameters


def build_twin(trainer: Trainer) -> tuple[Any, StepFunction]:
    """The peft model with the trainer's current parameters, and a function that trains it on step ``index``.

    After a step the model's ``.grad`` hold the clipped gradients; the clip is `clip_grad_norm_`, layer by layer.
    """
    from peft import LoraConfig, get_peft_model

    config, shape = trainer.config, trainer.model_config
    lora = LoraConfig(r=config.rank, lora_alpha=config.alpha, lora_dropout=0.0, target_modules=["q_proj", "v_proj"])
    model = get_peft_model(_plain_model(trainer), lora)
    parameters = trainable_parameters(model, shape.num_layers)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.requires_grad_(True)
            parameter.copy_(trainer.parameters()[name])
    optimizer = torch.optim.AdamW(
        parameters.values(),
        lr=0.0,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        weight_decay=config.weight_decay,
    )

    def step(index: int) -> Tensor:
        tokens, targets = trainer.batch(index)
        optimizer.zero_grad()
        logits = model(input_ids=tokens).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        torch.autograd.backward(loss)
        for layer in range(shape.num_layers):
            prefix = f"layers.{layer}."
            torch.nn.utils.clip_grad_norm_([p for n, p in parameters.items() if n.startswith(prefix)], config.max_norm)
        optimizer.param_groups[0]["lr"] = learning_rate_at(config, index)
        optimizer.step()
        return loss.detach()

    return model, step

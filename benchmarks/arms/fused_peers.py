"""Two arms of compiled transformers with kernels of other projects. One arm uses Liger's kernels, and the other uses
Axolotl's kernels with Apple's cut cross-entropy.

Model, adapters and optimizer are those of `benchmarks.arms.huggingface`. The `facts` of an arm have the differences.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from types import MethodType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from benchmarks.arms.huggingface import compile_facts, open_model, peft_model
from benchmarks.arms.job import Job, OpenedArm


def open_liger(job: Job) -> OpenedArm:
    """Open an arm of transformers with Liger's RMSNorm, rotary embedding, SwiGLU and fused head with loss.

    The model is compiled, except for the fused head with loss, because the compiled loss would be wrong. Liger's kernel
    writes losses into slices of a buffer of zeros. For an ignored target (the last target of each row), the kernel
    writes nothing and relies on the zero in the buffer. Inductor copies each tensor that a kernel writes to. When
    Inductor copies such a slice, it reads memory beyond the end of the buffer (pytorch/pytorch#192219), so arbitrary
    values are added to the loss (linkedin/Liger-Kernel#1338). On an H200 the compiled loss was too large by 1.64 at 4 x
    128 tokens, and correct at 4 x 512.
    """
    liger = import_module("liger_kernel.transformers")
    liger.apply_liger_kernel_to_qwen2(rope=True, rms_norm=True, swiglu=True, fused_linear_cross_entropy=True)
    patched: Any = import_module("liger_kernel.transformers.model.qwen2")
    untraced: Any = torch.compiler.disable
    patched.LigerForCausalLMLoss = untraced(patched.LigerForCausalLMLoss)
    model = peft_model(job)
    compiled = torch.compile(model, dynamic=False)
    opened = open_model(job, model, compiled)
    opened.facts["loss"] = "Liger's, not compiled"
    return replace(opened, after_first_step=compile_facts)


def open_axolotl(job: Job) -> OpenedArm:
    """Open an arm with transformers, Axolotl's LoRA kernels and Apple's cut cross-entropy. Everything else is compiled.

    Dynamo cannot trace the autograd functions of Axolotl's kernels, because an intermediate result aliases an input.
    Therefore Dynamo breaks its graph around both kernels of each layer. Axolotl installs its kernels by rewriting the
    source of `Qwen2Attention.forward`, but the package that does this needs the whole Axolotl trainer. `_attention` is
    therefore a copy of this method that calls Axolotl's `apply_qkv`.
    """
    kernels = import_module("axolotl.kernels.lora")
    cut_loss = import_module("cut_cross_entropy").linear_cross_entropy
    model = peft_model(job)
    untraced: Any = torch.compiler.disable
    qkv, mlp = untraced(kernels.apply_lora_qkv), untraced(kernels.apply_lora_mlp_swiglu)
    causal = model.base_model.model
    for layer in causal.model.layers:
        layer.self_attn.apply_qkv = MethodType(qkv, layer.self_attn)
        layer.self_attn.forward = MethodType(_attention, layer.self_attn)
        layer.mlp.forward = MethodType(mlp, layer.mlp)
    decoder: Any = torch.compile(causal.model, dynamic=False)

    def forward(input_ids: Tensor, labels: Tensor) -> SimpleNamespace:
        hidden = decoder(input_ids=input_ids).last_hidden_state
        return SimpleNamespace(loss=cut_loss(hidden, causal.lm_head.weight, labels, shift=True))

    return replace(open_model(job, model, forward), after_first_step=compile_facts)


def _attention(
    self: Any,
    hidden_states: Tensor,
    position_embeddings: tuple[Tensor, Tensor],
    attention_mask: Tensor | None,
    **_: object,
) -> tuple[Tensor, None]:
    """Do the same as `Qwen2Attention.forward` without a cache. hidden_states and the first result are [B, S, H]."""
    rotate = import_module("transformers.models.qwen2.modeling_qwen2").apply_rotary_pos_emb
    shape = (*hidden_states.shape[:-1], -1, self.head_dim)
    query, key, value = (part.view(shape).transpose(1, 2) for part in self.apply_qkv(hidden_states))
    query, key = rotate(query, key, *position_embeddings)
    attended = torch.nn.functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=attention_mask,
        is_causal=attention_mask is None,
        scale=self.scaling,
        enable_gqa=True,
    )
    output: Tensor = self.o_proj(attended.transpose(1, 2).reshape(hidden_states.shape[0], hidden_states.shape[1], -1))
    return output, None

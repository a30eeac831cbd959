"""Comparisons of each kernel of a training step with an independent reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from harness.system.protocol import KernelComparison
from reference_impl.step_cases import (
    adamw,
    attention,
    cross_entropy,
    fp8,
    fp8_products,
    head_logits,
    lora_gradients,
    nf4,
    norms,
    products,
    rotation,
    swiglu,
)
from reference_impl.step_cases.inputs import Setting

STEP_OPERATIONS: dict[str, Callable[[Setting], Iterator[KernelComparison]]] = {
    "attention.forward": attention.forward,
    "attention.backward": attention.backward,
    "rope.tables": rotation.tables,
    "rope.add_rotate": rotation.add_rotate,
    "rms_norm.forward": norms.forward,
    "rms_norm.add_forward": norms.add_forward,
    "rms_norm.backward": norms.backward,
    "lora_gradients": lora_gradients.write,
    "swiglu.forward": swiglu.forward,
    "swiglu.backward": swiglu.backward,
    "products.up_swiglu": products.up_swiglu,
    "products.down_swiglu_backward": products.down_swiglu_backward,
    "products.add": products.add,
    "products.input_gradient": products.input_gradient,
    "cross_entropy.forward_backward": cross_entropy.forward_backward,
    "cross_entropy.from_statistics": cross_entropy.from_statistics,
    "products.head_logits": head_logits.head_logits,
    "nf4.dequantize": nf4.dequantize,
    "adamw.update": adamw.update,
    "fp8.rows": fp8.rows,
    "fp8.norm": fp8.norm,
    "fp8.norm_backward": fp8.norm_backward,
    "fp8.swiglu": fp8.swiglu,
    "fp8.swiglu_backward": fp8.swiglu_backward,
    "fp8.weight": fp8.weight,
    "fp8.loss": fp8.loss,
    "fp8_products.gate_up": fp8_products.gate_up,
    "fp8_products.act": fp8_products.act,
    "fp8_products.grad_gate_up": fp8_products.grad_gate_up,
}
"""Operation -> function that yields comparisons of the operation for one setting, at the model's and ragged shapes."""

FLOAT32_ALONE = ("rope.tables", "adamw.update")
"""Operations whose operands are always fp32, for any compute dtype of the trainer."""

_PRODUCTS = ("products.", "fp8_products.")
BFLOAT16_ALONE = tuple(operation for operation in STEP_OPERATIONS if operation.startswith(_PRODUCTS))
"""Operations whose kernels support only bfloat16."""

__all__ = ["BFLOAT16_ALONE", "FLOAT32_ALONE", "STEP_OPERATIONS", "Setting"]

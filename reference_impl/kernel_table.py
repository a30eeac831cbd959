"""The table of kernels that `kernel_match` claims compare. A planted fault replaces entries of the table."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from reference_impl import ops
from reference_impl.config import GemmPath, TrainConfig
from reference_impl.gemm import BackwardGemm
from reference_impl.kernels import registry
from reference_impl.optimizer import FlatAdamW

Product = Callable[[Tensor, Tensor, Tensor, bool], Tensor]
"""A backward product. Its arguments are (grad_c, b, out, accumulate) or (a, grad_c, out, accumulate). It returns
out."""


@dataclass
class KernelTable:
    """The functions whose results are compared. Each has the signature of its naive twin in `kernels/<op>/naive.py`."""

    backward_a: Product
    backward_b: Product
    squared_sum_partials: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    clip_scale_reduce: Callable[[Tensor, Tensor, float, float, Tensor, Tensor], None]
    scale_apply_: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], None]
    gain_partials: Callable[[Tensor, int], Tensor]
    backward_to_partials: Callable[..., Tensor]
    reduce_gains: Callable[[Tensor, Tensor], None]
    rms_norm_forward: Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]]
    rms_norm_add_forward: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor, Tensor]]
    rope_tables: Callable[[int, int, float, torch.device], tuple[Tensor, Tensor]]
    rope_add_rotate_: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, int, int, int], None]
    attention_forward: Callable[..., tuple[Tensor, Tensor]]
    attention_backward: Callable[..., Tensor]
    swiglu_forward: Callable[[Tensor], Tensor]
    swiglu_backward: Callable[..., Tensor]
    up_swiglu: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    down_swiglu_backward: Callable[..., Tensor]
    add_product: Callable[[Tensor, Tensor, Tensor], Tensor]
    input_gradient: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    lora_gradients: Callable[..., None]
    cross_entropy_forward_backward_: Callable[[Tensor, Tensor, Tensor | float], Tensor]
    cross_entropy_from_statistics_: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor | float], Tensor]
    head_logits: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    nf4_dequantize: Callable[..., Tensor]
    adamw: Callable[[Tensor, TrainConfig], FlatAdamW]
    fp8_quantize_rows: Callable[[Tensor], tuple[Tensor, Tensor]]
    fp8_norm_add_forward: Callable[..., tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor, Tensor]]
    fp8_norm_backward_to_partials: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]
    fp8_swiglu_forward: Callable[[Tensor], tuple[Tensor, Tensor]]
    fp8_swiglu_backward: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
    fp8_up_swiglu: Callable[..., tuple[Tensor, Tensor, Tensor]]
    fp8_down_swiglu_backward: Callable[..., tuple[Tensor, Tensor]]
    fp8_from_nf4: Callable[[Tensor, Tensor, Tensor, int], Tensor]
    fp8_from_nf4_transposed: Callable[[Tensor, Tensor, Tensor, int], Tensor]
    fp8_loss: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def interpret_kernels() -> None:
    """Make Triton interpret kernels in this process. Afterwards the process cannot compile kernels.

    Raises RuntimeError if Triton is already imported, because Triton chooses between interpreting and compiling at its
    import.
    """
    if os.environ.get("TRITON_INTERPRET") == "1":
        return
    if "triton" in sys.modules:
        raise RuntimeError(
            "Triton cannot interpret kernels, because it was already imported; compare the kernels in a new process"
        )
    os.environ["TRITON_INTERPRET"] = "1"


def kernel_table(path: GemmPath, device: torch.device) -> KernelTable:
    """Return the table of all kernels, with the backward products of `path`. On a CPU, Triton interprets them."""
    if device.type == "cpu":
        interpret_kernels()
    clip, rms_norm = registry.load("clip"), registry.load("rms_norm")
    attention, swiglu, products = registry.load("attention"), registry.load("swiglu"), registry.load("products")
    cross_entropy = registry.load("cross_entropy")
    fp8_norm, fp8_swiglu, fp8_nf4 = registry.load("fp8_norm"), registry.load("fp8_swiglu"), registry.load("fp8_nf4")
    fp8_products = registry.load("fp8_products")
    backward_a, backward_b = _products(path)
    return KernelTable(
        backward_a,
        backward_b,
        clip.squared_sum_partials,
        clip.clip_scale_reduce,
        clip.scale_apply_,
        rms_norm.gain_partials,
        rms_norm.backward_to_partials,
        rms_norm.reduce_gains,
        rms_norm.forward,
        rms_norm.add_forward,
        ops.rope_tables,
        registry.load("rope").add_rotate_,
        attention.forward,
        attention.backward,
        swiglu.forward,
        swiglu.backward,
        products.up_swiglu,
        products.down_swiglu_backward,
        products.add,
        products.input_gradient,
        registry.load("lora_gradients").write,
        cross_entropy.forward_backward_,
        cross_entropy.from_statistics_,
        products.head_logits,
        registry.load("nf4").dequantize,
        FlatAdamW,
        registry.load("fp8_rows").quantize,
        fp8_norm.add_forward,
        fp8_norm.backward_to_partials,
        fp8_swiglu.forward,
        fp8_swiglu.backward,
        fp8_products.up_swiglu,
        fp8_products.down_swiglu_backward,
        fp8_nf4.rows,
        fp8_nf4.transposed,
        registry.load("fp8_loss").forward_backward,
    )


def _products(path: GemmPath) -> tuple[Product, Product]:
    if path == "tiled":
        tiled = registry.load("gemm")
        return tiled.backward_a, tiled.backward_b
    return _dispatched(path)


def _dispatched(path: GemmPath) -> tuple[Product, Product]:
    gemm = BackwardGemm(path)

    def backward_a(grad_c: Tensor, b: Tensor, out: Tensor, accumulate: bool) -> Tensor:
        return gemm.grad_a(grad_c, b, out, accumulate=accumulate)

    def backward_b(a: Tensor, grad_c: Tensor, out: Tensor, accumulate: bool) -> Tensor:
        return gemm.grad_b(a, grad_c, out, accumulate=accumulate)

    return backward_a, backward_b


def trainer_table(path: GemmPath) -> KernelTable:
    """Return a table of the functions that the trainer calls. The functions use kernels for CUDA tensors, and plain
    torch otherwise."""
    backward_a, backward_b = _dispatched(path)
    return KernelTable(
        backward_a,
        backward_b,
        ops.clip_squared_sum_partials,
        ops.clip_scale_reduce,
        ops.clip_scale_apply_,
        ops.rms_norm_gain_partials,
        ops.rms_norm_backward_to_partials,
        ops.rms_norm_reduce_gains,
        ops.rms_norm_forward,
        ops.rms_norm_add_forward,
        ops.rope_tables,
        ops.rope_add_rotate_,
        ops.attention_forward,
        ops.attention_backward,
        ops.swiglu_forward,
        ops.swiglu_backward,
        ops.up_swiglu,
        ops.down_swiglu_backward,
        ops.add_product,
        ops.input_gradient,
        ops.lora_gradients,
        ops.cross_entropy_forward_backward_,
        ops.cross_entropy_from_statistics_,
        ops.head_logits,
        ops.nf4_dequantize,
        FlatAdamW,
        ops.fp8_quantize_rows,
        ops.fp8_norm_add_forward,
        ops.fp8_norm_backward_to_partials,
        ops.fp8_swiglu_forward,
        ops.fp8_swiglu_backward,
        ops.fp8_up_swiglu,
        ops.fp8_down_swiglu_backward,
        ops.fp8_from_nf4,
        ops.fp8_from_nf4_transposed,
        ops.fp8_loss_forward_backward,
    )

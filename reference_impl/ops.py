"""The trainer's operators. Each calls a kernel for CUDA tensors, and the plain torch function for all other tensors.

Each operator corresponds to a function with the same signature in ``kernels/<op>/naive.py``. The docstring of that
function gives shapes and formulas. ``kernel.py`` is imported at the first use of an operator for CUDA tensors, so a
machine without a GPU driver imports no Triton. I: intermediate size.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType

import torch
from torch import Tensor


@cache
def _implementation(op: str, module: str) -> ModuleType:
    return import_module(f"reference_impl.kernels.{op}.{module}")


def _pick(op: str, tensor: Tensor) -> ModuleType:
    return _implementation(op, "kernel" if tensor.device.type == "cuda" else "naive")


def nf4_dequantize(
    codes: Tensor, absmax: Tensor, rows: int, cols: int, dtype: torch.dtype, out: Tensor | None = None
) -> Tensor:
    weight: Tensor = _pick("nf4", codes).dequantize(codes, absmax, rows, cols, dtype, out)
    return weight


def rms_norm_forward(x: Tensor, gain: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    result: tuple[Tensor, Tensor] = _pick("rms_norm", x).forward(x, gain, eps)
    return result


def rms_norm_add_forward(x: Tensor, residual: Tensor, gain: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    result: tuple[Tensor, Tensor, Tensor] = _pick("rms_norm", x).add_forward(x, residual, gain, eps)
    return result


def rms_norm_backward(
    grad_y: Tensor,
    x: Tensor,
    gain: Tensor,
    rstd: Tensor,
    grad_residual: Tensor | None = None,
    grad_gain: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    result: tuple[Tensor, Tensor] = _pick("rms_norm", x).backward(grad_y, x, gain, rstd, grad_residual, grad_gain)
    return result


def rms_norm_gain_partials(x: Tensor, norms: int) -> Tensor:
    result: Tensor = _pick("rms_norm", x).gain_partials(x, norms)
    return result


def rms_norm_backward_to_partials(
    grad_y: Tensor, x: Tensor, gain: Tensor, rstd: Tensor, partials: Tensor, grad_residual: Tensor | None = None
) -> Tensor:
    result: Tensor = _pick("rms_norm", x).backward_to_partials(grad_y, x, gain, rstd, partials, grad_residual)
    return result


def rms_norm_reduce_gains(partials: Tensor, grad_gains: Tensor) -> None:
    _pick("rms_norm", partials).reduce_gains(partials, grad_gains)


def rope_tables(seq_len: int, head_dim: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    result: tuple[Tensor, Tensor] = _implementation("rope", "naive").tables(seq_len, head_dim, theta, device)
    return result


def rope_add_rotate_(
    qkv: Tensor,
    low_rank: Tensor,
    b: Tensor,
    cos: Tensor,
    sin: Tensor,
    seq_len: int,
    heads_to_rotate: int,
    head_dim: int,
) -> None:
    _pick("rope", qkv).add_rotate_(qkv, low_rank, b, cos, sin, seq_len, heads_to_rotate, head_dim)


def attention_forward(
    qkv: Tensor, batch: int, seq_len: int, heads: int, kv_heads: int, head_dim: int
) -> tuple[Tensor, Tensor]:
    implementation = _pick("attention", qkv)
    result: tuple[Tensor, Tensor] = implementation.forward(qkv, batch, seq_len, heads, kv_heads, head_dim)
    return result


def attention_backward(
    grad_output: Tensor,
    qkv: Tensor,
    output: Tensor,
    log_sum_exp: Tensor,
    cos: Tensor,
    sin: Tensor,
    batch: int,
    seq_len: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
) -> Tensor:
    saved = (qkv, output, log_sum_exp)
    result: Tensor = _pick("attention", qkv).backward(
        grad_output, *saved, cos, sin, batch, seq_len, heads, kv_heads, head_dim
    )
    return result


def swiglu_forward(gate_up: Tensor) -> Tensor:
    result: Tensor = _pick("swiglu", gate_up).forward(gate_up)
    return result


def swiglu_backward(grad_act: Tensor, gate_up: Tensor, out: Tensor | None = None) -> Tensor:
    result: Tensor = _pick("swiglu", gate_up).backward(grad_act, gate_up, out)
    return result


def up_swiglu(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return gate_up = x W^T [tokens, 2I], act = silu(gate) * up [tokens, I]; x [tokens, hidden], weight [2I, hidden].

    If there is a fused kernel for this shape, it computes both results. Otherwise a product computes gate_up, and
    `swiglu_forward` computes act.
    """
    products = _pick("products", x)
    if products.serves_up(*x.shape, weight.shape[0] // 2, x.dtype):
        result: tuple[Tensor, Tensor] = products.up_swiglu(x, weight)
        return result
    return up_then_swiglu(x, weight)


def up_then_swiglu(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Do the same as `up_swiglu` without the fused kernel: by a product, then `swiglu_forward`."""
    gate_up = x @ weight.t()
    return gate_up, swiglu_forward(gate_up)


def down_swiglu_backward(grad: Tensor, weight: Tensor, gate_up: Tensor, out: Tensor | None = None) -> Tensor:
    """Return the gradient of gate_up [tokens, 2I], in `out` if given; grad [tokens, hidden], weight [hidden, I].

    If there is a fused kernel for this shape, the kernel computes the gradient. Otherwise a product and
    `swiglu_backward` do.
    """
    products = _pick("products", grad)
    if products.serves_down_backward(*grad.shape, weight.shape[1], grad.dtype):
        result: Tensor = products.down_swiglu_backward(grad, weight, gate_up, out)
        return result
    return down_then_swiglu_backward(grad, weight, gate_up, out)


def down_then_swiglu_backward(grad: Tensor, weight: Tensor, gate_up: Tensor, out: Tensor | None = None) -> Tensor:
    """Do the same as `down_swiglu_backward` without the fused kernel: by a product, then `swiglu_backward`."""
    return swiglu_backward(grad @ weight, gate_up, out)


def adds_products(residual: Tensor, query: int, intermediate: int) -> bool:
    """Return True if `add_product` can add the outputs of attention and of the MLP to residual [tokens, hidden].

    query, intermediate: input sizes of the last matrices of attention and of the MLP. If the result is False, the next
    norm adds each output to the residual.
    """
    added: bool = _pick("products", residual).adds(*residual.shape, query, intermediate, residual.dtype)
    return added


def add_product(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    result: Tensor = _pick("products", x).add(x, weight, residual)
    return result


def input_gradient(grad: Tensor, weight: Tensor, grad_extra: Tensor, weight_extra: Tensor) -> Tensor:
    """Return grad [T, outputs] @ weight [outputs, hidden] + grad_extra [T, rank] @ weight_extra [rank, hidden].

    T: tokens. If there is a fused kernel for this shape, the kernel computes the sum. Otherwise two products do.
    """
    products = _pick("products", grad)
    if products.serves_input_gradient(*grad.shape, weight.shape[1], weight_extra.shape[0], grad.dtype):
        result: Tensor = products.input_gradient(grad, weight, grad_extra, weight_extra)
        return result
    return (grad @ weight).addmm_(grad_extra, weight_extra)


def lora_gradients(
    grad_qkv: Tensor,
    low_rank: Tensor,
    grad_low_rank: Tensor,
    rstd: Tensor,
    residual: Tensor,
    gain_partials: Tensor,
    grad_b: Tensor,
    grad_a: Tensor,
    grad_norms: Tensor,
) -> None:
    read = (grad_qkv, low_rank, grad_low_rank, rstd, residual, gain_partials)
    _pick("lora_gradients", grad_qkv).write(*read, grad_b, grad_a, grad_norms)


def cross_entropy_forward_backward_(logits: Tensor, targets: Tensor, scale: Tensor | float) -> Tensor:
    result: Tensor = _pick("cross_entropy", logits).forward_backward_(logits, targets, scale)
    return result


def head_logits(x: Tensor, head: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    result: tuple[Tensor, Tensor] = _pick("products", x).head_logits(x, head, out)
    return result


def cross_entropy_from_statistics_(
    logits: Tensor, maxima: Tensor, totals: Tensor, targets: Tensor, scale: Tensor | float
) -> Tensor:
    result: Tensor = _pick("cross_entropy", logits).from_statistics_(logits, maxima, totals, targets, scale)
    return result


def head_loss(x: Tensor, head: Tensor, targets: Tensor, scale: Tensor | float, out: Tensor) -> Tensor:
    """Return the loss [T]; x [T, hidden], head [V, hidden]. Write the logits' gradient into `out` [T, V].

    T: tokens. V: vocabulary. If there is a kernel `head_logits` for this shape, the product also writes the statistics
    of the softmax, so that the loss reads the logits only once. Otherwise do the same as `head_then_loss`.
    """
    if _pick("products", x).serves_head(*x.shape, head.shape[0], x.dtype):
        maxima, totals = head_logits(x, head, out)
        return cross_entropy_from_statistics_(out, maxima, totals, targets, scale)
    return head_then_loss(x, head, targets, scale, out)


def head_then_loss(x: Tensor, head: Tensor, targets: Tensor, scale: Tensor | float, out: Tensor) -> Tensor:
    """Do the same as `head_loss`, always with torch's product and `cross_entropy_forward_backward_`."""
    return cross_entropy_forward_backward_(torch.mm(x, head.t(), out=out), targets, scale)


def clip_squared_sum_partials(flat: Tensor, starts: Tensor, counts: Tensor, out: Tensor) -> Tensor:
    result: Tensor = _pick("clip", flat).squared_sum_partials(flat, starts, counts, out)
    return result


def clip_scale_reduce(
    partials: Tensor, group_starts: Tensor, max_norm: float, eps: float, norms: Tensor, scales: Tensor
) -> None:
    _pick("clip", partials).clip_scale_reduce(partials, group_starts, max_norm, eps, norms, scales)


def clip_scale_apply_(flat: Tensor, scales: Tensor, starts: Tensor, counts: Tensor, groups: Tensor) -> None:
    _pick("clip", flat).scale_apply_(flat, scales, starts, counts, groups)


def fp8_quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    result: tuple[Tensor, Tensor] = _pick("fp8_rows", x).quantize(x)
    return result


def fp8_norm_add_forward(
    x: Tensor, residual: Tensor | None, gain: Tensor, eps: float, *, keep: bool
) -> tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor, Tensor]:
    result: tuple[Tensor, Tensor | None, Tensor, Tensor, Tensor, Tensor]
    result = _pick("fp8_norm", x).add_forward(x, residual, gain, eps, keep=keep)
    return result


def fp8_norm_backward_to_partials(
    grad_y: Tensor, x: Tensor, gain: Tensor, rstd: Tensor, partials: Tensor, grad_residual: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    result: tuple[Tensor, Tensor, Tensor, Tensor]
    result = _pick("fp8_norm", x).backward_to_partials(grad_y, x, gain, rstd, partials, grad_residual)
    return result


def fp8_swiglu_forward(gate_up: Tensor) -> tuple[Tensor, Tensor]:
    result: tuple[Tensor, Tensor] = _pick("fp8_swiglu", gate_up).forward(gate_up)
    return result


def fp8_swiglu_backward(grad_act: Tensor, gate_up: Tensor) -> tuple[Tensor, Tensor]:
    result: tuple[Tensor, Tensor] = _pick("fp8_swiglu", gate_up).backward(grad_act, gate_up)
    return result


def fp8_serves(x: Tensor, intermediate: int, dtype: torch.dtype) -> bool:
    """Return True if `fp8_up_swiglu` and `fp8_down_swiglu_backward` support x [tokens, hidden] with results in
    ``dtype``."""
    served: bool = _pick("fp8_products", x).serves(*x.shape, intermediate, dtype)
    return served


def fp8_up_swiglu(
    x: Tensor, x_scale: Tensor, weight: Tensor, weight_scale: Tensor, norms: Tensor, limit: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    result: tuple[Tensor, Tensor, Tensor]
    result = _pick("fp8_products", x).up_swiglu(x, x_scale, weight, weight_scale, norms, limit)
    return result


def fp8_down_swiglu_backward(
    grad: Tensor,
    grad_scale: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    gate_up: Tensor,
    norms: Tensor,
    input_norms: Tensor,
    limit: Tensor,
) -> tuple[Tensor, Tensor]:
    rest = (weight, weight_scale, gate_up, norms, input_norms, limit)
    result: tuple[Tensor, Tensor] = _pick("fp8_products", grad).down_swiglu_backward(grad, grad_scale, *rest)
    return result


def fp8_from_nf4(codes: Tensor, absmax: Tensor, inverse: Tensor, columns: int) -> Tensor:
    data: Tensor = _pick("fp8_nf4", codes).rows(codes, absmax, inverse, columns)
    return data


def fp8_from_nf4_transposed(codes: Tensor, absmax: Tensor, inverse: Tensor, row_count: int) -> Tensor:
    data: Tensor = _pick("fp8_nf4", codes).transposed(codes, absmax, inverse, row_count)
    return data


def fp8_loss_forward_backward(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    result: tuple[Tensor, Tensor] = _pick("fp8_loss", logits).forward_backward(logits, targets)
    return result

"""Products of the MLP and the head, fused with neighboring operations, for Hopper; `product.cuh` explains the design.

Legend: T tokens, H hidden, I intermediate, K summed dimension, V vocabulary, P panels of 192 columns of the vocabulary.

    gate_up = x W^T,  act = silu(gate) * up                                    `up_swiglu`
    grad_act = grad W,  grad_gate_up = SwiGLU's backward of grad_act           `down_swiglu_backward`
    residual + x W^T                                                           `add`
    grad W + grad_extra W_extra (two projections of one input)                 `input_gradient`
    logits = x W^T,  maxima and sums of exponentials of each panel             `head_logits`

If a library computes a product, it writes the product to memory, and the next kernel reads it from there. In these
kernels, one warp group computes SwiGLU or the addition on its part of the product before it writes the result, while
the other warp group multiplies. For 4 sequences of 2048 tokens on an H100, `up_swiglu` takes 620 us instead of 820,
`down_swiglu_backward` 420 us instead of 576, and the addition takes no extra time. All sums are in fp32, in fixed
order.
"""

from __future__ import annotations

import functools
from pathlib import Path

import torch
from torch import Tensor

from reference_impl.kernels.cuda_parameters import Parameter
from reference_impl.kernels.cuda_source import Address, CudaFunction, TensorMap
from reference_impl.kernels.products.naive import PANEL
from reference_impl.kernels.registry import (
    KernelSpec,
    Pointer,
    launch,
    load,
    multiprocessors,
    require_shape,
    torch_dtype,
)
from reference_impl.kernels.target import hopper

_FOLDER = Path(__file__).parent
WARPS = 12  # number of warps: one warp group loads, and two warp groups multiply
STAGES = 4
ROWS, COLUMNS, _DEPTH = 128, PANEL, 64  # rows and columns of a tile, and number of terms of a stage
CLUSTER = 2
# Bytes of shared memory for alignment, ring of stages and barriers. Epilogues, the code after a product, use the rest.
SHARED_BYTES = 1024 + STAGES * (ROWS + COLUMNS) * 128 + 192
# Number of pairs of tiles, one below the other, that all thread blocks compute at about the same time. At 8192 tokens,
# the kernel took 628 us with 4 pairs, 613 us with 8, and 634 us with 16.
GROUP = 8
_CHUNK = 64  # number of rows, and usually of columns, of the part ("chunk") that an epilogue moves at a time
_CHUNK_BYTES = _CHUNK * _CHUNK * 2
_NARROW = 32  # number of columns of a chunk in the epilogues for gate and up
_NARROW_BYTES = _CHUNK * _NARROW * 2
# Smallest numbers of tokens for which `up_swiglu`, `down_swiglu_backward` and `add` are used. A step with fewer tokens
# has too few tiles for all multiprocessors; a library has kernels with smaller tiles. Of each two times in us, the
# first is that of a library's product followed by separate kernels, the second that of the fused kernel:
# - `up_swiglu`, H100: 52.2 and 48.7 at 512 tokens, 190 and 158 at 2048.
# - `down_swiglu_backward`, H100: 41.2 and 38.1 at 512 tokens, 145 and 108 at 2048. On an H200, with one
#   thread that moves the chunks of an epilogue: 35.5 and 34.7 at 512 tokens, 130 and 96 at 2048.
# - `add`, H100: 31.1 and 66.7 at 512 tokens, 72.9 and 76.2 at 2048, 145 and 149 at 4096. Here the first time is for the
#   library's product alone. The separate kernel for the addition would take additional time.
_UP_FROM = 512
_DOWN_BACKWARD_FROM = 512
_ADD_FROM = 4096
# Smallest number of tokens, and smallest vocabulary, for which `head_logits` is used instead of a library's product.
# The times include the loss and the product for the gradient; after the library's product the loss reads the logits
# twice, after `head_logits` once. Library against `head_logits`: 863 against 818 us for 512 tokens and a vocabulary of
# 151,936; 552 against 647 us for 300 tokens and this vocabulary; 194 against 203 us for a vocabulary of 32,000.
_HEAD_FROM = 512
_HEAD_VOCABULARY_FROM = 100_000


def serves_up(tokens: int, hidden: int, intermediate: int, dtype: torch.dtype) -> bool:
    """Return True if `up_swiglu` supports these sizes and `dtype`, and is faster than separate kernels."""
    return _serves(tokens, _UP_FROM, dtype, hidden, intermediate)


def serves_down_backward(tokens: int, hidden: int, intermediate: int, dtype: torch.dtype) -> bool:
    """Return True if `down_swiglu_backward` supports these sizes and `dtype`, and is faster than separate kernels."""
    return _serves(tokens, _DOWN_BACKWARD_FROM, dtype, hidden, intermediate)


def adds(tokens: int, hidden: int, query: int, intermediate: int, dtype: torch.dtype) -> bool:
    """Return True if `add` supports both products that are added to the residual stream, with `query` and
    `intermediate` terms, and is faster than separate kernels."""
    return _serves(tokens, _ADD_FROM, dtype, hidden, query, intermediate)


def serves_input_gradient(tokens: int, outputs: int, hidden: int, extra: int, dtype: torch.dtype) -> bool:
    """Return True if `input_gradient` supports grad [tokens, outputs], a weight [outputs, hidden] and rank `extra`."""
    fits = extra % 8 == 0 and 0 < extra <= _DEPTH
    return fits and _serves(tokens, _ADD_FROM, dtype, outputs, hidden)


def serves_head(tokens: int, hidden: int, vocabulary: int, dtype: torch.dtype) -> bool:
    """Return True if `head_logits` supports these sizes and `dtype`, and is faster than separate kernels."""
    return vocabulary >= _HEAD_VOCABULARY_FROM and _serves(tokens, _HEAD_FROM, dtype, hidden, vocabulary)


def _serves(tokens: int, least: int, dtype: torch.dtype, *widths: int) -> bool:
    # The copy engine requires rows whose size is a multiple of 16 bytes. A panel (the columns of one tile) must not be
    # wider than the matrix.
    fits = all(width % 8 == 0 and width >= COLUMNS for width in widths)
    return hopper() and dtype is torch.bfloat16 and tokens >= least and fits


def blocks() -> int:
    """Return the number of thread blocks. There is one block for each multiprocessor, rounded to whole clusters.

    Each block computes many tiles.
    """
    return multiprocessors() // CLUSTER * CLUSTER


def _spec(
    name: str,
    shape: tuple[int, int, int],
    pointers: tuple[str, ...],
    parameters: tuple[Parameter, ...],
    epilogue_bytes: int,
    extra: int = 0,
    group: int = GROUP,
    statistics: tuple[str, ...] = (),
) -> KernelSpec:
    """Return the spec (description) of the kernel `name` with the given pointers and launch parameters.

    shape: rows, width and depth of the product. pointers: names of the bf16 tensors. epilogue_bytes: shared memory of
    one warp group's epilogue. extra, group: the macros EXTRA and GROUP. statistics: further tensors (fp32).
    """
    tokens, width, depth = shape
    return KernelSpec(
        op=f"products.{name}",
        shape=(*shape, extra) if extra else shape,
        dtype="bf16",
        constants=(("columns", COLUMNS),),
        num_warps=WARPS,
        num_stages=STAGES,
        function=CudaFunction(
            _FOLDER / f"{name}.cu",
            f"products_{name}",
            parameters,
            shared_memory=SHARED_BYTES + 2 * epilogue_bytes,
            cluster=CLUSTER,
        ),
        pointers=(
            *(Pointer(pointer, "bf16") for pointer in pointers),
            *(Pointer(pointer, "fp32") for pointer in statistics),
        ),
        constexprs={"M": tokens, "WIDTH": width, "K": depth, "EXTRA": extra, "COLUMNS": COLUMNS, "GROUP": group},
        grid=(blocks(),),
    )


def _rows(pointer: int, rows: int, columns: int, box_rows: int) -> TensorMap:
    """Return the tensor map of an operand [rows, columns] that is summed over its columns."""
    return TensorMap(pointer, (columns, rows), (columns,), (_DEPTH, box_rows))


def _columns(pointer: int, rows: int, columns: int) -> TensorMap:
    """Return the tensor map of an operand [rows, columns] that is summed over its rows. A box is half a stage."""
    return TensorMap(pointer, (columns, rows), (columns,), (64, _DEPTH // 2))


def _chunks(pointer: int, rows: int, columns: int, width: int = _CHUNK) -> TensorMap:
    return TensorMap(pointer, (columns, rows), (columns,), (width, _CHUNK), swizzle=2 * width)


def _gated_chunks(pointer: int, rows: int, columns: int) -> TensorMap:
    """Return the tensor map of a matrix [rows, 2 * columns] with the columns of gate and of up. A box contains only
    columns of gate, or only columns of up."""
    return TensorMap(pointer, (columns, 2, rows), (columns, 2 * columns), (_NARROW, 1, _CHUNK), swizzle=2 * _NARROW)


@functools.cache
def up_spec(tokens: int, hidden: int, intermediate: int) -> KernelSpec:
    """Return the spec (description) of the kernel that `up_swiglu` launches."""
    return _spec(
        "up_swiglu",
        (tokens, intermediate, hidden),
        ("x", "weight", "gate_up", "act"),
        (
            _rows(0, tokens, hidden, ROWS),
            _rows(1, 2 * intermediate, hidden, COLUMNS // 2),
            _gated_chunks(2, tokens, intermediate),
            _chunks(3, tokens, intermediate, _NARROW),
        ),
        epilogue_bytes=2 * 3 * _NARROW_BYTES,  # two buffers, each for gate, up and their activation
    )


@functools.cache
def down_backward_spec(tokens: int, hidden: int, intermediate: int) -> KernelSpec:
    """Return the spec (description) of the kernel that `down_swiglu_backward` launches."""
    return _spec(
        "down_swiglu_backward",
        (tokens, intermediate, hidden),
        ("grad", "weight", "gate_up", "grad_gate_up"),
        (
            _rows(0, tokens, hidden, ROWS),
            _columns(1, hidden, intermediate),
            _gated_chunks(2, tokens, intermediate),
            _gated_chunks(3, tokens, intermediate),
        ),
        epilogue_bytes=4 * 2 * _NARROW_BYTES,  # four buffers, each for gate and up
    )


@functools.cache
def add_spec(tokens: int, summed: int, hidden: int) -> KernelSpec:
    """Return the spec (description) of the kernel that `add` launches."""
    return _spec(
        "add",
        (tokens, hidden, summed),
        ("x", "weight", "residual", "out"),
        (
            _rows(0, tokens, summed, ROWS),
            _rows(1, hidden, summed, COLUMNS // 2),
            _chunks(2, tokens, hidden),
            _chunks(3, tokens, hidden),
        ),
        epilogue_bytes=2 * _CHUNK_BYTES,
    )


@functools.cache
def input_gradient_spec(tokens: int, outputs: int, hidden: int, extra: int) -> KernelSpec:
    """Return the spec (description) of the kernel that `input_gradient` launches."""
    return _spec(
        "input_gradient",
        (tokens, hidden, outputs),
        ("grad", "weight", "grad_extra", "weight_extra", "out"),
        (
            _rows(0, tokens, outputs, ROWS),
            _columns(1, outputs, hidden),
            _rows(2, tokens, extra, ROWS),
            _columns(3, extra, hidden),
            _chunks(4, tokens, hidden),
        ),
        epilogue_bytes=2 * _CHUNK_BYTES,
        extra=extra,
    )


@functools.cache
def head_spec(tokens: int, hidden: int, vocabulary: int) -> KernelSpec:
    """Return the spec (description) of the kernel that `head_logits` launches."""
    return _spec(
        "head_logits",
        (tokens, vocabulary, hidden),
        ("x", "head", "logits"),
        (
            _rows(0, tokens, hidden, ROWS),
            _rows(1, vocabulary, hidden, COLUMNS // 2),
            _chunks(2, tokens, vocabulary),
            Address(3),
            Address(4),
        ),
        epilogue_bytes=2 * _CHUNK_BYTES,
        # Put all rows of tiles in one group, so that each panel of the head is read from memory only once.
        group=-(-tokens // (2 * ROWS)),
        statistics=("maxima", "totals"),
    )


def specializations(
    *, tokens: int, hidden: int, query: int, qkv: int, intermediate: int, ranks: int, dtype: str
) -> list[KernelSpec]:
    """Return the kernels for the products of a decoder block. If the fused kernel of a product does not support the
    shape, a library computes this product. Then SwiGLU's kernel is returned, or none if SwiGLU is not next to it.

    query: input size of attention's output projection. qkv: output size of the projection to q, k and v. ranks: the sum
    of the ranks of both adapters.
    """
    data, own = torch_dtype(dtype), load("swiglu")
    sizes = (tokens, hidden, intermediate)
    specs: list[KernelSpec] = [
        up_spec(*sizes) if serves_up(*sizes, data) else own.forward_spec(tokens, intermediate, dtype),
        down_backward_spec(*sizes)
        if serves_down_backward(*sizes, data)
        else own.backward_spec(tokens, intermediate, dtype),
    ]
    if adds(tokens, hidden, query, intermediate, data):
        specs += [add_spec(tokens, query, hidden), add_spec(tokens, intermediate, hidden)]
    if serves_input_gradient(tokens, qkv, hidden, ranks, data):
        specs.append(input_gradient_spec(tokens, qkv, hidden, ranks))
    return specs


def head_specializations(*, tokens: int, hidden: int, vocabulary: int, chunk: int, dtype: str) -> list[KernelSpec]:
    """Return the kernels of logits and loss for `tokens` tokens, `chunk` at a time.

    If `head_logits` does not support the shape, a library computes logits, and only the loss's kernels are returned.
    """
    data, loss = torch_dtype(dtype), load("cross_entropy")
    specs: list[KernelSpec] = []
    for size in sorted({min(chunk, tokens - first) for first in range(0, tokens, chunk)}, reverse=True):
        if serves_head(size, hidden, vocabulary, data):
            specs += [
                head_spec(size, hidden, vocabulary),
                loss.from_statistics_spec(size, vocabulary, -(-vocabulary // PANEL), dtype),
            ]
        else:
            specs.append(loss.forward_backward_spec(size, vocabulary, dtype))
    return specs


def up_swiglu(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return gate_up = x W^T [tokens, 2I] and act = silu(gate) * up [tokens, I], computed from the rounded gate_up.

    I: intermediate size. x [tokens, hidden]; weight W [2I, hidden], with the rows of gate first.
    """
    (tokens, hidden), intermediate = x.shape, weight.shape[0] // 2
    spec = up_spec(tokens, hidden, intermediate)
    require_shape(spec.op, "weight", weight, (2 * intermediate, hidden))
    gate_up, act = x.new_empty(tokens, 2 * intermediate), x.new_empty(tokens, intermediate)
    launch(spec, x, weight, gate_up, act)
    return gate_up, act


def down_swiglu_backward(grad: Tensor, weight: Tensor, gate_up: Tensor, out: Tensor | None = None) -> Tensor:
    """Return the gradient of gate_up [tokens, 2I]; grad [tokens, hidden], weight W [hidden, I]; I: intermediate size.

    out: the tensor for the result, which may be gate_up; None for a new tensor. The gradient of act, which is grad W,
    is not rounded before SwiGLU's backward.
    """
    (tokens, hidden), intermediate = grad.shape, weight.shape[1]
    spec = down_backward_spec(tokens, hidden, intermediate)
    require_shape(spec.op, "weight", weight, (hidden, intermediate))
    require_shape(spec.op, "gate_up", gate_up, (tokens, 2 * intermediate))
    grad_gate_up = torch.empty_like(gate_up) if out is None else out
    require_shape(spec.op, "out", grad_gate_up, (tokens, 2 * intermediate))
    launch(spec, grad, weight, gate_up, grad_gate_up)
    return grad_gate_up


def add(x: Tensor, weight: Tensor, residual: Tensor) -> Tensor:
    """Return residual + x weight^T, rounded once; residual [tokens, hidden], x [tokens, K], weight [hidden, K]."""
    (tokens, summed), hidden = x.shape, weight.shape[0]
    spec = add_spec(tokens, summed, hidden)
    require_shape(spec.op, "weight", weight, (hidden, summed))
    require_shape(spec.op, "residual", residual, (tokens, hidden))
    out = torch.empty_like(residual)
    launch(spec, x, weight, residual, out)
    return out


def input_gradient(grad: Tensor, weight: Tensor, grad_extra: Tensor, weight_extra: Tensor) -> Tensor:
    """Return grad W + grad_extra W_extra [tokens, hidden], rounded once.

    grad [tokens, outputs], weight W [outputs, hidden], grad_extra [tokens, rank], weight_extra W_extra [rank, hidden].
    """
    (tokens, outputs), (extra, hidden) = grad.shape, weight_extra.shape
    spec = input_gradient_spec(tokens, outputs, hidden, extra)
    require_shape(spec.op, "weight", weight, (outputs, hidden))
    require_shape(spec.op, "grad_extra", grad_extra, (tokens, extra))
    out = grad.new_empty(tokens, hidden)
    launch(spec, grad, weight, grad_extra, weight_extra, out)
    return out


def head_logits(x: Tensor, head: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    """Write the logits x head^T into `out` [tokens, vocabulary]. Return maxima and totals, both f32 [tokens, panels].

    x [tokens, hidden], head [vocabulary, hidden]. maxima: the largest rounded logit of each panel. totals: the sum of
    exp(logit - maximum) over the panel.
    """
    (tokens, hidden), vocabulary = x.shape, head.shape[0]
    spec = head_spec(tokens, hidden, vocabulary)
    require_shape(spec.op, "head", head, (vocabulary, hidden))
    require_shape(spec.op, "out", out, (tokens, vocabulary))
    maxima = torch.empty(tokens, -(-vocabulary // PANEL), dtype=torch.float32, device=x.device)
    totals = torch.empty_like(maxima)
    launch(spec, x, head, out, maxima, totals)
    return maxima, totals

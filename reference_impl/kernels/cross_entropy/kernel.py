"""Cross-entropy: the loss of each row, and the gradient of the logits, which overwrites the logits.

Legend: T tokens (rows), V vocabulary, P parts into which the vocabulary is divided.

    loss = logsumexp(logits) - logits[target],  logits <- scale * (softmax(logits) - onehot(target))        in fp32

Each row has one program. A first pass reads the row and keeps a running maximum and sum. A second pass reads the row
again and writes the gradient. The second pass goes from the end of the row to its start, because the end was read last
and is still in the L2 cache.

The matrix product that computes the logits may also write, for each part of a row, the maximum of the logits and the
sum of exponentials. Then the first pass reads these numbers instead of the row (function `from_statistics_`).
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from reference_impl.kernels.dependent_launch import begin
from reference_impl.kernels.registry import (
    KernelSpec,
    Pointer,
    device_function,
    dtype_name,
    kernel,
    launch,
    require_shape,
)

IGNORED = -100
"""The target that marks an ignored row: the loss and the gradient of this row are 0."""

# A thread holds _VECTORS_PER_THREAD vectors of _VECTOR logits at a time, which are two 16-byte loads of bf16.
_VECTOR = 8
_VECTORS_PER_THREAD = 2
_VECTORS_PER_WARP = 32 * _VECTORS_PER_THREAD
_MAX_WARPS = 32
# Largest number of warps of the kernel `from_statistics_`, which reads the logits once. On an H100, for 512 tokens with
# 151,936 logits each, the kernel took 109 us with 16 warps and 127 us with 32 warps.
_MAX_WARPS_OF_ONE_PASS = 16


@device_function
def _target_logit(row: tl.tensor, target: tl.tensor, V: tl.constexpr) -> tl.tensor:
    # If the target is outside the vocabulary, nothing is read, and the loss becomes NaN.
    return tl.load(row + target, mask=(target >= 0) & (target < V), other=float("nan")).to(tl.float32)


@device_function
def _write_gradient(
    row: tl.tensor,
    target: tl.tensor,
    valid: tl.tensor,
    factor: tl.tensor,
    maximum: tl.tensor,
    total: tl.tensor,
    column: tl.tensor,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    inverse = 1.0 / total
    blocks: tl.constexpr = (V + BLOCK - 1) // BLOCK
    for block in range(blocks):
        index = (blocks - 1 - block) * BLOCK + column
        value = tl.load(row + index, mask=index < V, other=0.0).to(tl.float32)
        probability = tl.exp(value - maximum) * inverse
        gradient = tl.where(valid, factor * (probability - tl.where(index == target, 1.0, 0.0)), 0.0)
        tl.store(row + index, gradient.to(row.dtype.element_ty), mask=index < V)


@kernel("targets", "scale", "losses")
def _forward_backward_kernel(
    logits: tl.tensor,
    targets: tl.tensor,
    scale: tl.tensor,
    losses: tl.tensor,
    V: tl.constexpr,
    VECTORS: tl.constexpr,
    VECTOR: tl.constexpr,
    IGNORED_TARGET: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    begin(PDL)
    row = logits + tl.program_id(0).to(tl.int64) * V
    target = tl.load(targets + tl.program_id(0))
    valid = target != IGNORED_TARGET
    target_logit = _target_logit(row, target, V)  # read this logit before the second pass overwrites it
    column = tl.arange(0, VECTORS)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]

    # Keep one maximum and one sum for each vector of a thread, so that threads exchange no data in the loop. The
    # maximum starts as a finite number: with -inf, lanes after the row's end would compute -inf - -inf = NaN.
    maximum = tl.full([VECTORS], -3.4028234663852886e38, tl.float32)
    total = tl.zeros([VECTORS], tl.float32)
    for first in range(0, V, VECTORS * VECTOR):
        value = tl.load(row + first + column, mask=first + column < V, other=float("-inf")).to(tl.float32)
        larger = tl.maximum(maximum, tl.max(value, axis=1))
        total = total * tl.exp(maximum - larger) + tl.sum(tl.exp(value - larger[:, None]), axis=1)
        maximum = larger
    row_maximum = tl.max(maximum, axis=0)
    row_total = tl.sum(total * tl.exp(maximum - row_maximum), axis=0)
    loss = tl.log(row_total) + (row_maximum - target_logit)
    tl.store(losses + tl.program_id(0), tl.where(valid, loss, 0.0))
    _write_gradient(row, target, valid, tl.load(scale), row_maximum, row_total, column, V, VECTORS * VECTOR)


@kernel("targets", "scale", "losses")
def _from_statistics_kernel(
    logits: tl.tensor,
    maxima: tl.tensor,
    totals: tl.tensor,
    targets: tl.tensor,
    scale: tl.tensor,
    losses: tl.tensor,
    V: tl.constexpr,
    PARTS: tl.constexpr,
    LANES: tl.constexpr,
    VECTORS: tl.constexpr,
    VECTOR: tl.constexpr,
    IGNORED_TARGET: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    begin(PDL)
    row = logits + tl.program_id(0).to(tl.int64) * V
    target = tl.load(targets + tl.program_id(0))
    valid = target != IGNORED_TARGET
    target_logit = _target_logit(row, target, V)  # read this logit before the gradient overwrites it

    lane = tl.arange(0, LANES)
    part = tl.program_id(0).to(tl.int64) * PARTS + lane
    maximum = tl.load(maxima + part, mask=lane < PARTS, other=-3.4028234663852886e38)
    total = tl.load(totals + part, mask=lane < PARTS, other=0.0)
    row_maximum = tl.max(maximum, axis=0)
    row_total = tl.sum(total * tl.exp(maximum - row_maximum), axis=0)
    loss = tl.log(row_total) + (row_maximum - target_logit)
    tl.store(losses + tl.program_id(0), tl.where(valid, loss, 0.0))
    column = tl.arange(0, VECTORS)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]
    _write_gradient(row, target, valid, tl.load(scale), row_maximum, row_total, column, V, VECTORS * VECTOR)


def _warps(vocabulary: int, most: int) -> int:
    vectors = int(triton.next_power_of_2(-(-vocabulary // _VECTOR)))
    return max(1, min(most, vectors // _VECTORS_PER_WARP))


@functools.cache
def forward_backward_spec(tokens: int, vocabulary: int, dtype: str) -> KernelSpec:
    """Return the spec (description) of the kernel that `forward_backward_` launches for logits [tokens, vocabulary] of
    `dtype`."""
    num_warps = _warps(vocabulary, _MAX_WARPS)
    return KernelSpec(
        op="cross_entropy.forward_backward",
        shape=(tokens, vocabulary),
        dtype=dtype,
        constants=(),
        num_warps=num_warps,
        num_stages=1,
        function=_forward_backward_kernel,
        pointers=(
            Pointer("logits", dtype),
            Pointer("targets", "i64", aligned=False),
            Pointer("scale", "fp32", aligned=False),
            Pointer("losses", "fp32", aligned=False),
        ),
        constexprs={
            "V": vocabulary,
            "VECTORS": num_warps * _VECTORS_PER_WARP,
            "VECTOR": _VECTOR,
            "IGNORED_TARGET": IGNORED,
        },
        grid=(tokens,),
    )


@functools.cache
def from_statistics_spec(tokens: int, vocabulary: int, parts: int, dtype: str) -> KernelSpec:
    """Return the spec (description) of the kernel that `from_statistics_` launches for logits [tokens, vocabulary] of
    `dtype`, divided into `parts`."""
    num_warps = _warps(vocabulary, _MAX_WARPS_OF_ONE_PASS)
    return KernelSpec(
        op="cross_entropy.from_statistics",
        shape=(tokens, vocabulary, parts),
        dtype=dtype,
        constants=(),
        num_warps=num_warps,
        num_stages=1,
        function=_from_statistics_kernel,
        pointers=(
            Pointer("logits", dtype),
            Pointer("maxima", "fp32"),
            Pointer("totals", "fp32"),
            Pointer("targets", "i64", aligned=False),
            Pointer("scale", "fp32", aligned=False),
            Pointer("losses", "fp32", aligned=False),
        ),
        constexprs={
            "V": vocabulary,
            "PARTS": parts,
            "LANES": triton.next_power_of_2(parts),
            "VECTORS": num_warps * _VECTORS_PER_WARP,
            "VECTOR": _VECTOR,
            "IGNORED_TARGET": IGNORED,
        },
        grid=(tokens,),
    )


def specializations(*, tokens: int, vocabulary: int, chunk: int, dtype: str) -> list[KernelSpec]:
    """Return the kernels of a loss over `tokens` tokens in chunks of `chunk` tokens. There are two kernels if the last
    chunk is shorter, otherwise one."""
    sizes = {min(chunk, tokens - first) for first in range(0, tokens, chunk)}
    return [forward_backward_spec(size, vocabulary, dtype) for size in sorted(sizes, reverse=True)]


def forward_backward_(logits: Tensor, targets: Tensor, scale: Tensor | float) -> Tensor:
    """Return the loss f32 [tokens] of logits [tokens, vocabulary], and overwrite the logits with their gradient;
    targets i64 [tokens].

    scale: factor of the gradient, f32 0-d or a float. A target of -100 gives loss 0 and gradient 0; any other target
    outside [0, vocabulary) gives loss NaN.
    """
    tokens, vocabulary = logits.shape
    spec = forward_backward_spec(
        tokens, vocabulary, dtype_name("cross_entropy.forward_backward", "logits", logits.dtype)
    )
    scale = _checked_scale(spec, logits, targets, scale)
    losses = torch.empty(tokens, dtype=torch.float32, device=logits.device)
    launch(spec, logits, targets, scale, losses)
    return losses


def from_statistics_(logits: Tensor, maxima: Tensor, totals: Tensor, targets: Tensor, scale: Tensor | float) -> Tensor:
    """Do the same as `forward_backward_`, but read statistics of the parts of each row instead of computing them.

    maxima, totals: f32 [tokens, parts], the maximum and the sum of exp(logit - maximum) of each part. The parts do not
    overlap, and together they contain the whole row.
    """
    (tokens, vocabulary), parts = logits.shape, maxima.shape[1]
    spec = from_statistics_spec(
        tokens, vocabulary, parts, dtype_name("cross_entropy.from_statistics", "logits", logits.dtype)
    )
    require_shape(spec.op, "maxima", maxima, (tokens, parts))
    require_shape(spec.op, "totals", totals, (tokens, parts))
    scale = _checked_scale(spec, logits, targets, scale)
    losses = torch.empty(tokens, dtype=torch.float32, device=logits.device)
    launch(spec, logits, maxima, totals, targets, scale, losses)
    return losses


def _checked_scale(spec: KernelSpec, logits: Tensor, targets: Tensor, scale: Tensor | float) -> Tensor:
    require_shape(spec.op, "targets", targets, logits.shape[:1])
    if not isinstance(scale, Tensor):
        scale = torch.full((), scale, dtype=torch.float32, device=logits.device)
    require_shape(spec.op, "scale", scale, ())
    return scale

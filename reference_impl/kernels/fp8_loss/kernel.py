"""Cross-entropy whose gradient is in FP8. A row has the logits of one token, and V is the size of the vocabulary.

    loss = logsumexp(logits) - logits[target],  gradient = round(2^15 * (softmax(logits) - onehot(target)))     e5m2

As in `kernels/cross_entropy`, each row has one program and two passes. Here the gradient does not overwrite the logits.
`naive.py` explains e5m2 and the constant scale.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from reference_impl.kernels.cross_entropy.kernel import _MAX_WARPS, _VECTOR, _VECTORS_PER_THREAD, IGNORED
from reference_impl.kernels.dependent_launch import begin
from reference_impl.kernels.fp8_loss.naive import FACTOR
from reference_impl.kernels.registry import KernelSpec, Pointer, dtype_name, kernel, launch, require_shape


@kernel("targets", "losses")
def _forward_backward_kernel(
    logits: tl.tensor,
    targets: tl.tensor,
    gradient: tl.tensor,
    losses: tl.tensor,
    V: tl.constexpr,
    VECTORS: tl.constexpr,
    VECTOR: tl.constexpr,
    IGNORED_TARGET: tl.constexpr,
    FACTOR: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    begin(PDL)
    row = logits + tl.program_id(0).to(tl.int64) * V
    out = gradient + tl.program_id(0).to(tl.int64) * V
    target = tl.load(targets + tl.program_id(0))
    valid = target != IGNORED_TARGET
    # If the target is outside the vocabulary, nothing is read, and the loss becomes NaN.
    target_logit = tl.load(row + target, mask=(target >= 0) & (target < V), other=float("nan")).to(tl.float32)
    column = tl.arange(0, VECTORS)[:, None] * VECTOR + tl.arange(0, VECTOR)[None, :]

    # Keep one maximum and one sum for each vector, and start with a finite maximum, as in `kernels/cross_entropy`.
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

    inverse = 1.0 / row_total
    blocks: tl.constexpr = (V + VECTORS * VECTOR - 1) // (VECTORS * VECTOR)
    for block in range(blocks):
        # Begin at the end of the row, because the end was read last and is still in the L2 cache.
        index = (blocks - 1 - block) * (VECTORS * VECTOR) + column
        value = tl.load(row + index, mask=index < V, other=0.0).to(tl.float32)
        probability = tl.exp(value - row_maximum) * inverse
        result = tl.where(valid, FACTOR * (probability - tl.where(index == target, 1.0, 0.0)), 0.0)
        tl.store(out + index, result.to(gradient.dtype.element_ty), mask=index < V)


@functools.cache
def forward_backward_spec(tokens: int, vocabulary: int, dtype: str) -> KernelSpec:
    """Return the spec (description) of the kernel that `forward_backward` launches for logits [tokens, vocabulary] of
    `dtype`."""
    per_warp = 32 * _VECTORS_PER_THREAD
    vectors = triton.next_power_of_2(-(-vocabulary // _VECTOR))
    num_warps = max(1, min(_MAX_WARPS, vectors // per_warp))
    return KernelSpec(
        op="fp8_loss.forward_backward",
        shape=(tokens, vocabulary),
        dtype=dtype,
        constants=(("factor", FACTOR),),
        num_warps=num_warps,
        num_stages=1,
        function=_forward_backward_kernel,
        pointers=(
            Pointer("logits", dtype),
            Pointer("targets", "i64", aligned=False),
            Pointer("gradient", "fp8e5"),
            Pointer("losses", "fp32", aligned=False),
        ),
        constexprs={
            "V": vocabulary,
            "VECTORS": num_warps * per_warp,
            "VECTOR": _VECTOR,
            "IGNORED_TARGET": IGNORED,
            "FACTOR": FACTOR,
        },
        grid=(tokens,),
    )


def specializations(*, tokens: int, vocabulary: int, chunk: int, dtype: str) -> list[KernelSpec]:
    """Return the kernels of a loss over `tokens` tokens in chunks of `chunk` tokens. There are two kernels if the last
    chunk is shorter, otherwise one."""
    sizes = {min(chunk, tokens - first) for first in range(0, tokens, chunk)}
    return [forward_backward_spec(size, vocabulary, dtype) for size in sorted(sizes, reverse=True)]


def forward_backward(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss f32 [T] and 2^15 * (softmax - onehot) in e5m2 [T, V]; logits [T, V], targets i64 [T], T tokens.

    A target of -100 gives loss 0 and gradient 0; any other target outside [0, V) gives loss NaN.
    """
    tokens, vocabulary = logits.shape
    dtype = dtype_name("fp8_loss.forward_backward", "logits", logits.dtype)
    spec = forward_backward_spec(tokens, vocabulary, dtype)
    require_shape(spec.op, "targets", targets, (tokens,))
    gradient = torch.empty(tokens, vocabulary, dtype=torch.float8_e5m2, device=logits.device)
    losses = torch.empty(tokens, dtype=torch.float32, device=logits.device)
    launch(spec, logits, targets, gradient, losses)
    return losses, gradient

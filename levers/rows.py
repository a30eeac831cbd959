"""Candidates for the row kernels: the norm's backward with LoRA's addition inside, and a loss whose maxima are known."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def norm_backward_low_rank_kernel(
    grad_y, low_rank, factor, x, gain, rstd, grad_residual, grad_x, partials,
    T: tl.constexpr, H: tl.constexpr, R: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """As `rms_norm.backward` of grad_y + low_rank [T, R] @ factor [R, H]; ROWS rows a program, H a multiple of CHUNK."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    low = tl.load(low_rank + row[:, None] * R + tl.arange(0, R)[None, :])
    scale = tl.load(rstd + row)
    dot = tl.zeros([ROWS], tl.float32)
    for first in tl.static_range(0, H, CHUNK):
        column = first + tl.arange(0, CHUNK)
        offset = row[:, None] * H + column[None, :]
        b = tl.load(factor + tl.arange(0, R)[:, None] * H + column[None, :])
        dy = tl.load(grad_y + offset).to(tl.float32) + tl.dot(low, b, input_precision="ieee")
        normed = tl.load(x + offset).to(tl.float32) * scale[:, None]
        g = tl.load(gain + column)
        dot += tl.sum(dy * g[None, :] * normed, axis=1)
        tl.store(partials + tl.program_id(0) * H + column, tl.sum(dy * normed, axis=0))
    mean = dot / H
    for first in tl.static_range(0, H, CHUNK):
        column = first + tl.arange(0, CHUNK)
        offset = row[:, None] * H + column[None, :]
        b = tl.load(factor + tl.arange(0, R)[:, None] * H + column[None, :])
        dy = tl.load(grad_y + offset).to(tl.float32) + tl.dot(low, b, input_precision="ieee")
        normed = tl.load(x + offset).to(tl.float32) * scale[:, None]
        g = tl.load(gain + column)
        result = scale[:, None] * (dy * g[None, :] - normed * mean[:, None])
        result += tl.load(grad_residual + offset).to(tl.float32)
        tl.store(grad_x + offset, result.to(grad_x.dtype.element_ty))


@triton.jit
def loss_known_kernel(
    logits, targets, scale, maxima, sums, losses, M: tl.constexpr, V: tl.constexpr, PARTS: tl.constexpr,
    PARTS_BLOCK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The loss and its gradient in one pass; maxima, sums [PARTS, M] of the exponentials of each part of a row."""
    r = tl.program_id(0)
    row = logits + r.to(tl.int64) * V
    target = tl.load(targets + r)
    part = tl.arange(0, PARTS_BLOCK)
    inside = part < PARTS
    maximum = tl.load(maxima + part * M + r, mask=inside, other=-3.0e38)
    total = tl.load(sums + part * M + r, mask=inside, other=0.0)
    row_maximum = tl.max(maximum, axis=0)
    row_total = tl.sum(total * tl.exp(maximum - row_maximum), axis=0)
    target_logit = tl.load(row + target).to(tl.float32)
    tl.store(losses + r, tl.log(row_total) + (row_maximum - target_logit))
    # Every lane must have read the target's logit before one of them overwrites it.
    tl.debug_barrier()
    inverse = 1.0 / row_total
    factor = tl.load(scale)
    for first in range(0, V, BLOCK):
        index = first + tl.arange(0, BLOCK)
        value = tl.load(row + index, mask=index < V, other=0.0).to(tl.float32)
        probability = tl.exp(value - row_maximum) * inverse
        gradient = factor * (probability - tl.where(index == target, 1.0, 0.0))
        tl.store(row + index, gradient.to(logits.dtype.element_ty), mask=index < V)

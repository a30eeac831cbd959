"""The parts of the Triton attention kernels that process one tile. `kernel.py` has the legend and the formulas.

A tile is [L, 2 * HALF_BLOCK]: the two halves of a head side by side, each padded to a power of two. Scores are
multiplied by log2(e), so that exp2 can be used instead of exp. Rows after the end of a sequence (from index S on) are
read as zeros. The gradients of these rows are zeros, too, so they add nothing to the gradients of other rows.
"""

from __future__ import annotations

import triton.language as tl

from reference_impl.kernels.registry import device_function


@device_function
def columns(HALF: tl.constexpr, HALF_BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN201
    """Return, for each column of a tile, its position in the head, and a mask that is True for columns that are not
    padding."""
    lane = tl.arange(0, 2 * HALF_BLOCK)
    return lane // HALF_BLOCK * HALF + lane % HALF_BLOCK, lane % HALF_BLOCK < HALF


@device_function
def load_rows(  # type: ignore[no-untyped-def]  # noqa: ANN201
    head: tl.tensor, row: tl.tensor, column: tl.tensor, inside: tl.tensor, S: tl.constexpr, STRIDE: tl.constexpr
):
    mask = (row < S)[:, None] & inside[None, :]
    return tl.load(head + row[:, None] * STRIDE + column[None, :], mask=mask, other=0.0)


@device_function
def load_tile(  # type: ignore[no-untyped-def]  # noqa: ANN201
    packed: tl.tensor,
    token: tl.tensor,
    first: tl.tensor,
    head: tl.tensor,
    S: tl.constexpr,
    WIDTH: tl.constexpr,
    HALF: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
    TILED: tl.constexpr,
):
    """Return a tile: the rows of one head from position `first` of a sequence on. The sequence starts at row `token` of
    packed [tokens, WIDTH].

    TILED: `packed` is a descriptor whose boxes are tiles, and no tile reaches beyond the end of its sequence.
    """
    if TILED:
        tile = packed.load([(token + first).to(tl.int32), head * 2 * HALF])
    else:
        column, inside = columns(HALF, HALF_BLOCK)
        position = first + tl.arange(0, BLOCK)
        tile = load_rows(packed + token * WIDTH + head * 2 * HALF, position, column, inside, S, WIDTH)
    return tile


@device_function
def attend(  # type: ignore[no-untyped-def]  # noqa: ANN201
    packed: tl.tensor,
    query: tl.tensor,
    row: tl.tensor,
    token: tl.tensor,
    key_head: tl.tensor,
    value_head: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    maximum: tl.tensor,
    total: tl.tensor,
    summed: tl.tensor,
    S: tl.constexpr,
    WIDTH: tl.constexpr,
    HALF: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
    SCALE: tl.constexpr,
    TILED: tl.constexpr,
    DIAGONAL: tl.constexpr,
):
    """Add the key blocks from `low` up to, but not including, `high` to the attention of one query block.

    Returns the updated maximum of the scores (base 2), sum of exponentials, and sum of weighted values. DIAGONAL: the
    key block contains the diagonal. Only such a block has keys after a query, or rows after the end of the sequence.
    """
    LOG2: tl.constexpr = SCALE * 1.4426950408889634
    for other in range(low, high):
        first = other * BLOCK
        keys = load_tile(packed, token, first, key_head, S, WIDTH, HALF, HALF_BLOCK, BLOCK, TILED)
        values = load_tile(packed, token, first, value_head, S, WIDTH, HALF, HALF_BLOCK, BLOCK, TILED)
        scores = tl.dot(query, tl.trans(keys), input_precision="ieee")
        if DIAGONAL:
            position = first + tl.arange(0, BLOCK)
            scores = tl.where(position[None, :] <= row[:, None], scores, float("-inf"))
        higher = tl.maximum(maximum, tl.max(scores, axis=1) * LOG2)
        shrink = tl.exp2(maximum - higher)
        weights = tl.exp2(scores * LOG2 - higher[:, None])
        total = total * shrink + tl.sum(weights, axis=1)
        summed = tl.dot(weights.to(values.dtype), values, summed * shrink[:, None], input_precision="ieee")
        maximum = higher
    return maximum, total, summed


@device_function
def query_gradient(  # type: ignore[no-untyped-def]  # noqa: ANN201
    packed: tl.tensor,
    grad_output: tl.tensor,
    head: tl.tensor,
    key_head: tl.tensor,
    value_head: tl.tensor,
    token: tl.tensor,
    log_sum_exp: tl.tensor,
    deltas: tl.tensor,
    block: tl.tensor,
    S: tl.constexpr,
    WIDTH: tl.constexpr,
    OUT_WIDTH: tl.constexpr,
    HALF: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
    SCALE: tl.constexpr,
    TILED: tl.constexpr,
):
    """Compute dQ of one query block in fp32, from the first key block to the block on the diagonal."""
    lane = tl.arange(0, BLOCK)
    row = block * BLOCK + lane
    query = load_tile(packed, token, block * BLOCK, head, S, WIDTH, HALF, HALF_BLOCK, BLOCK, TILED)
    grad = load_tile(grad_output, token, block * BLOCK, head, S, OUT_WIDTH, HALF, HALF_BLOCK, BLOCK, TILED)
    log2_sum = tl.load(log_sum_exp + row, mask=row < S, other=0.0) * 1.4426950408889634
    delta = tl.load(deltas + row, mask=row < S, other=0.0)
    query_sum = tl.zeros([BLOCK, 2 * HALF_BLOCK], tl.float32)
    for other in range(block + 1):
        position = other * BLOCK + lane
        keys = load_tile(packed, token, other * BLOCK, key_head, S, WIDTH, HALF, HALF_BLOCK, BLOCK, TILED)
        values = load_tile(packed, token, other * BLOCK, value_head, S, WIDTH, HALF, HALF_BLOCK, BLOCK, TILED)
        scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * (SCALE * 1.4426950408889634)
        weights = tl.exp2(scores - log2_sum[:, None])
        weights = tl.where(position[None, :] <= row[:, None], weights, 0.0)
        grad_weights = tl.dot(grad, tl.trans(values), input_precision="ieee")
        grad_scores = (weights * (grad_weights - delta[:, None])).to(keys.dtype)
        query_sum = tl.dot(grad_scores, keys, query_sum, input_precision="ieee")
    return SCALE * query_sum


@device_function
def key_value_gradient(  # type: ignore[no-untyped-def]  # noqa: ANN201
    packed: tl.tensor,
    grad_output: tl.tensor,
    head: tl.tensor,
    key_head: tl.tensor,
    value_head: tl.tensor,
    token: tl.tensor,
    log_sum_exp: tl.tensor,
    deltas: tl.tensor,
    block: tl.tensor,
    BLOCKS: tl.constexpr,
    S: tl.constexpr,
    WIDTH: tl.constexpr,
    OUT_WIDTH: tl.constexpr,
    HALF: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
    SCALE: tl.constexpr,
    TILED: tl.constexpr,
):
    """Compute one query head's part of dK and dV of a key block, in fp32. It is a sum over the query blocks from the
    one on the diagonal to the last."""
    lane = tl.arange(0, BLOCK)
    row = block * BLOCK + lane
    keys = load_tile(packed, token, block * BLOCK, key_head, S, WIDTH, HALF, HALF_BLOCK, BLOCK, TILED)
    values = load_tile(packed, token, block * BLOCK, value_head, S, WIDTH, HALF, HALF_BLOCK, BLOCK, TILED)
    key_sum = tl.zeros([BLOCK, 2 * HALF_BLOCK], tl.float32)
    value_sum = tl.zeros([BLOCK, 2 * HALF_BLOCK], tl.float32)
    for other in range(block, BLOCKS):
        position = other * BLOCK + lane
        query = load_tile(packed, token, other * BLOCK, head, S, WIDTH, HALF, HALF_BLOCK, BLOCK, TILED)
        grad = load_tile(grad_output, token, other * BLOCK, head, S, OUT_WIDTH, HALF, HALF_BLOCK, BLOCK, TILED)
        log2_sum = tl.load(log_sum_exp + position, mask=position < S, other=0.0) * 1.4426950408889634
        delta = tl.load(deltas + position, mask=position < S, other=0.0)
        # Compute the transposed scores, [keys, queries]. P^T and dS^T then need no transposition in the next products.
        scores = tl.dot(keys, tl.trans(query), input_precision="ieee") * (SCALE * 1.4426950408889634)
        weights = tl.exp2(scores - log2_sum[None, :])
        weights = tl.where(row[:, None] <= position[None, :], weights, 0.0)
        value_sum = tl.dot(weights.to(grad.dtype), grad, value_sum, input_precision="ieee")
        grad_weights = tl.dot(values, tl.trans(grad), input_precision="ieee")
        grad_scores = (weights * (grad_weights - delta[None, :])).to(query.dtype)
        key_sum = tl.dot(grad_scores, query, key_sum, input_precision="ieee")
    return SCALE * key_sum, value_sum


@device_function
def rotate_back(
    out: tl.tensor,
    a: tl.tensor,
    b: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    row: tl.tensor,
    position: tl.tensor,
    ROWS: tl.constexpr,
    S: tl.constexpr,
    WIDTH: tl.constexpr,
    HALF: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
) -> None:
    """Undo the rotary embedding of the halves a, b [rows, HALF_BLOCK] of a head, and write both halves to `out`."""
    lane = tl.arange(0, HALF_BLOCK)
    width = (lane < HALF)[None, :]
    table = position[:, None] * HALF + lane[None, :]
    cosine = tl.load(cos + table, mask=(position < S)[:, None] & width, other=0.0)
    sine = tl.load(sin + table, mask=(position < S)[:, None] & width, other=0.0)
    target = out + row.to(tl.int64)[:, None] * WIDTH + lane[None, :]
    mask = (row < ROWS)[:, None] & width
    tl.store(target, (a * cosine + b * sine).to(out.dtype.element_ty), mask=mask)
    tl.store(target + HALF, (b * cosine - a * sine).to(out.dtype.element_ty), mask=mask)

"""Candidates for the attention kernels: tile sizes, split loops, tensor descriptors, dS kept for a second kernel."""

from __future__ import annotations

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _rows(base, row, D: tl.constexpr, STRIDE: tl.constexpr):
    return tl.load(base + row[:, None] * STRIDE + tl.arange(0, D)[None, :])


@triton.jit
def _forward_loop(
    query, key, value, low, high, row, maximum, total, summed, batch_row, key_column, value_column,
    BN: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, FACTOR: tl.constexpr, MASKED: tl.constexpr,
    TMA: tl.constexpr, WS: tl.constexpr,
):  # fmt: skip
    for first in tl.range(low, high, BN, warp_specialize=WS):
        if TMA:
            keys = key.load([batch_row + first, key_column])
            values = key.load([batch_row + first, value_column])
        else:
            position = first + tl.arange(0, BN)
            keys = _rows(key, position, D, WIDTH)
            values = _rows(value, position, D, WIDTH)
        scores = tl.dot(query, tl.trans(keys), input_precision="ieee")
        if MASKED:
            scores = tl.where((first + tl.arange(0, BN))[None, :] <= row[:, None], scores, float("-inf"))
        higher = tl.maximum(maximum, tl.max(scores, axis=1) * FACTOR)
        weights = tl.exp2(scores * FACTOR - higher[:, None])
        shrink = tl.exp2(maximum - higher)
        total = total * shrink + tl.sum(weights, axis=1)
        summed = summed * shrink[:, None]
        summed = tl.dot(weights.to(values.dtype), values, summed, input_precision="ieee")
        maximum = higher
    return maximum, total, summed


@triton.jit
def forward_kernel(
    query_ref, qkv, output, log_sum_exp,
    S: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    SCALE: tl.constexpr, TMA: tl.constexpr, WS: tl.constexpr,
):  # fmt: skip
    WIDTH: tl.constexpr = (HEADS + 2 * KV_HEADS) * D
    FACTOR: tl.constexpr = SCALE * LOG2E
    batch, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    block = tl.num_programs(1) - 1 - tl.program_id(1)
    kv_head = head // (HEADS // KV_HEADS)
    row = block * BM + tl.arange(0, BM)
    key_column, value_column = (HEADS + kv_head) * D, (HEADS + KV_HEADS + kv_head) * D
    batch_row = batch * S
    if TMA:
        query = query_ref.load([batch_row + block * BM, head * D])
        key, value = qkv, qkv
    else:
        first = qkv + batch_row.to(tl.int64) * WIDTH
        query = _rows(first + head * D, row, D, WIDTH)
        key, value = first + key_column, first + value_column
    maximum = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    summed = tl.zeros([BM, D], tl.float32)
    if WS:
        maximum, total, summed = _forward_loop(
            query, key, value, 0, (block + 1) * BM, row, maximum, total, summed, batch_row, key_column, value_column,
            BN, D, WIDTH, FACTOR, True, TMA, True,
        )  # fmt: skip
    else:
        edge = block * BM // BN * BN
        maximum, total, summed = _forward_loop(
            query, key, value, 0, edge, row, maximum, total, summed, batch_row, key_column, value_column,
            BN, D, WIDTH, FACTOR, False, TMA, False,
        )  # fmt: skip
        maximum, total, summed = _forward_loop(
            query, key, value, edge, (block + 1) * BM, row, maximum, total, summed, batch_row, key_column,
            value_column, BN, D, WIDTH, FACTOR, True, TMA, False,
        )  # fmt: skip
    out = output + batch_row.to(tl.int64) * (HEADS * D) + head * D
    normed = (summed / total[:, None]).to(output.dtype.element_ty)
    tl.store(out + row[:, None] * (HEADS * D) + tl.arange(0, D)[None, :], normed)
    tl.store(log_sum_exp + tl.program_id(0) * S + row, (maximum + tl.log2(total)) * LN2)


@triton.jit
def _key_value_loop(
    keys, values, query, grad, sums, deltas, grad_scores_out, low, high, row, key_sum, value_sum,
    block, batch_row, head_column, BQ: tl.constexpr, BK: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,
    OUT_WIDTH: tl.constexpr, FACTOR: tl.constexpr, MASKED: tl.constexpr, KEEP: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    for first in range(low, high, BQ):
        position = first + tl.arange(0, BQ)
        if TMA:
            queries = query.load([batch_row + first, head_column])
        else:
            queries = _rows(query, position, D, WIDTH)
        scores = tl.dot(keys, tl.trans(queries), input_precision="ieee")
        log2_sum = tl.load(sums + position) * LOG2E
        weights = tl.exp2(scores * FACTOR - log2_sum[None, :])
        if MASKED:
            weights = tl.where(row[:, None] <= position[None, :], weights, 0.0)
        if TMA:
            grads = grad.load([batch_row + first, head_column])
        else:
            grads = _rows(grad, position, D, OUT_WIDTH)
        value_sum = tl.dot(weights.to(grads.dtype), grads, value_sum, input_precision="ieee")
        grad_weights = tl.dot(values, tl.trans(grads), input_precision="ieee")
        delta = tl.load(deltas + position)
        grad_scores = (weights * (grad_weights - delta[None, :])).to(queries.dtype)
        key_sum = tl.dot(grad_scores, queries, key_sum, input_precision="ieee")
        if KEEP:
            # Tiles of [BK, BQ], one after the other: query block major, so that dQ reads one run of them.
            tile = grad_scores_out + (first // BQ * (KEEP // BK) + block).to(tl.int64) * (BK * BQ)
            tl.store(tile + tl.arange(0, BK)[:, None] * BQ + tl.arange(0, BQ)[None, :], grad_scores)
    return key_sum, value_sum


@triton.jit
def _key_value_role(
    query_ref, grad_ref, qkv, log_sum_exp, delta, grad_key, grad_value, grad_scores, rank,
    S: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr,
    SCALE: tl.constexpr, KEEP: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    WIDTH: tl.constexpr = (HEADS + 2 * KV_HEADS) * D
    OUT_WIDTH: tl.constexpr = HEADS * D
    batch, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    kv_head = head // (HEADS // KV_HEADS)
    token = (batch * S).to(tl.int64)
    first = token * OUT_WIDTH + head * D
    if TMA:
        query, grad = query_ref, grad_ref
    else:
        query, grad = query_ref + token * WIDTH + head * D, grad_ref + first
    row = rank * BK + tl.arange(0, BK)
    keys = _rows(qkv + token * WIDTH + (HEADS + kv_head) * D, row, D, WIDTH)
    values = _rows(qkv + token * WIDTH + (HEADS + KV_HEADS + kv_head) * D, row, D, WIDTH)
    sums, deltas = log_sum_exp + tl.program_id(0) * S, delta + tl.program_id(0) * S
    key_sum = tl.zeros([BK, D], tl.float32)
    value_sum = tl.zeros([BK, D], tl.float32)
    low = rank * BK // BQ * BQ
    edge = tl.minimum((rank * BK + BK + BQ - 1) // BQ * BQ, S)
    kept = grad_scores + tl.program_id(0).to(tl.int64) * S * S
    key_sum, value_sum = _key_value_loop(
        keys, values, query, grad, sums, deltas, kept, low, edge, row, key_sum, value_sum, rank,
        batch * S, head * D, BQ, BK, D, WIDTH, OUT_WIDTH, SCALE * LOG2E, True, KEEP, TMA,
    )  # fmt: skip
    key_sum, value_sum = _key_value_loop(
        keys, values, query, grad, sums, deltas, kept, edge, S, row, key_sum, value_sum, rank,
        batch * S, head * D, BQ, BK, D, WIDTH, OUT_WIDTH, SCALE * LOG2E, False, KEEP, TMA,
    )  # fmt: skip
    offset = first + row[:, None] * OUT_WIDTH + tl.arange(0, D)[None, :]
    tl.store(grad_key + offset, (SCALE * key_sum).to(grad_key.dtype.element_ty))
    tl.store(grad_value + offset, value_sum.to(grad_value.dtype.element_ty))


@triton.jit
def key_value_kernel(
    query_ref, grad_ref, qkv, log_sum_exp, delta, grad_key, grad_value, grad_scores,
    S: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr,
    SCALE: tl.constexpr, KEEP: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    _key_value_role(
        query_ref, grad_ref, qkv, log_sum_exp, delta, grad_key, grad_value, grad_scores, tl.program_id(1),
        S, HEADS, KV_HEADS, D, BQ, BK, SCALE, KEEP, TMA,
    )  # fmt: skip


@triton.jit
def _query_loop(
    queries, grads, log2_sum, delta, key, value, low, high, row, query_sum, batch_row, key_column, value_column,
    BN: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, FACTOR: tl.constexpr, MASKED: tl.constexpr,
    TMA: tl.constexpr,
):  # fmt: skip
    for first in range(low, high, BN):
        position = first + tl.arange(0, BN)
        if TMA:
            keys = key.load([batch_row + first, key_column])
            values = value.load([batch_row + first, value_column])
        else:
            keys = _rows(key, position, D, WIDTH)
            values = _rows(value, position, D, WIDTH)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee")
        weights = tl.exp2(scores * FACTOR - log2_sum[:, None])
        if MASKED:
            weights = tl.where(position[None, :] <= row[:, None], weights, 0.0)
        grad_weights = tl.dot(grads, tl.trans(values), input_precision="ieee")
        grad_scores = (weights * (grad_weights - delta[:, None])).to(keys.dtype)
        query_sum = tl.dot(grad_scores, keys, query_sum, input_precision="ieee")
    return query_sum


@triton.jit
def _store_rotated(
    out, query_sum, cos, sin, row, BM: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr
):
    HALF: tl.constexpr = D // 2
    a, b = tl.split(tl.permute(tl.reshape(query_sum, (BM, 2, HALF)), (0, 2, 1)))
    lane = tl.arange(0, HALF)
    cosine = tl.load(cos + row[:, None] * HALF + lane[None, :])
    sine = tl.load(sin + row[:, None] * HALF + lane[None, :])
    target = out + row[:, None] * WIDTH + lane[None, :]
    tl.store(target, (a * cosine + b * sine).to(out.dtype.element_ty))
    tl.store(target + HALF, (b * cosine - a * sine).to(out.dtype.element_ty))


@triton.jit
def _query_role(
    key_ref, grad_output, qkv, log_sum_exp, deltas, cos, sin, grad_qkv, block,
    S: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    SCALE: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    WIDTH: tl.constexpr = (HEADS + 2 * KV_HEADS) * D
    OUT_WIDTH: tl.constexpr = HEADS * D
    batch, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    kv_head = head // (HEADS // KV_HEADS)
    token = (batch * S).to(tl.int64)
    row = block * BM + tl.arange(0, BM)
    queries = _rows(qkv + token * WIDTH + head * D, row, D, WIDTH)
    grads = _rows(grad_output + token * OUT_WIDTH + head * D, row, D, OUT_WIDTH)
    log2_sum = tl.load(log_sum_exp + tl.program_id(0) * S + row) * LOG2E
    delta = tl.load(deltas + tl.program_id(0) * S + row)
    key_column, value_column = (HEADS + kv_head) * D, (HEADS + KV_HEADS + kv_head) * D
    if TMA:
        key, value = key_ref, key_ref
    else:
        key = key_ref + token * WIDTH + key_column
        value = key_ref + token * WIDTH + value_column
    query_sum = tl.zeros([BM, D], tl.float32)
    edge = block * BM // BN * BN
    query_sum = _query_loop(
        queries, grads, log2_sum, delta, key, value, 0, edge, row, query_sum, batch * S, key_column, value_column,
        BN, D, WIDTH, SCALE * LOG2E, False, TMA,
    )  # fmt: skip
    query_sum = _query_loop(
        queries, grads, log2_sum, delta, key, value, edge, (block + 1) * BM, row, query_sum, batch * S, key_column,
        value_column, BN, D, WIDTH, SCALE * LOG2E, True, TMA,
    )  # fmt: skip
    _store_rotated(grad_qkv + token * WIDTH + head * D, SCALE * query_sum, cos, sin, row, BM, D, WIDTH)


@triton.jit
def query_kernel(
    key_ref, grad_output, qkv, log_sum_exp, deltas, cos, sin, grad_qkv,
    S: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    SCALE: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    block = tl.num_programs(1) - 1 - tl.program_id(1)
    _query_role(
        key_ref, grad_output, qkv, log_sum_exp, deltas, cos, sin, grad_qkv, block,
        S, HEADS, KV_HEADS, D, BM, BN, SCALE, TMA,
    )  # fmt: skip


@triton.jit
def both_kernel(
    packed_ref, grad_ref, grad_output, qkv, log_sum_exp, delta, cos, sin, grad_qkv, grad_key, grad_value,
    S: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, BQ: tl.constexpr, SCALE: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """Both roles in one launch; BM == BK, BN == BQ."""
    rank = tl.program_id(1) // 2
    if tl.program_id(1) % 2 == 0:
        _key_value_role(
            packed_ref, grad_ref, qkv, log_sum_exp, delta, grad_key, grad_value, grad_key, rank,
            S, HEADS, KV_HEADS, D, BQ, BK, SCALE, 0, TMA,
        )  # fmt: skip
    else:
        _query_role(
            packed_ref, grad_output, qkv, log_sum_exp, delta, cos, sin, grad_qkv, S // BM - 1 - rank,
            S, HEADS, KV_HEADS, D, BM, BN, SCALE, TMA,
        )  # fmt: skip


@triton.jit
def query_from_kept_kernel(
    key_ref, kept_ref, qkv, grad_scores, cos, sin, grad_qkv,
    S: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    SCALE: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """dQ = dS K from the tiles [BN keys, BM queries] that `key_value_kernel` kept (BM == its BQ, BN == its BK)."""
    WIDTH: tl.constexpr = (HEADS + 2 * KV_HEADS) * D
    batch, head = tl.program_id(0) // HEADS, tl.program_id(0) % HEADS
    block = tl.num_programs(1) - 1 - tl.program_id(1)
    kv_head = head // (HEADS // KV_HEADS)
    token = (batch * S).to(tl.int64)
    row = block * BM + tl.arange(0, BM)
    key = qkv + token * WIDTH + (HEADS + kv_head) * D
    tiles = grad_scores + tl.program_id(0).to(tl.int64) * S * S + (block * (S // BN)).to(tl.int64) * (BM * BN)
    query_sum = tl.zeros([BM, D], tl.float32)
    for other in range((block * BM + BM + BN - 1) // BN):
        if TMA:
            tile = kept_ref.load([(tl.program_id(0) * (S // BM) + block) * S + other * BN, 0])
            keys = key_ref.load([batch * S + other * BN, (HEADS + kv_head) * D])
        else:
            tile = tl.load(tiles + other * (BM * BN) + tl.arange(0, BN)[:, None] * BM + tl.arange(0, BM)[None, :])
            keys = _rows(key, other * BN + tl.arange(0, BN), D, WIDTH)
        query_sum = tl.dot(tl.trans(tile), keys, query_sum, input_precision="ieee")
    _store_rotated(grad_qkv + token * WIDTH + head * D, SCALE * query_sum, cos, sin, row, BM, D, WIDTH)

"""Candidates for products with an epilogue: SwiGLU forward and backward, statistics of the loss, and plain ones.

A [M, K] row-major; W [N, K] (``NT``) or [K, N] row-major. Sizes are multiples of the tiles.
"""

from __future__ import annotations

import triton
import triton.language as tl



@triton.jit
def _place(tile, GRID_M: tl.constexpr, GRID_N: tl.constexpr, GROUP: tl.constexpr):
    WIDTH: tl.constexpr = GROUP * GRID_N
    group = tile // WIDTH
    size = tl.minimum(GRID_M - group * GROUP, GROUP)
    return group * GROUP + (tile % WIDTH) % size, (tile % WIDTH) // size


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp2(x * -1.4426950408889634))


@triton.jit
def _tile_product(
    a, w, row, column, N: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    MODE: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """One accumulator, or for the SwiGLU forward that of gate and that of up."""
    first = tl.zeros([BM, BN], tl.float32)
    second = tl.zeros([BM, BN], tl.float32)
    rows = (row + tl.arange(0, BM)).to(tl.int64)
    columns = (column + tl.arange(0, BN)).to(tl.int64)
    for k in range(0, K, BK):
        depth = k + tl.arange(0, BK)
        left = a.load([row, k]) if TMA else tl.load(a + rows[:, None] * K + depth[None, :])
        if MODE == 2 or MODE == 3:
            right = w.load([k, column]) if TMA else tl.load(w + depth[:, None] * N + columns[None, :])
            first = tl.dot(left, right, first, input_precision="ieee")
        else:
            right = w.load([column, k]) if TMA else tl.load(w + columns[:, None] * K + depth[None, :])
            first = tl.dot(left, tl.trans(right), first, input_precision="ieee")
            if MODE == 1:
                up = w.load([N + column, k]) if TMA else tl.load(w + (N + columns)[:, None] * K + depth[None, :])
                second = tl.dot(left, tl.trans(up), second, input_precision="ieee")
    return first, second


@triton.jit
def _finish(
    first, second, out, extra, more, row, column, N: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    MODE: tl.constexpr, STORE_TMA: tl.constexpr,
):  # fmt: skip
    rows = (row + tl.arange(0, BM)).to(tl.int64)
    columns = column + tl.arange(0, BN)
    if MODE == 5:
        # weights in blocks of BN / 2 rows, gate and up in turns: columns c and c + BN / 2 of a tile belong together
        HALF: tl.constexpr = BN // 2
        gate_sum, up_sum = tl.split(tl.permute(tl.reshape(first, (BM, 2, HALF)), (0, 2, 1)))
        kind = tl.bfloat16 if STORE_TMA else out.dtype.element_ty
        gate, up = gate_sum.to(kind), up_sum.to(kind)
        wide = gate.to(tl.float32)
        act = (wide * _sigmoid(wide) * up.to(tl.float32)).to(kind)
        place = column // 2
        if STORE_TMA:
            out.store([row, place], gate)
            out.store([row, N // 2 + place], up)
            extra.store([row, place], act)
        else:
            half = place + tl.arange(0, HALF)
            tl.store(out + rows[:, None] * N + half[None, :], gate)
            tl.store(out + rows[:, None] * N + (N // 2 + half)[None, :], up)
            tl.store(extra + rows[:, None] * (N // 2) + half[None, :], act)
    elif MODE == 1:
        # gate_up [M, 2N] is `out`, act [M, N] is `extra`; as the unfused kernel reads them, gate and up are rounded
        if STORE_TMA:
            kind = tl.bfloat16
        else:
            kind = out.dtype.element_ty
        gate, up = first.to(kind), second.to(kind)
        wide = gate.to(tl.float32)
        act = wide * _sigmoid(wide) * up.to(tl.float32)
        if STORE_TMA:
            out.store([row, column], gate)
            out.store([row, N + column], up)
            extra.store([row, column], act.to(kind))
        else:
            tl.store(out + rows[:, None] * (2 * N) + columns[None, :], gate)
            tl.store(out + rows[:, None] * (2 * N) + (N + columns)[None, :], up)
            tl.store(extra + rows[:, None] * N + columns[None, :], act.to(kind))
    elif MODE == 3:
        # gate_up [M, 2N] is `extra`, its gradient goes to `out`, which may be the same
        if STORE_TMA:
            kind = tl.bfloat16
            gate = extra.load([row, column]).to(tl.float32)
            up = extra.load([row, N + column]).to(tl.float32)
        else:
            kind = out.dtype.element_ty
            gate = tl.load(extra + rows[:, None] * (2 * N) + columns[None, :]).to(tl.float32)
            up = tl.load(extra + rows[:, None] * (2 * N) + (N + columns)[None, :]).to(tl.float32)
        grad = first.to(kind).to(tl.float32)
        s = _sigmoid(gate)
        grad_gate = (grad * up * s * (1.0 + gate * (1.0 - s))).to(kind)
        grad_up = (grad * gate * s).to(kind)
        if STORE_TMA:
            out.store([row, column], grad_gate)
            out.store([row, N + column], grad_up)
        else:
            tl.store(out + rows[:, None] * (2 * N) + columns[None, :], grad_gate)
            tl.store(out + rows[:, None] * (2 * N) + (N + columns)[None, :], grad_up)
    else:
        if STORE_TMA:
            out.store([row, column], first.to(tl.bfloat16))
        else:
            rounded = first.to(out.dtype.element_ty)
            tl.store(out + rows[:, None] * N + columns[None, :], rounded)
            if MODE == 4:
                # `extra` takes maxima, `more` sums of exponentials, [N / BN, M] each
                value = rounded.to(tl.float32)
                maximum = tl.max(value, axis=1)
                total = tl.sum(tl.exp2((value - maximum[:, None]) * 1.4426950408889634), axis=1)
                M: tl.constexpr = 512
                tl.store(extra + (column // BN) * M + rows, maximum)
                tl.store(more + (column // BN) * M + rows, total)


@triton.jit
def product_kernel(
    a, w, out, extra, more, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, GROUP: tl.constexpr, MODE: tl.constexpr, TMA: tl.constexpr, STORE_TMA: tl.constexpr,
):  # fmt: skip
    """One program a tile."""
    m, n = _place(tl.program_id(0), M // BM, N // BN, GROUP)
    first, second = _tile_product(a, w, m * BM, n * BN, N, K, BM, BN, BK, MODE, TMA)
    _finish(first, second, out, extra, more, m * BM, n * BN, N, BM, BN, MODE, STORE_TMA)


@triton.jit
def persistent_kernel(
    a, w, out, extra, more, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, GROUP: tl.constexpr, MODE: tl.constexpr, TMA: tl.constexpr, STORE_TMA: tl.constexpr,
    PROGRAMS: tl.constexpr, FLATTEN: tl.constexpr, WS: tl.constexpr,
):  # fmt: skip
    """A program a multiprocessor, which takes tile after tile."""
    TILES: tl.constexpr = (M // BM) * (N // BN)
    for tile in tl.range(tl.program_id(0), TILES, PROGRAMS, flatten=FLATTEN, warp_specialize=WS):
        m, n = _place(tile, M // BM, N // BN, GROUP)
        first, second = _tile_product(a, w, m * BM, n * BN, N, K, BM, BN, BK, MODE, TMA)
        _finish(first, second, out, extra, more, m * BM, n * BN, N, BM, BN, MODE, STORE_TMA)

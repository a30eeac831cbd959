// dQ of causal grouped-query attention, and the row sums delta that `dkdv.cu` reads.
//
// B = BATCH, S sequence length, T = B * S, N = HEADS query heads, KV_HEADS key heads, D = 128.
//   qkv, grad_qkv [T, (N + 2 * KV_HEADS) * D] bf16; grad_output, output [T, N * D] bf16; lse, delta [B, N, S] fp32;
//   cosines, sines [S, D / 2] fp32.
//
//   P = exp(Q K^T / sqrt(D) - lse),  delta = rowsum(dO * O),  dS = P * (dO V^T - delta),  dQ = dS K / sqrt(D)
//
// dQ is rotated back. A tile has 128 queries of one head. Each of the two warp groups of a block processes 64 of these
// queries, and keeps Q, dO and dQ in registers. An item has 64 keys and values. The items of a tile end at its
// diagonal. Each block processes several tiles. Tiles are assigned to blocks from the longest to the shortest, in the
// order of the blocks and in the reverse order by turns. Each result is written by one block, so results have the same
// bits in every run.
//
// Macros: those of `tile.cuh`, and BATCH. NUM_STAGES is at least 3. Grid: one block for each multiprocessor.
#include "tile.cuh"

constexpr u32 QUERY_ROWS = 2 * TILE_ROWS;
constexpr u32 QUERY_TILES = S / QUERY_ROWS;
constexpr u32 TILES = BATCH * HEADS * QUERY_TILES;
static_assert(NUM_STAGES > 2, "a group holds its last item and looks past one");
static_assert(S % QUERY_ROWS == 0, "whole tiles");

// Offsets in shared memory, in bytes.
constexpr u32 QUERIES = 0;
constexpr u32 GRADS = 2 * TILE_BYTES;
constexpr u32 OUTPUTS = 4 * TILE_BYTES;
constexpr u32 RING = 6 * TILE_BYTES;  // NUM_STAGES stages, each with keys and values
constexpr u32 FULL = RING + NUM_STAGES * 2 * TILE_BYTES;
constexpr u32 EMPTY = FULL + NUM_STAGES * 8;
constexpr u32 TILE_FULL = EMPTY + NUM_STAGES * 8;
constexpr u32 TILE_EMPTY = TILE_FULL + 8;
static_assert(SHARED_MEMORY == TILE_EMPTY + 8, "a launch gives as many bytes");

struct Tile {
    bool exists;
    u32 batch, head, number;
};

// Return tile number `turn` of this block. In even rounds, tiles are assigned to blocks from the first block to the
// last, in odd rounds from the last to the first.
__device__ __forceinline__ Tile tile_of(u32 turn) {
    u32 index = turn * gridDim.x + (turn % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
    u32 sequence = index % (BATCH * HEADS);
    return {index < TILES, sequence / HEADS, sequence % HEADS, QUERY_TILES - 1 - index / (BATCH * HEADS)};
}

// Return the index of a tile's first row in lse and delta.
__device__ __forceinline__ u32 entry_of(const Tile& tile) {
    return (tile.batch * HEADS + tile.head) * S + tile.number * QUERY_ROWS;
}

// One thread starts the copies of all tiles. Each copy starts as soon as the consumers have released its place.
__device__ __forceinline__ void produce(
    const TensorMap& qkv, const TensorMap& grad_output, const TensorMap& output, u32 base) {
    u32 slot = 0, parity = 1;
#pragma unroll 1
    for (u32 turn = 0;; ++turn) {
        Tile tile = tile_of(turn);
        if (!tile.exists) break;
        barrier_wait(base + TILE_EMPTY, turn % 2 ^ 1);
        barrier_expect(base + TILE_FULL, 6 * TILE_BYTES);
#pragma unroll 1
        for (u32 half = 0; half < 2; ++half) {
            u32 row = tile.batch * S + tile.number * QUERY_ROWS + half * TILE_ROWS, target = base + half * TILE_BYTES;
            copy_tile(target + QUERIES, qkv, tile.head * D, row, base + TILE_FULL);
            copy_tile(target + GRADS, grad_output, tile.head * D, row, base + TILE_FULL);
            copy_tile(target + OUTPUTS, output, tile.head * D, row, base + TILE_FULL);
        }
        u32 column = (HEADS + tile.head / GROUP) * D;
#pragma unroll 1
        for (u32 item = 0; item < 2 * tile.number + 2; ++item) {
            u32 full = base + FULL + slot * 8, stage = base + RING + slot * 2 * TILE_BYTES;
            u32 row = tile.batch * S + item * TILE_ROWS;
            barrier_wait(base + EMPTY + slot * 8, parity);
            barrier_expect(full, 2 * TILE_BYTES);
            copy_tile(stage, qkv, column, row, full);
            copy_tile(stage + TILE_BYTES, qkv, column + KV_HEADS * D, row, full);
            if (++slot == NUM_STAGES) slot = 0, parity ^= 1;
        }
    }
}

struct Ring {
    u32 slot, parity;
};

__device__ __forceinline__ void advance(Ring& ring) {
    if (++ring.slot == NUM_STAGES) ring.slot = 0, ring.parity ^= 1;
}

// Start the product Q K^T or dO V^T of an item, [64 queries, 64 keys], without waiting for the result.
__device__ __forceinline__ void begin_square(
    float (&square)[32], const u32 (&left)[32], u32 right_tile, bool accumulate) {
    u64 right = k_major(right_tile);
    products_begin();
#pragma unroll
    for (int step = 0; step < 8; ++step)
        product_nt(square, left + 4 * step, right + k_major_step(step), accumulate || step > 0);
    products_commit();
}

// Set the scores of keys after the query to -infinity. `limit`: the last column (key) that the thread's upper row
// (query) may use.
__device__ __forceinline__ void mask(float (&scores)[32], int limit) {
#pragma unroll
    for (int i = 0; i < 32; ++i)
        if (i / 4 * 8 + i % 2 > limit + i % 4 / 2 * 8) scores[i] = __int_as_float(0xff800000);
}

// The data of a tile that stays in registers. In a pair, .x is for the thread's upper row, and .y for the row 8 rows
// below.
struct Rows {
    u32 queries[32], grads[32];
    float2 lse, delta;
};

__device__ __forceinline__ float dot(u32 a, u32 b) { return low_bf16(a) * low_bf16(b) + high_bf16(a) * high_bf16(b); }
__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffff, x, 1);
    return x + __shfl_xor_sync(0xffffffff, x, 2);
}

__device__ __forceinline__ u32 place_of(const Ring& ring, u32 base) { return base + RING + ring.slot * 2 * TILE_BYTES; }

__device__ __forceinline__ void await_item(const Ring& ring, u32 base) {
    barrier_wait(base + FULL + ring.slot * 8, ring.parity);
}

// Load Q of a tile, and start the product Q K^T of the tile's first item, without waiting for the result.
__device__ __forceinline__ void begin_tile(
    Rows& rows, float (&weights)[32], const Ring& ring, u32 base, u32 group, u32 turn) {
    barrier_wait(base + TILE_FULL, turn % 2);
#pragma unroll
    for (int step = 0; step < 8; ++step)
        load_factor(rows.queries + 4 * step, base + QUERIES + group * TILE_BYTES, step);
    await_item(ring, base);
    begin_square(weights, rows.queries, place_of(ring, base), false);
}

// Load dO of a tile, and compute and write its delta.
__device__ __forceinline__ void load_grads(Rows& rows, u32 base, u32 group, float* delta) {
    rows.delta = {0, 0};
#pragma unroll
    for (int step = 0; step < 8; ++step) {
        u32* grads = rows.grads + 4 * step;
        u32 outputs[4];
        load_factor(grads, base + GRADS + group * TILE_BYTES, step);
        load_factor(outputs, base + OUTPUTS + group * TILE_BYTES, step);
        rows.delta.x += dot(grads[0], outputs[0]) + dot(grads[2], outputs[2]);
        rows.delta.y += dot(grads[1], outputs[1]) + dot(grads[3], outputs[3]);
    }
    release(base + TILE_EMPTY);
    rows.delta = {quad_sum(rows.delta.x), quad_sum(rows.delta.y)};
    if (threadIdx.x % 4 == 0) delta[0] = rows.delta.x, delta[8] = rows.delta.y;
}

// Replace scores by weights.
__device__ __forceinline__ void weigh(float (&scores)[32], float2 log2_sum) {
#pragma unroll
    for (int i = 0; i < 32; ++i)
        scores[i] = power_of_two(scores[i] * (SCALE * LOG2_E) - (i % 4 < 2 ? log2_sum.x : log2_sum.y));
}

// Compute dQ of a tile. Q K^T of its first item must already have been started. Q K^T of the next item is started after
// dQ, and dO V^T runs while the weights are computed. The function does not wait for the last product into dQ. It
// returns the slot that this product reads.
__device__ __forceinline__ u32 accumulate_items(
    float (&dq)[64], float (&weights)[32], const Rows& rows, Ring& ring, u32 items, u32 base) {
    float grads[32];
    u32 factor[16], held = 0;
    int limit = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4 - threadIdx.x % 4 * 2;
    float2 log2_sum = {rows.lse.x * LOG2_E, rows.lse.y * LOG2_E};
    for (u32 item = 0;;) {
        u32 keys = place_of(ring, base);
        products_wait<1>();
        if (item) release(base + EMPTY + held * 8);
        // Start the sum at -delta, so that delta need not be subtracted later.
#pragma unroll
        for (int i = 0; i < 32; ++i) grads[i] = i % 4 < 2 ? -rows.delta.x : -rows.delta.y;
        begin_square(grads, rows.grads, keys + TILE_BYTES, true);
        products_wait<1>(weights);
        if (item + 1 == items) mask(weights, limit);
        weigh(weights, log2_sum);
        held = ring.slot;
        advance(ring);
        // Wait for the next item here. Without this branch, the compiler would compute the weights only after the next
        // wait.
        if (item + 1 < items) await_item(ring, base);
        products_wait<0>(grads);
#pragma unroll
        for (int i = 0; i < 32; i += 2)
            factor[i / 2] = pack_bf16(weights[i] * grads[i], weights[i + 1] * grads[i + 1]);
        begin_sum(dq, factor, keys, item > 0);
        if (++item == items) return held;
        begin_square(weights, rows.queries, place_of(ring, base), false);
    }
}

// Return two columns of one row in each half of a head, rotated back and packed. x: first half, y: second half.
__device__ __forceinline__ uint2 rotated(float2 x, float2 y, float2 c, float2 s) {
    x.x *= SCALE, x.y *= SCALE, y.x *= SCALE, y.y *= SCALE;
    return {pack_bf16(x.x * c.x + y.x * s.x, x.y * c.y + y.y * s.y),
            pack_bf16(y.x * c.x - x.x * s.x, y.y * c.y - x.y * s.y)};
}

// Cosines and sines for the two rows of a thread and its 16 columns in the head's first half.
struct Rotation {
    float2 cosines[2][8], sines[2][8];
};

// Load cosines and sines. `entry`: the index of the thread's upper row and first column in both tables.
__device__ __forceinline__ void load_rotation(Rotation& rotation, const float* cosines, const float* sines, u32 entry) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        u32 place = entry + i / 8 * 8 * (D / 4) + i % 8 * 4;
        rotation.cosines[i / 8][i % 8] = load_table(reinterpret_cast<const float2*>(cosines) + place);
        rotation.sines[i / 8][i % 8] = load_table(reinterpret_cast<const float2*>(sines) + place);
    }
}

// Write dQ. `target`: points to the thread's upper row and the head's first column, with two elements in each u32.
__device__ __forceinline__ void write(const float (&dq)[64], u32* target, const Rotation& rotation) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int j = 0; j < 8; j += 4) {
            uint2 rows[4];
#pragma unroll
            for (int k = j; k < j + 4; ++k) {
                int i = 4 * k + 2 * half;
                rows[k - j] = rotated({dq[i], dq[i + 1]}, {dq[i + 32], dq[i + 33]}, rotation.cosines[half][k],
                                      rotation.sines[half][k]);
            }
            uint4* wide = reinterpret_cast<uint4*>(target + half * 8 * (WIDTH / 2) + j * 4) + threadIdx.x % 4;
            wide[0] = quad_transpose(rows[0].x, rows[1].x, rows[2].x, rows[3].x);
            wide[D / 16] = quad_transpose(rows[0].y, rows[1].y, rows[2].y, rows[3].y);
        }
    }
}

__device__ __forceinline__ float2 load_pair(const float* lse, const Tile& tile, u32 thread_row) {
    const float* entry = lse + entry_of(tile) + thread_row;
    return tile.exists ? float2{entry[0], entry[8]} : float2{0, 0};
}

__device__ __forceinline__ void consume(
    const float* lse, float* delta, const float* cosines, const float* sines, u32* grad_qkv, u32 base) {
    u32 group = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
    u32 thread_row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    float dq[64], weights[32];
    Rows rows;
    Ring ring = {0, 0};
    Tile tile = tile_of(0);
    float2 next_lse = load_pair(lse, tile, thread_row);
#pragma unroll 1
    for (u32 turn = 0; tile.exists;) {
        rows.lse = next_lse;
        begin_tile(rows, weights, ring, base, group, turn);
        load_grads(rows, base, group, delta + entry_of(tile) + thread_row);
        u32 row = tile.number * QUERY_ROWS + thread_row, entry = row * (D / 4) + threadIdx.x % 4;
        u32* target = grad_qkv + u64(tile.batch * S + row) * (WIDTH / 2) + tile.head * (D / 2);
        u32 items = 2 * tile.number + 1 + group;
        tile = tile_of(++turn);
        next_lse = load_pair(lse, tile, thread_row);
        u32 held = accumulate_items(dq, weights, rows, ring, items, base);
        Rotation rotation;
        load_rotation(rotation, cosines, sines, entry);
        if (group == 0) {
            // This group skips the last item, because its keys come after all queries of the group.
            await_item(ring, base);
            release(base + EMPTY + ring.slot * 8);
            advance(ring);
        }
        products_wait<0>(dq);
        release(base + EMPTY + held * 8);
        write(dq, target, rotation);
    }
}

__device__ __forceinline__ void prepare_barriers(u32 base) {
    for (u32 slot = 0; slot < NUM_STAGES; ++slot) {
        barrier_init(base + FULL + slot * 8, 1);
        barrier_init(base + EMPTY + slot * 8, CONSUMER_WARPS);
    }
    barrier_init(base + TILE_FULL, 1);
    barrier_init(base + TILE_EMPTY, CONSUMER_WARPS);
    barriers_ready();
}

extern "C" __global__ void __launch_bounds__(32 * NUM_WARPS, 1)
    attention_dq(const __grid_constant__ TensorMap qkv, const __grid_constant__ TensorMap grad_output,
                 const __grid_constant__ TensorMap output, const float* lse, float* delta, const float* cosines,
                 const float* sines, u32* grad_qkv) {
    extern __shared__ __align__(1024) char shared[];
    u32 base = shared_address(shared);
    if (threadIdx.x == 0) prepare_barriers(base);
    __syncthreads();
    begin();
    if (threadIdx.x >= CONSUMERS) {
        registers_lower<24>();
        if (threadIdx.x == CONSUMERS) produce(qkv, grad_output, output, base);
    } else {
        registers_raise<240>();
        consume(lse, delta, cosines, sines, grad_qkv, base);
    }
}

// dK and dV of causal grouped-query attention, in one launch and without atomics. This file computes the sums of a
// block. `dkdv.cu` adds up the sums of several blocks and writes the result.
//
// B batch, S sequence length, T = B * S, N = HEADS query heads, KV_HEADS key heads, G = N / KV_HEADS, D = 128.
//   qkv, grad_qkv [T, (N + 2 * KV_HEADS) * D] bf16; grad_output [T, N * D] bf16; lse, delta [B, N, S] fp32;
//   cosines, sines [S, D / 2] fp32.
//
//   P^T = exp(K Q^T / sqrt(D) - lse),  dV = P^T dO,  dS^T = P^T * (V dO^T - delta),  dK = dS^T Q / sqrt(D)
//
// dV and dK are summed over the G query heads of a key head, and dK is rotated back. All matrices are transposed,
// [keys, queries]. So P^T and dS^T can be left factors of products in the registers in which they were computed.
//
// A tile has 128 keys. Each of the two warp groups of a block processes 64 of these keys, and keeps the sums dK and dV
// [64, 128] in registers. An item is a query head with 64 queries. The items of a tile begin at its diagonal. Both
// groups work on the same item. A block processes two tiles, number j from the front and number j from the back. Such a
// pair has the same number of items for every j. The CLUSTER blocks of a cluster share a pair of tiles, and each
// processes an equal number of consecutive items. At the end of a tile, the blocks exchange their sums and add them in
// fixed order. So each result is written by one block, and results have the same bits in every run.
//
// Macros: those of `tile.cuh`. CLUSTER is 1 to 3, and NUM_STAGES is at least 2. Grid: B * KV_HEADS * S / 256 * CLUSTER.
#pragma once

#include "tile.cuh"

constexpr u32 KEY_ROWS = 2 * TILE_ROWS;
constexpr u32 KEY_TILES = S / KEY_ROWS;
constexpr u32 QUERY_TILES = S / TILE_ROWS;
constexpr u32 PAIRS = KEY_TILES / 2;
static_assert(S % (2 * KEY_ROWS) == 0, "whole pairs of tiles");
static_assert(2 * GROUP % CLUSTER == 0, "blocks of a cluster share items equally");
static_assert(CLUSTER <= GROUP, "two items a block at least: with one of them the second warp group has no work");

// Number of registers of each thread for the sums that a block finishes: its share of 16 units of 8 registers. Each
// other block of the cluster sends this many sums to the block.
constexpr u32 PART = 8 * ((16 + CLUSTER - 1) / CLUSTER);
constexpr u32 PART_BYTES = PART * CONSUMERS * 4;
constexpr u32 ROW_BYTES = TILE_ROWS * 4;

// Offsets in shared memory, in bytes.
constexpr u32 KEYS = 0;
constexpr u32 VALUES = 2 * TILE_BYTES;
constexpr u32 RING = 4 * TILE_BYTES;  // NUM_STAGES stages, each with queries and gradients of outputs
constexpr u32 EXCHANGE = RING + NUM_STAGES * 2 * TILE_BYTES;
constexpr u32 ROWS = EXCHANGE + (CLUSTER - 1) * PART_BYTES;  // NUM_STAGES stages, each with lse and delta
constexpr u32 FULL = ROWS + NUM_STAGES * 2 * ROW_BYTES;
constexpr u32 EMPTY = FULL + NUM_STAGES * 8;
constexpr u32 KEYS_FULL = EMPTY + NUM_STAGES * 8;
constexpr u32 KEYS_EMPTY = KEYS_FULL + 8;
constexpr u32 SENT = KEYS_EMPTY + 8;
constexpr u32 READ = SENT + 8;
static_assert(SHARED_MEMORY == READ + 8, "a launch gives as many bytes");

struct Tile {
    u32 first_key;
    u32 count;  // number of query tiles of a head, from the diagonal on
    u32 items, head, query;  // number of items of this block, and the head and query tile of the first item
};

__device__ __forceinline__ Tile tile_of(u32 pair, u32 turn, u32 rank) {
    u32 number = turn ? KEY_TILES - 1 - pair : pair;
    Tile tile;
    tile.first_key = number * KEY_ROWS;
    tile.count = QUERY_TILES - 2 * number;
    tile.items = GROUP * tile.count / CLUSTER;
    tile.head = rank * tile.items / tile.count;
    tile.query = rank * tile.items % tile.count;
    return tile;
}

struct Place {
    u32 batch, kv_head, pair, rank;
};

__device__ __forceinline__ Place place() {
    u32 cluster = blockIdx.x / CLUSTER;
    u32 rank = CLUSTER > 1 ? cluster_rank() : 0;
    return {cluster / (PAIRS * KV_HEADS), cluster / PAIRS % KV_HEADS, cluster % PAIRS, rank};
}

// One thread starts the copies of all tiles. Each copy starts as soon as the consumers have released its place.
__device__ __forceinline__ void produce(
    const TensorMap& qkv, const TensorMap& grad_output, const float* lse, const float* delta, u32 base) {
    Place at = place();
    u32 slot = 0, parity = 1;
#pragma unroll 1
    for (u32 turn = 0; turn < 2; ++turn) {
        Tile tile = tile_of(at.pair, turn, at.rank);
        if (turn) barrier_wait(base + KEYS_EMPTY, 0);
        barrier_expect(base + KEYS_FULL, 4 * TILE_BYTES);
#pragma unroll 1
        for (u32 part = 0; part < 4; ++part) {
            u32 row = at.batch * S + tile.first_key + part % 2 * TILE_ROWS, head = HEADS + part / 2 * KV_HEADS;
            copy_tile(base + KEYS + part * TILE_BYTES, qkv, (head + at.kv_head) * D, row, base + KEYS_FULL);
        }
        u32 head = at.kv_head * GROUP + tile.head, query = tile.query;
#pragma unroll 1
        for (u32 item = 0; item < tile.items; ++item) {
            u32 full = base + FULL + slot * 8, stage = base + RING + slot * 2 * TILE_BYTES;
            u32 rows = base + ROWS + slot * 2 * ROW_BYTES, first = tile.first_key + query * TILE_ROWS;
            u32 entry = (at.batch * HEADS + head) * S + first;
            barrier_wait(base + EMPTY + slot * 8, parity);
            barrier_expect(full, 2 * TILE_BYTES + 2 * ROW_BYTES);
            copy_tile(stage, qkv, head * D, at.batch * S + first, full);
            copy_in(rows, lse + entry, ROW_BYTES, full);
            copy_tile(stage + TILE_BYTES, grad_output, head * D, at.batch * S + first, full);
            copy_in(rows + ROW_BYTES, delta + entry, ROW_BYTES, full);
            if (++query == tile.count) query = 0, ++head;
            if (++slot == NUM_STAGES) slot = 0, parity ^= 1;
        }
    }
}

// The current item of a consumer in a tile, and its slot in the ring.
struct Cursor {
    u32 left, query, count, slot, parity;
};

__device__ __forceinline__ void advance(Cursor& cursor) {
    --cursor.left;
    if (++cursor.query == cursor.count) cursor.query = 0;
    if (++cursor.slot == NUM_STAGES) cursor.slot = 0, cursor.parity ^= 1;
}

// Wait for the next item with work for this warp group. Return false if there is none. The first 64 queries of a tile
// come before all keys of the second group, so this group skips their item. With only two stages the group processes
// the item, because it still holds a stage and could not wait for a further one.
__device__ __forceinline__ bool acquire(Cursor& cursor, u32 base, u32 group) {
    for (; cursor.left; advance(cursor)) {
        barrier_wait(base + FULL + cursor.slot * 8, cursor.parity);
        if (NUM_STAGES < 3 || cursor.query >= group) return true;
        release(base + EMPTY + cursor.slot * 8);
    }
    return false;
}

// Start the product S^T or V dO^T of an item, [64 keys, 64 queries], without waiting for the result.
__device__ __forceinline__ void begin_square(float (&square)[32], u64 left, u32 right_tile) {
    u64 right = k_major(right_tile);
    products_begin();
#pragma unroll
    for (int step = 0; step < 8; ++step)
        product_nt(square, left + k_major_step(step), right + k_major_step(step), step > 0);
    products_commit();
}

// Set the scores of keys after the query to -infinity. `limit`: the first column (query) that the thread's upper row
// (key) is visible to.
__device__ __forceinline__ void mask(float (&scores)[32], int limit) {
#pragma unroll
    for (int i = 0; i < 32; ++i)
        if (i / 4 * 8 + i % 2 < limit + i % 4 / 2 * 8) scores[i] = __int_as_float(0xff800000);
}

// Replace scores by weights, and also write the weights as a left factor.
__device__ __forceinline__ void weigh(float (&scores)[32], u32 (&factor)[16], const float2 (&lse)[8]) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        float even = lse[j].x * LOG2_E, odd = lse[j].y * LOG2_E;
#pragma unroll
        for (int i = 4 * j; i < 4 * j + 4; i += 2) {
            scores[i] = power_of_two(scores[i] * (SCALE * LOG2_E) - even);
            scores[i + 1] = power_of_two(scores[i + 1] * (SCALE * LOG2_E) - odd);
            factor[i / 2] = pack_bf16(scores[i], scores[i + 1]);
        }
    }
}

__device__ __forceinline__ void load_columns(float2 (&values)[8], const float* row) {
#pragma unroll
    for (int j = 0; j < 8; ++j)
        values[j] = *reinterpret_cast<const float2*>(row + 8 * j + threadIdx.x % 4 * 2);
}

// Compute dS^T as a left factor, from P^T and V dO^T.
__device__ __forceinline__ void make_scores(
    u32 (&factor)[16], const float (&weights)[32], const float (&grads)[32], const float2 (&delta)[8]) {
#pragma unroll
    for (int i = 0; i < 32; i += 2)
        factor[i / 2] =
            pack_bf16(weights[i] * (grads[i] - delta[i / 4].x), weights[i + 1] * (grads[i + 1] - delta[i / 4].y));
}

// Compute the sums over the items of one tile. The products are started in an order in which one product always runs
// while the threads compute. V dO^T runs while the weights are computed from S^T. Then dV, dK and S^T of the next item
// follow.
__device__ __forceinline__ void accumulate_items(
    float (&dk)[64], float (&dv)[64], Cursor& cursor, u32 base, const char* shared, u32 group) {
    float weights[32], grads[32];
    u32 weight_factor[16], score_factor[16];
    u64 keys = k_major(base + KEYS + group * TILE_BYTES);
    u64 values = k_major(base + VALUES + group * TILE_BYTES);
    int thread_row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, thread_column = threadIdx.x % 4 * 2;
    u32 started = 0, held = 0;
    acquire(cursor, base, group);
    begin_square(weights, keys, base + RING + cursor.slot * 2 * TILE_BYTES);
    for (;;) {
        u32 queries = base + RING + cursor.slot * 2 * TILE_BYTES, outputs = queries + TILE_BYTES;
        const float* rows = reinterpret_cast<const float*>(shared + ROWS + cursor.slot * 2 * ROW_BYTES);
        products_wait<1>();
        if (started) release(base + EMPTY + held * 8);
        float2 columns[8];
        begin_square(grads, values, outputs);
        load_columns(columns, rows);
        products_wait<1>(weights);
        if (cursor.query <= group)
            mask(weights, thread_row - thread_column + static_cast<int>(group - cursor.query) * 64);
        weigh(weights, weight_factor, columns);
        begin_sum(dv, weight_factor, outputs, started);
        load_columns(columns, rows + TILE_ROWS);
        products_wait<1>(grads);
        make_scores(score_factor, weights, grads, columns);
        begin_sum(dk, score_factor, queries, started);
        started = 1, held = cursor.slot;
        advance(cursor);
        if (!acquire(cursor, base, group)) break;
        begin_square(weights, keys, base + RING + cursor.slot * 2 * TILE_BYTES);
    }
    products_wait<0>(dk);
    products_wait<0>(dv);
    release(base + EMPTY + held * 8);
}

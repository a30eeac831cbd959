// The product left [M, K] @ right. Each block stays on its multiprocessor and computes one tile after the other.
//
// Legend: M rows, N columns, K summed dimension. A tile is 128 x COLUMNS elements of the result. A stage has 128 bytes
// of each row of the operands: 64 elements along K in bf16, or 128 in FP8. A pair is two tiles, one below the other.
// The two blocks of a cluster compute one tile each. Both need the same part of the right operand, so each block
// fetches half of it for both blocks.
//
// A block has three warp groups. One group fills a ring of stages through the copy engine. The other two groups
// multiply, each for its own tile. While one group writes its tile (the epilogue), the other group uses the tensor
// cores. So an epilogue costs no time unless it takes longer than a product.
//
// Each element is summed by one warp group in the order of K, so results have the same bits in every run. With EXTRA, a
// second product with a smaller K is added after the first, as if the operands of both products were joined along K.
//
// Macros: M, N, K, COLUMNS (192), GROUP (number of pairs in a group, see `tile_of`), TRANSPOSED (1: the right operand
// is [K, N], 0: [N, K]), FP8 (1: both operands are e4m3, 0: bf16), EXTRA (0, or the K of the second product, at most
// 64), EPILOGUE_BYTES and SCALE_BYTES (for each warp group), and the macros of every spec: NUM_STAGES, NUM_WARPS,
// CLUSTER. With FP8, TRANSPOSED and EXTRA must be 0, and the rows of the right operand are in another order (see
// `fp8_products/fp8.cuh`).
#pragma once

#if NUM_WARPS != 12 || CLUSTER != 2 || COLUMNS != 192
#error "three warp groups a block, two blocks a cluster, 192 columns an instruction"
#endif

#include "../hopper.cuh"

#ifndef FP8
#define FP8 0
#endif
#ifndef SCALE_BYTES
#define SCALE_BYTES 0
#endif

#define ROWS 128
#define DEPTH (FP8 ? 128 : 64)
#define LEFT_BYTES (ROWS * 128)
#define RIGHT_BYTES (COLUMNS * 128)
#define STAGE_BYTES (LEFT_BYTES + RIGHT_BYTES)
#define OWN_STEPS ((K + DEPTH - 1) / DEPTH)
#define STEPS (OWN_STEPS + (EXTRA > 0))
#define PAIRS ((M + 2 * ROWS - 1) / (2 * ROWS))
#define PANELS ((N + COLUMNS - 1) / COLUMNS)
#define ACCUMULATORS_OF_64_ROWS (COLUMNS / 2)
#define ALIGNMENT 1024
// Identifiers of named barriers. 1 and 2 are used inside each of the two multiplying warp groups.
#define TURN_OF_GROUP_0 3

// Addresses in shared memory: the ring of stages, and the buffers, scales and barriers of the epilogues.
struct Places {
    u32 ring, epilogue, scales, barriers;

    __device__ __forceinline__ explicit Places(const void* memory) {
        ring = (shared_address(memory) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        epilogue = ring + NUM_STAGES * STAGE_BYTES;
        scales = epilogue + 2 * EPILOGUE_BYTES;
        barriers = scales + 2 * SCALE_BYTES;
    }
    __device__ __forceinline__ u32 left(u32 stage) const { return ring + stage * STAGE_BYTES; }
    __device__ __forceinline__ u32 right(u32 stage) const { return left(stage) + LEFT_BYTES; }
    __device__ __forceinline__ u32 full(u32 stage) const { return barriers + 8 * stage; }
    __device__ __forceinline__ u32 empty(u32 stage) const { return barriers + 8 * (NUM_STAGES + stage); }
    // barrier of a buffer that an epilogue of this warp group reads
    __device__ __forceinline__ u32 fetched(u32 group, u32 buffer) const {
        return barriers + 8 * (2 * NUM_STAGES + 4 * group + buffer);
    }
    // barrier of a buffer whose results another warp copies to memory
    __device__ __forceinline__ u32 written(u32 group, u32 buffer) const { return fetched(group, buffer) + 8 * 8; }
};

// The operands of the product and of the second product (EXTRA).
struct Operands {
    const TensorMap &left, &right, &extra_left, &extra_right;
};

struct Tile {
    int row, column;
};

// Return the tile of block `rank` in pair `number`. Consecutive pairs are GROUP pairs below each other, then the same
// rows in the next panel. After the last panel, the next GROUP rows follow. So the pairs that are computed at the same
// time cover about as many rows as columns, and most of their operands are read from the L2 cache.
__device__ __forceinline__ Tile tile_of(u32 number, u32 rank) {
    const u32 group = number / (GROUP * PANELS);
    const u32 inside = number - group * (GROUP * PANELS);
    const u32 height = PAIRS - group * GROUP < GROUP ? PAIRS - group * GROUP : GROUP;
    const u32 panel = inside / height;
    const u32 pair = group * GROUP + inside - panel * height;
    return {static_cast<int>((2 * pair + rank) * ROWS), static_cast<int>(panel * COLUMNS)};
}

__device__ __forceinline__ void prepare_barriers(const Places& places) {
    if (threadIdx.x == 0) {
        for (u32 stage = 0; stage < NUM_STAGES; ++stage) {
            barrier_init(places.full(stage), 1);
            barrier_init(places.empty(stage), 2);  // one arrival from each block
        }
        for (u32 buffer = 0; buffer < 8; ++buffer) {
            barrier_init(places.fetched(0, buffer), 1);
            barrier_init(places.written(0, buffer), 4);  // one arrival of each warp
        }
        barriers_ready();
    }
    cluster_sync();
}

// Copy this block's half of the right operand of one stage into both blocks.
__device__ __forceinline__ void fetch_right(
    const Places& places, const TensorMap& right, u32 stage, int column, int depth, u32 rank) {
    const u32 barrier = places.full(stage);
#if TRANSPOSED
    // Copy pieces of 64 columns. A piece is [64 along K, 64 columns], and each block copies half of K.
    for (int piece = 0; piece < COLUMNS / 64; ++piece) {
        const u32 to = places.right(stage) + piece * (DEPTH * 128) + rank * (DEPTH / 2 * 128);
        copy_in_all(to, right, column + 64 * piece, depth + static_cast<int>(rank) * (DEPTH / 2), barrier, 3);
    }
#else
    const u32 to = places.right(stage) + rank * (RIGHT_BYTES / 2);
#if FP8
    // The tensor map has the dimensions [group of 32 rows, e, q, b, K], see `fp8_products/fp8.cuh`.
    copy_in_all(to, right, depth, 0, 0, 0, right_row(column, rank) / 32, barrier, 3);
#else
    copy_in_all(to, right, depth, right_row(column, rank), barrier, 3);
#endif
#endif
}

// Fill the ring with the operands of all tiles of this block. One thread calls this function.
__device__ __forceinline__ void feed(const Places& places, const Operands& operands, u32 rank) {
    u32 stage = 0, parity = 1;
    for (u32 number = blockIdx.x / 2; number < PAIRS * PANELS; number += gridDim.x / 2) {
        const Tile tile = tile_of(number, rank);
        for (int step = 0; step < STEPS; ++step) {
            const bool extra = step >= OWN_STEPS;  // elements beyond the second product's K are read as zeros
            const int depth = extra ? 0 : step * DEPTH;
            barrier_wait(places.empty(stage), parity);
            barrier_expect(places.full(stage), STAGE_BYTES);
            copy_in(places.left(stage), extra ? operands.extra_left : operands.left, depth, tile.row, places.full(stage));
            fetch_right(places, extra ? operands.extra_right : operands.right, stage, tile.column, depth, rank);
            if (++stage == NUM_STAGES) stage = 0, parity ^= 1;
        }
    }
}

#define ACCUMULATORS(i) \
    "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), "+f"(c[i + 6]), \
        "+f"(c[i + 7])

#define NAMES_OF_ACCUMULATORS \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, " \
    "%21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, " \
    "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, " \
    "%59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, " \
    "%78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#if FP8
#define INSTRUCTION "m64n192k32.f32.e4m3.e4m3"
#define OPERANDS_OF_INSTRUCTION "}, %96, %97, p, 1, 1;\n}"
#else
#define INSTRUCTION "m64n192k16.f32.bf16.bf16"
#define OPERANDS_OF_INSTRUCTION "}, %96, %97, p, 1, 1, 0, %99;\n}"
#endif

// Start c [64, COLUMNS] = (add ? c : 0) + a [64, 32 bytes] @ b [32 bytes, COLUMNS]. a and b are descriptors. FP8
// products are added with about 14 bits, as in the library's fast accumulation (`reference_impl/fp8.py`).
__device__ __forceinline__ void multiply(float (&c)[ACCUMULATORS_OF_64_ROWS], u64 a, u64 b, int add) {
    asm volatile(
        "{\n .reg .pred p;\n setp.ne.b32 p, %98, 0;\n"
        " wgmma.mma_async.sync.aligned." INSTRUCTION " {" NAMES_OF_ACCUMULATORS OPERANDS_OF_INSTRUCTION
        : ACCUMULATORS(0), ACCUMULATORS(8), ACCUMULATORS(16), ACCUMULATORS(24), ACCUMULATORS(32), ACCUMULATORS(40),
          ACCUMULATORS(48), ACCUMULATORS(56), ACCUMULATORS(64), ACCUMULATORS(72), ACCUMULATORS(80), ACCUMULATORS(88)
        : "l"(a), "l"(b), "r"(add), "n"(TRANSPOSED));
}

// Keep the compiler from moving accesses to the accumulators across this call.
__device__ __forceinline__ void settle(float (&c)[2][ACCUMULATORS_OF_64_ROWS]) {
#pragma unroll
    for (int i = 0; i < ACCUMULATORS_OF_64_ROWS; ++i) {
        asm volatile("" : "+f"(c[0][i])::"memory");
        asm volatile("" : "+f"(c[1][i])::"memory");
    }
}

// Signal to both blocks that this warp group has read a stage.
__device__ __forceinline__ void release(const Places& places, u32 stage) {
    const u32 thread = threadIdx.x % 128;
    if (thread < 2) barrier_arrive_at(places.empty(stage), thread);
}

// Compute tile number `turn` of this block into c: rows 0-63 in c[0], rows 64-127 in c[1]. The warp groups multiply in
// turns. The parity of a barrier distinguishes only two consecutive rounds of the ring. So a group that did not wait
// for its turn could read stages that are meant for the other group.
__device__ __forceinline__ void multiply_tile(
    const Places& places, float (&c)[2][ACCUMULATORS_OF_64_ROWS], u32 turn, u32 group) {
    u32 stage = turn * STEPS % NUM_STAGES, parity = turn * STEPS / NUM_STAGES & 1, before = 0;
    settle(c);
    if (turn > 0) group_wait(TURN_OF_GROUP_0 + group);
    for (int step = 0; step < STEPS; ++step) {
        barrier_wait(places.full(stage), parity);
        products_begin();
        const u64 left = tile_descriptor(places.left(stage), 0);
        const u64 right = tile_descriptor(places.right(stage), TRANSPOSED ? DEPTH * 128 : 0);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            // Descriptors have units of 16 bytes. Along K, one instruction reads 32 bytes of each row, or 16 rows of
            // 128 bytes.
            const u64 b = right + k * (TRANSPOSED ? 128 : 2);
            multiply(c[0], left + 2 * k, b, step + k > 0);
            multiply(c[1], left + 2 * k + 64 * 128 / 16, b, step + k > 0);
        }
        products_commit();
        if (step == STEPS - 1) group_tell(TURN_OF_GROUP_0 + 1 - group);
        if (step > 0) {
            products_wait<1>();
            release(places, before);
        }
        before = stage;
        if (++stage == NUM_STAGES) stage = 0, parity ^= 1;
    }
    products_wait<0>();
    release(places, before);
    settle(c);
}

// An epilogue copies chunks [64, CHUNK_COLUMNS] of a tile. CHUNK_COLUMNS is 64, or 32 for buffers of half the size.
#ifndef CHUNK_COLUMNS
#define CHUNK_COLUMNS 64
#endif
#define CHUNK_BYTES (64 * CHUNK_COLUMNS * 2)
#define CHUNKS_ACROSS (COLUMNS / CHUNK_COLUMNS)
#define CHUNKS (2 * CHUNKS_ACROSS)
#define PAIRS_OF_A_CHUNK (CHUNK_COLUMNS / 4)  // number of pairs of neighboring elements that one thread has

// Return the offset of a thread's pair number `pair` in a chunk whose rows have the copy engine's swizzle of 128 or 64
// bytes. The 32 threads of a warp, in eight rows and four columns, access 32 different banks.
__device__ __forceinline__ u32 chunk_offset(u32 pair) {
    const u32 lane = threadIdx.x % 32, eight = pair / 2;
    const u32 row = threadIdx.x % 128 / 32 * 16 + pair % 2 * 8 + lane / 4;
    const u32 moved = CHUNK_COLUMNS == 64 ? row & 7 : row >> 1 & 3;
    return row * (2 * CHUNK_COLUMNS) + ((eight ^ moved) << 4) + lane % 4 * 4;
}

// Return the accumulators of a thread's pair.
__device__ __forceinline__ const float* pair_of(
    const float (&c)[2][ACCUMULATORS_OF_64_ROWS], int chunk, int pair) {
    return &c[chunk / CHUNKS_ACROSS][(chunk % CHUNKS_ACROSS * PAIRS_OF_A_CHUNK + pair) * 2];
}

__device__ __forceinline__ int chunk_column(const Tile& tile, int chunk) {
    return tile.column + chunk % CHUNKS_ACROSS * CHUNK_COLUMNS;
}
__device__ __forceinline__ int chunk_row(const Tile& tile, int chunk) { return tile.row + chunk / CHUNKS_ACROSS * 64; }

// Attention's backward on Hopper: tiles in shared memory, and the products of tiles by a warp group.
//
// A tile is [64 rows, 128 columns] of bf16 and has 16 KB. It consists of two boxes of 64 columns, as the copy engine
// writes them. A box has 128 bytes in each row, a 128-byte swizzle, and 8 KB. A product can read the same bytes as a
// K-major factor (the rows are the product's M or N) or as an MN-major factor (the rows are the product's K).
//
// An accumulator of 64 rows is spread over the 128 threads of a warp group. Thread t has two rows, 16 * (t / 32) + t %
// 32 / 4 in d[4 j] and d[4 j + 1], and the row 8 below it in d[4 j + 2] and d[4 j + 3]. These are the columns 8 * j + 2 *
// (t % 4) and the next one. A left factor in registers has the same layout, with two bf16 values in each register.
//
// Macros: S (sequence length), HEADS, KV_HEADS, SHARED_MEMORY (bytes of a launch), and the macros of every spec.
#pragma once

#include "../hopper.cuh"

#if NUM_WARPS != 12
#error "three warp groups a block: one feeds, two multiply"
#endif

constexpr u32 D = 128;
constexpr u32 GROUP = HEADS / KV_HEADS;
constexpr u32 WIDTH = (HEADS + 2 * KV_HEADS) * D;
constexpr float SCALE = 0.08838834764831845f;  // 1 / sqrt(D)
constexpr float LOG2_E = 1.4426950408889634f;
static_assert(HEADS % KV_HEADS == 0, "whole groups of heads");

constexpr u32 TILE_ROWS = 64;
constexpr u32 TILE_BYTES = 16384;
constexpr u32 BOX_COLUMNS = 64;
constexpr u32 BOX_BYTES = 8192;

// Number of threads that multiply. Each of their warps releases a place in the ring separately when it has read it.
constexpr u32 CONSUMERS = 256;
constexpr u32 CONSUMER_WARPS = CONSUMERS / 32;

__device__ __forceinline__ void copy_tile(u32 to, const TensorMap& map, u32 column, u32 row, u32 barrier) {
    copy_in(to, map, column, row, barrier);
    copy_in(to + BOX_BYTES, map, column + BOX_COLUMNS, row, barrier);
}

__device__ __forceinline__ void release(u32 barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
}

// Load two numbers of a table, which no kernel may change at the same time. `volatile` keeps the compiler from moving
// this load.
__device__ __forceinline__ float2 load_table(const float2* entry) {
    float2 value;
    asm volatile("ld.global.nc.v2.f32 {%0, %1}, [%2];"
                 : "=f"(value.x), "=f"(value.y)
                 : "l"(__cvta_generic_to_global(entry)));
    return value;
}

// Transpose values among four neighboring threads. Each thread passes in one part of each of four blocks. Thread number
// i gets all four parts of block i.
__device__ __forceinline__ uint4 quad_transpose(u32 a, u32 b, u32 c, u32 d) {
    bool odd = threadIdx.x & 1, upper = threadIdx.x & 2;
    u32 x = __shfl_xor_sync(0xffffffff, odd ? a : b, 1), y = __shfl_xor_sync(0xffffffff, odd ? c : d, 1);
    if (odd) a = x, c = y;
    else b = x, d = y;
    x = __shfl_xor_sync(0xffffffff, upper ? a : c, 2), y = __shfl_xor_sync(0xffffffff, upper ? b : d, 2);
    return upper ? uint4{x, y, c, d} : uint4{a, b, x, y};
}

// ---- products

// Return the descriptor of a tile. The hardware does not read the leading distance of a K-major factor. In an MN-major
// factor, it is the distance to the next 64 columns, which is the size of a box.
__device__ __forceinline__ u64 k_major(u32 tile) { return tile_descriptor(tile, 16); }
__device__ __forceinline__ u64 mn_major(u32 tile) { return tile_descriptor(tile, BOX_BYTES); }

// Return the offset of slice `step` in a tile, in units of 16 bytes. A slice has 16 elements along K.
__device__ __forceinline__ constexpr u64 k_major_step(int step) {
    return (step / 4) * (BOX_BYTES >> 4) + (step % 4) * 2;
}
__device__ __forceinline__ constexpr u64 mn_major_step(int step) { return step * (2048 >> 4); }

#define ACC8(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define ACC32(d) ACC8(d, 0), ACC8(d, 8), ACC8(d, 16), ACC8(d, 24)
#define ACC64(d) ACC32(d), ACC8(d, 32), ACC8(d, 40), ACC8(d, 48), ACC8(d, 56)
#define LIST32 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26," \
    "%27,%28,%29,%30,%31"
#define LIST64 LIST32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54," \
    "%55,%56,%57,%58,%59,%60,%61,%62,%63"

// Wait until at most PENDING groups of products are unfinished. The accumulator is an operand, so that the compiler
// does not read it before the wait.
template <int PENDING>
__device__ __forceinline__ void products_wait(float (&d)[32]) {
    asm volatile("wgmma.wait_group.sync.aligned %32;" : ACC32(d) : "n"(PENDING) : "memory");
}
template <int PENDING>
__device__ __forceinline__ void products_wait(float (&d)[64]) {
    asm volatile("wgmma.wait_group.sync.aligned %64;" : ACC64(d) : "n"(PENDING) : "memory");
}

// d[64, 64] = left[64, 16] right[64, 16]^T (+ d), both in shared memory and K-major.
__device__ __forceinline__ void product_nt(float (&d)[32], u64 left, u64 right, u32 accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" LIST32 "}, %32, %33, p, 1, 1, 0, 0;\n}"
        : ACC32(d) : "l"(left), "l"(right), "r"(accumulate));
}

// d[64, 64] = left[64, 16] right[64, 16]^T (+ d), the left factor in registers.
__device__ __forceinline__ void product_nt(float (&d)[32], const u32* left, u64 right, u32 accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" LIST32 "}, {%32,%33,%34,%35}, %36, p, 1, 1, 0;\n}"
        : ACC32(d) : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right), "r"(accumulate));
}

// d[64, 128] = left[64, 16] right[16, 128] (+ d), the left factor in registers, the right one MN-major.
__device__ __forceinline__ void product_nn(float (&d)[64], const u32* left, u64 right, u32 accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" LIST64 "}, {%64,%65,%66,%67}, %68, p, 1, 1, 1;\n}"
        : ACC64(d) : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right), "r"(accumulate));
}

// Start sum[64, 128] += factor[64, 64] rows[64, 128] without waiting for the result. rows: a tile in shared memory.
__device__ __forceinline__ void begin_sum(float (&sum)[64], const u32 (&factor)[16], u32 rows_tile, u32 accumulate) {
    u64 rows = mn_major(rows_tile);
    products_begin();
#pragma unroll
    for (int step = 0; step < 4; ++step)
        product_nn(sum, factor + 4 * step, rows + mn_major_step(step), step > 0 ? 1 : accumulate);
    products_commit();
}

// Load slice `step` (16 columns) of the rows of a swizzled tile, as the four registers of a left factor.
__device__ __forceinline__ void load_factor(u32* factor, u32 tile, int step) {
    u32 lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane % 16, chunk = step % 4 * 2 + lane / 16;
    u32 address = tile + step / 4 * BOX_BYTES + row * 128 + ((chunk ^ (row % 8)) * 16);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(factor[0]), "=r"(factor[1]), "=r"(factor[2]), "=r"(factor[3]) : "r"(address) : "memory");
}

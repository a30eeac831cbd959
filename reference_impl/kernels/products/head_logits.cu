// logits = left @ right^T, and of every row what its softmax needs, in one kernel; M tokens, N vocabulary, K hidden.
//
// left [M, K], right [N, K], logits [M, N], all bf16. Of a row's logits in a panel of COLUMNS, as they are stored,
// rounded: maxima [M, PANELS] has the largest, totals [M, PANELS] the sum of exp(logit - largest), both fp32. The last
// panel may reach beyond the vocabulary, and the last tile beyond the tokens: nothing there counts.
#define TRANSPOSED 0
#define BUFFERS 2
#define EPILOGUE_BYTES (BUFFERS * 64 * 64 * 2)

__device__ __forceinline__ int right_row(int column, unsigned rank) {
    return column + static_cast<int>(rank) * (COLUMNS / 2);
}

#define N WIDTH
#include "product.cuh"

#if N % 8 != 0
#error "eight columns are within the vocabulary, or all beyond it"
#endif

#define EIGHTS (COLUMNS / 8)
#define TWICE_MINUS_INFINITY 0xFF80FF80u
#define LOWEST -3.402823466e38f
#define LOG2_E 1.4426950408889634f

// Of each of two neighbours; one that is NaN is passed over here, and found by the sum.
__device__ __forceinline__ u32 larger_bf16(u32 a, u32 b) {
    u32 result;
    asm("max.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
    return result;
}

// The other three lanes that hold elements of the same rows: 1, then 2 away.
__device__ __forceinline__ float of_quad(float x, int away) { return __shfl_xor_sync(0xFFFFFFFFu, x, away); }

// Maximum and total of a row, from a thread's share of it: every lane of the quad has both.
__device__ __forceinline__ void statistics(const u32 (&row)[EIGHTS], float& maximum, float& total) {
    u32 both = row[0];
#pragma unroll
    for (int eight = 1; eight < EIGHTS; ++eight) both = larger_bf16(both, row[eight]);
    // Finite, as -inf - -inf would be NaN.
    maximum = fmaxf(fmaxf(low_bf16(both), high_bf16(both)), LOWEST);
    maximum = fmaxf(maximum, of_quad(maximum, 1));
    maximum = fmaxf(maximum, of_quad(maximum, 2));
    float low = 0.0f, high = 0.0f;
#pragma unroll
    for (int eight = 0; eight < EIGHTS; ++eight) {
        low += power_of_two((low_bf16(row[eight]) - maximum) * LOG2_E);
        high += power_of_two((high_bf16(row[eight]) - maximum) * LOG2_E);
    }
    total = low + high;
    total += of_quad(total, 1);
    total += of_quad(total, 2);
}

__device__ __forceinline__ void write_tile(
    const Places& places, float (&c)[2][ACCUMULATORS_OF_64_ROWS], const TensorMap& logits, float* maxima, float* totals,
    Tile tile, u32 group) {
    const u32 thread = threadIdx.x % 128;
    const int within = N - tile.column;  // columns of the vocabulary from here on
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        u32 rows[2][EIGHTS];
#pragma unroll
        for (int across = 0; across < CHUNKS_ACROSS; ++across) {
            const int chunk = half * CHUNKS_ACROSS + across;
            const u32 buffer = places.epilogue + group * EPILOGUE_BYTES + chunk % BUFFERS * CHUNK_BYTES;
            if (thread == 0) copy_out_read<BUFFERS - 1>();
            group_sync(group + 1);
#pragma unroll
            for (int pair = 0; pair < PAIRS_OF_A_CHUNK; ++pair) {
                const int eight = across * (CHUNK_COLUMNS / 8) + pair / 2;
                const float* sum = pair_of(c, chunk, pair);
                const u32 rounded = pack_bf16(sum[0], sum[1]);
                shared_store(buffer + chunk_offset(pair), rounded);
                rows[pair % 2][eight] = 8 * eight < within ? rounded : TWICE_MINUS_INFINITY;
            }
            threads_wrote();
            group_sync(group + 1);
            if (thread == 0) {
                copy_out(logits, chunk_column(tile, chunk), chunk_row(tile, chunk), buffer);
                copy_out_commit();
            }
        }
#pragma unroll
        for (int lower = 0; lower < 2; ++lower) {
            float maximum, total;
            statistics(rows[lower], maximum, total);
            const int row = tile.row + half * 64 + static_cast<int>(thread / 32 * 16 + lower * 8 + thread % 32 / 4);
            if (thread % 4 == 0 && row < M) {
                const int at = row * PANELS + tile.column / COLUMNS;
                maxima[at] = maximum;
                totals[at] = total;
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(32 * NUM_WARPS, 1)
    products_head_logits(const __grid_constant__ TensorMap left, const __grid_constant__ TensorMap right,
                         const __grid_constant__ TensorMap logits, float* maxima, float* totals) {
    extern __shared__ unsigned char memory[];
    const Places places(memory);
    const u32 rank = cluster_rank(), group = threadIdx.x / 128;
    prepare_barriers(places);
    begin();
    if (group == 2) {
        registers_lower<24>();
        if (threadIdx.x % 128 == 0) feed(places, {left, right, left, right}, rank);
    } else {
        registers_raise<240>();
        u32 turn = group;
        for (u32 number = blockIdx.x / 2 + group * (gridDim.x / 2); number < PAIRS * PANELS; number += gridDim.x) {
            float c[2][ACCUMULATORS_OF_64_ROWS] = {};  // of this tile alone: the epilogue has their registers
            multiply_tile(places, c, turn, group);
            write_tile(places, c, logits, maxima, totals, tile_of(number, rank), group);
            turn += 2;
        }
        copy_out_done();
    }
    cluster_sync();
}

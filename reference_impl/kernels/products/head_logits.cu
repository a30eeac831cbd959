// Compute logits = left @ right^T, and statistics of each row for its softmax, in one kernel. M tokens, N vocabulary, K
// hidden.
//
// left [M, K], right [N, K] and logits [M, N] are bf16. A panel has COLUMNS columns. For each row and panel, maxima
// fp32 [M, PANELS] has the largest rounded logit, and totals fp32 [M, PANELS] has the sum of exp(logit - largest). The
// last panel may reach beyond the vocabulary, and the last tile beyond the tokens. Elements there are ignored.
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

// Return the larger values of two pairs of neighbors. A NaN is ignored here, but makes the sum of exponentials NaN.
__device__ __forceinline__ u32 larger_bf16(u32 a, u32 b) {
    u32 result;
    asm("max.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
    return result;
}

// Return the value of another lane. The four lanes of a quad have elements of the same rows. `away` is 1 or 2.
__device__ __forceinline__ float of_quad(float x, int away) { return __shfl_xor_sync(0xFFFFFFFFu, x, away); }

// Compute the maximum and the total of a row in a panel. Each lane of a quad passes its elements, and gets both
// results.
__device__ __forceinline__ void statistics(const u32 (&row)[EIGHTS], float& maximum, float& total) {
    u32 both = row[0];
#pragma unroll
    for (int eight = 1; eight < EIGHTS; ++eight) both = larger_bf16(both, row[eight]);
    // Make the maximum finite, because -inf - -inf would be NaN.
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
    const int within = N - tile.column;  // number of columns from the tile's first column to the end of the vocabulary
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
            float c[2][ACCUMULATORS_OF_64_ROWS] = {};  // zero for each tile; the epilogue uses the registers
            multiply_tile(places, c, turn, group);
            write_tile(places, c, logits, maxima, totals, tile_of(number, rank), group);
            turn += 2;
        }
        copy_out_done();
    }
    cluster_sync();
}

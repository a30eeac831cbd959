// Compute gate_up = left @ right^T and act = silu(gate) * up in one kernel, with operands in e4m3. M tokens, N
// intermediate, K hidden.
//
// left [M, K] and right [2N, K] (the rows of gate first) are e4m3 with one scale for each row, f32 [M] and [2N].
// gate_up [M, 2N] is bf16. act [M, N] is e4m3, and is computed from the rounded gate and up. norms f32 [M]: upper
// bounds of the norms of left's rows. limit f32 [1]: upper bound, for every column, of the norm of gate's row times the
// norm of up's row in right. So |act| <= |gate * up| <= norms^2 * limit. The scale of a row of act is computed from
// this bound, and written to scale f32 [M].
#define FP8 1
#define TRANSPOSED 0
#define EPILOGUE_BYTES 0
#define SCALE_BYTES (2 * COLUMNS + 4 * 128)

// Return the first row of `right` that a block fetches. Block 0 fetches rows of gate, and block 1 rows of up. A panel
// has COLUMNS / 2 columns of the intermediate.
__device__ __forceinline__ int right_row(int column, unsigned rank) {
    return column / 2 + static_cast<int>(rank) * WIDTH;
}

// A tile of COLUMNS has COLUMNS / 2 columns of act.
#define N (2 * WIDTH)
#include "../products/product.cuh"

#include "fp8.cuh"

struct Results {
    u16* gate_up;
    unsigned char* act;
};

struct Scales {
    const float *left, *right, *norms, *limit;
    float* act;
};

// Write the scales of a tile to shared memory: right's scale for each column, gate's columns first, and for each row
// left's scale and the inverse of act's scale.
__device__ __forceinline__ void stage_scales(u32 place, const Scales& scales, Tile tile) {
    const int thread = threadIdx.x % 128, row = tile.row + thread;
    for (int column = thread; column < COLUMNS; column += 128) {
        const int within = column % (COLUMNS / 2), up = column / (COLUMNS / 2);
        store_column(place, column, number_at(scales.right + up * WIDTH, tile.column / 2 + within, WIDTH));
    }
    const float norm = number_at(scales.norms, row, M), scale = row_scale(norm * norm * *scales.limit);
    store_row(place, thread, number_at(scales.left, row, M), inverse_of(scale));
    if (tile.column == 0 && row < M) scales.act[row] = scale;
}

// Compute gate and up of two columns, as they are stored, and act divided by its scale.
__device__ __forceinline__ void swiglu_pair(
    const float* gate_sums, const float* up_sums, u32 gate_scales, u32 up_scales, u32 row, u32& gate, u32& up,
    float (&act)[2]) {
    const float left = low_bf16(row), inverse = high_bf16(row);
    gate = pack_bf16(gate_sums[0] * left * low_bf16(gate_scales), gate_sums[1] * left * high_bf16(gate_scales));
    up = pack_bf16(up_sums[0] * left * low_bf16(up_scales), up_sums[1] * left * high_bf16(up_scales));
    const float low = low_bf16(gate), high = high_bf16(gate);
    act[0] = low * sigmoid(low) * (low_bf16(up) * inverse);
    act[1] = high * sigmoid(high) * (high_bf16(up) * inverse);
}

// Compute and write eight columns of one row. `sums` points to the first pair of columns. The next pair is four
// accumulators after it.
__device__ __forceinline__ void write_eight(
    const float* sums, const Four& gate_scales, const Four& up_scales, u32 row, u16* gate_to, unsigned char* act_to,
    bool inside) {
    Four gate, up;
    float act[4][2];
#pragma unroll
    for (int pair = 0; pair < 4; ++pair)
        swiglu_pair(sums + 4 * pair, sums + 4 * pair + COLUMNS / 4, gate_scales.at[pair], up_scales.at[pair], row,
                    gate.at[pair], up.at[pair], act[pair]);
    if (!inside) return;
    stream_out(gate_to, gate);
    stream_out(gate_to + WIDTH, up);
    global_store(act_to, pack_e4m3(act[0][0], act[0][1], act[1][0], act[1][1]),
                 pack_e4m3(act[2][0], act[2][1], act[3][0], act[3][1]));
}

__device__ __forceinline__ void write_tile(
    const float (&c)[2][ACCUMULATORS_OF_64_ROWS], const Results& results, u32 scales, Tile tile) {
    const int first_row = tile.row + static_cast<int>(own_row());
    const int first_column = tile.column / 2 + static_cast<int>(own_column());
    u16* const gate = results.gate_up + static_cast<u64>(first_row) * (2 * WIDTH) + first_column;
    unsigned char* const act = results.act + static_cast<u64>(first_row) * WIDTH + first_column;
#pragma unroll
    for (int chunk = 0; chunk < COLUMNS / 2 / 32; ++chunk) {
        const u32 column = chunk * 32 + own_column();
        const Four gate_scales = columns_at(scales, column), up_scales = columns_at(scales, column + COLUMNS / 2);
#pragma unroll
        for (int each = 0; each < 4; ++each) {
            const int half = each / 2, lower = each % 2, below = half * 64 + lower * 8;
            const bool inside = first_row + below < M && first_column + chunk * 32 < WIDTH;
            write_eight(&c[half][chunk * 16 + lower * 2], gate_scales, up_scales, row_at(scales, own_row() + below),
                        gate + below * 2 * WIDTH + chunk * 32, act + below * WIDTH + chunk * 32, inside);
        }
    }
}

extern "C" __global__ void __launch_bounds__(32 * NUM_WARPS, 1)
    fp8_products_up_swiglu(const __grid_constant__ TensorMap left, const __grid_constant__ TensorMap right,
                           u16* gate_up, unsigned char* act, const float* left_scale, const float* right_scale,
                           const float* norms, const float* limit, float* act_scale) {
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
        float c[2][ACCUMULATORS_OF_64_ROWS];
        u32 turn = group;
        const Scales scales{left_scale, right_scale, norms, limit, act_scale};
        for (u32 number = blockIdx.x / 2 + group * (gridDim.x / 2); number < PAIRS * PANELS; number += gridDim.x) {
            const Tile tile = tile_of(number, rank);
            const u32 place = places.scales + group * SCALE_BYTES;
            stage_scales(place, scales, tile);
            multiply_tile(places, c, turn, group);
            group_sync(group + 1);
            write_tile(c, {gate_up, act}, place, tile);
            group_sync(group + 1);
            turn += 2;
        }
    }
    // Wait for the other block, because it may still write to this block's shared memory or arrive at its barriers.
    cluster_sync();
}

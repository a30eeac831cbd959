// Compute grad_act = left @ right^T and grad_gate_up, the backward of SwiGLU, in one kernel. Operands and result are
// e4m3. M tokens, N intermediate, K hidden.
//
// left [M, K] and right [N, K] (the transposed weight) have one scale for each row, f32 [M] and [N]. gate_up [M, 2N] is
// bf16. grad_gate_up [M, 2N] has one scale for each row. grad_act is not rounded and not stored. The formulas are those
// of `products/down_swiglu_backward.cu`. norms f32 [M]: upper bounds of the norms of left's rows. input_norms f32 [M]:
// upper bounds of the norms of the rows from which gate_up was computed. limit f32 [1]: upper bound, for every column,
// of the norm of right's row times the larger of 1.1 |up's row| and |gate's row|. Because |silu'| < 1.1 and |silu(x)|
// <= |x|, norms * input_norms * limit is an upper bound of a row of the result. The scale of the row is computed from
// this bound, and written to scale f32 [M].
#define FP8 1
#define TRANSPOSED 0
#define SLOTS 4
#define SLOT_BYTES (4 * 16 * 128)
#define EPILOGUE_BYTES (SLOTS * SLOT_BYTES)
#define SCALE_BYTES (2 * COLUMNS + 4 * 128)
#define N WIDTH

__device__ __forceinline__ int right_row(int column, unsigned rank) { return column + static_cast<int>(rank) * 96; }

#include "../products/product.cuh"

#include "fp8.cuh"

#define STEPS_ACROSS (COLUMNS / 32)
#define EPILOGUE_STEPS (2 * STEPS_ACROSS)

struct Scales {
    const float *left, *right, *norms, *input_norms, *limit;
    float* grad_gate_up;
};

// Write the scales of a tile to shared memory: right's scale for each column, and for each row left's scale times the
// inverse of the gradient's scale. The gradient of an element needs no other scales.
__device__ __forceinline__ void stage_scales(u32 place, const Scales& scales, Tile tile) {
    const int thread = threadIdx.x % 128, row = tile.row + thread;
    for (int column = thread; column < COLUMNS; column += 128)
        store_column(place, column, number_at(scales.right, tile.column + column, WIDTH));
    const float bound = number_at(scales.norms, row, M) * number_at(scales.input_norms, row, M) * *scales.limit;
    const float scale = row_scale(bound);
    store_row(place, thread, number_at(scales.left, row, M) * inverse_of(scale), 0.0f);
    if (tile.column == 0 && row < M) scales.grad_gate_up[row] = scale;
}

// A thread's part of a tile, from its first row and column on: where it reads and writes, and its slots in shared
// memory for the values that it reads ahead.
struct Own {
    const u16* gate_up;
    unsigned char* grad_gate_up;
    int row, column;
    u32 slots;

    // Return true if the eight columns, `below` rows below the first row and `beside` columns after the first column,
    // are in the matrix.
    __device__ __forceinline__ bool inside(int below, int beside) const {
        return row + below < M && column + beside < WIDTH;
    }
    // Return the slot of a step, for the upper (lower = 0) or lower row, and for gate (up = 0) or up.
    __device__ __forceinline__ u32 slot(int step, int lower, int up) const {
        return slots + step % SLOTS * SLOT_BYTES + (lower * 2 + up) * (16 * 128);
    }
};

// Start to read gate and up of a step: 32 columns of rows 0 and 8, or of rows 64 and 72. A thread later waits only for
// its own reads.
__device__ __forceinline__ void read_ahead(const Own& own, int step) {
    const int beside = step % STEPS_ACROSS * 32;
#pragma unroll
    for (int lower = 0; lower < 2; ++lower) {
        const int below = step / STEPS_ACROSS * 64 + lower * 8;
        if (step < EPILOGUE_STEPS && own.inside(below, beside)) {
            const u16* const from = own.gate_up + below * 2 * WIDTH + beside;
            read_sixteen_bytes(own.slot(step, lower, 0), from);
            read_sixteen_bytes(own.slot(step, lower, 1), from + WIDTH);
        }
    }
    reads_commit();
}

// Compute the gradients of gate and up for two neighboring columns. sums: the sums of both columns. columns, row:
// scales by which the sums are multiplied. gates, ups: the stored values of gate and up, two in each.
__device__ __forceinline__ void backward_pair(
    const float* sums, u32 columns, float row, u32 gates, u32 ups, float (&grad_gate)[2], float (&grad_up)[2]) {
    const float grad[2] = {sums[0] * low_bf16(columns) * row, sums[1] * high_bf16(columns) * row};
    const float gate[2] = {low_bf16(gates), high_bf16(gates)}, up[2] = {low_bf16(ups), high_bf16(ups)};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const float s = sigmoid(gate[i]), rising = grad[i] * s;
        grad_gate[i] = rising * up[i] * (1.0f + gate[i] * (1.0f - s));
        grad_up[i] = rising * gate[i];
    }
}

// Compute and write eight columns of one row. `sums` points to the first pair of columns. The next pair is four
// accumulators after it.
__device__ __forceinline__ void write_eight(
    const float* sums, const Four& columns, float row, const Four& gates, const Four& ups, unsigned char* to, bool inside) {
    float gate[4][2], up[4][2];
#pragma unroll
    for (int pair = 0; pair < 4; ++pair)
        backward_pair(sums + 4 * pair, columns.at[pair], row, gates.at[pair], ups.at[pair], gate[pair], up[pair]);
    if (!inside) return;
    global_store(to, pack_e4m3(gate[0][0], gate[0][1], gate[1][0], gate[1][1]),
                 pack_e4m3(gate[2][0], gate[2][1], gate[3][0], gate[3][1]));
    global_store(to + WIDTH, pack_e4m3(up[0][0], up[0][1], up[1][0], up[1][1]),
                 pack_e4m3(up[2][0], up[2][1], up[3][0], up[3][1]));
}

__device__ __forceinline__ void write_tile(const float (&c)[2][ACCUMULATORS_OF_64_ROWS], const Own& own, u32 scales) {
#pragma unroll
    for (int step = 0; step < EPILOGUE_STEPS; ++step) {
        const int half = step / STEPS_ACROSS, beside = step % STEPS_ACROSS * 32;
        const Four columns = columns_at(scales, beside + own_column());
        reads_wait<SLOTS - 1>();
#pragma unroll
        for (int lower = 0; lower < 2; ++lower) {
            const int below = half * 64 + lower * 8;
            const Four gates = shared_load_four(own.slot(step, lower, 0)), ups = shared_load_four(own.slot(step, lower, 1));
            write_eight(&c[half][step % STEPS_ACROSS * 16 + lower * 2], columns, low_bf16(row_at(scales, own_row() + below)),
                        gates, ups, own.grad_gate_up + below * 2 * WIDTH + beside, own.inside(below, beside));
        }
        read_ahead(own, step + SLOTS);
    }
}

extern "C" __global__ void __launch_bounds__(32 * NUM_WARPS, 1)
    fp8_products_down_swiglu_backward(const __grid_constant__ TensorMap left, const __grid_constant__ TensorMap right,
                                      const u16* gate_up, unsigned char* grad_gate_up, const float* left_scale,
                                      const float* right_scale, const float* norms, const float* input_norms,
                                      const float* limit, float* grad_scale) {
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
        const u32 slots = places.epilogue + group * EPILOGUE_BYTES + threadIdx.x % 128 * 16;
        const Scales scales{left_scale, right_scale, norms, input_norms, limit, grad_scale};
        for (u32 number = blockIdx.x / 2 + group * (gridDim.x / 2); number < PAIRS * PANELS; number += gridDim.x) {
            const Tile tile = tile_of(number, rank);
            const u32 place = places.scales + group * SCALE_BYTES;
            const int row = tile.row + static_cast<int>(own_row()), column = tile.column + static_cast<int>(own_column());
            const u64 first = static_cast<u64>(row) * (2 * WIDTH) + column;
            const Own own{gate_up + first, grad_gate_up + first, row, column, slots};
            for (int step = 0; step < SLOTS; ++step) read_ahead(own, step);
            stage_scales(place, scales, tile);
            multiply_tile(places, c, turn, group);
            group_sync(group + 1);
            write_tile(c, own, place);
            group_sync(group + 1);
            turn += 2;
        }
    }
    // Wait for the other block, because it may still write to this block's shared memory or arrive at its barriers.
    cluster_sync();
}

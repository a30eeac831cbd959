// grad_gate_up = SwiGLU's backward of grad_act = left @ right^T, in one kernel, with operands and result in e4m3; M
// tokens, N intermediate, K hidden.
//
// left [M, K] and right [N, K], the transposed weight, have a scale a row, f32 [M] and [N]; gate_up [M, 2N] is bf16, and
// grad_gate_up [M, 2N] has a scale a row. grad_act is never rounded nor stored; formulas are those of
// `down_swiglu_backward.cu`. norms f32 [M] are at least those of left's rows, input_norms f32 [M] those of the rows of
// which gate_up was made, and limit f32 [1] is at least, of every column, the norm of right's row times the larger one
// of 1.1 |up's row| and |gate's row|. As |silu'| < 1.1 and |silu(x)| <= |x|, norms * input_norms * limit bounds a row:
// it has that bound's scale, which is written to scale f32 [M].
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

// A tile's; of a row left's times the inverse of the gradient's, which is all that a gradient depends on.
__device__ __forceinline__ void stage_scales(u32 place, const Scales& scales, Tile tile) {
    const int thread = threadIdx.x % 128, row = tile.row + thread;
    for (int column = thread; column < COLUMNS; column += 128)
        store_column(place, column, number_at(scales.right, tile.column + column, WIDTH));
    const float bound = number_at(scales.norms, row, M) * number_at(scales.input_norms, row, M) * *scales.limit;
    const float scale = row_scale(bound);
    store_row(place, thread, number_at(scales.left, row, M) * inverse_of(scale), 0.0f);
    if (tile.column == 0 && row < M) scales.grad_gate_up[row] = scale;
}

// A thread's part of a tile, from its first row and column on: what it reads, what it writes, and the room that it has
// for what it reads ahead.
struct Own {
    const u16* gate_up;
    unsigned char* grad_gate_up;
    int row, column;
    u32 slots;

    // Of eight columns, `below` the first row, `beside` the first column.
    __device__ __forceinline__ bool inside(int below, int beside) const {
        return row + below < M && column + beside < WIDTH;
    }
    // Of gate (0) or up (1) of the upper (0) or lower (1) row of a step.
    __device__ __forceinline__ u32 slot(int step, int lower, int up) const {
        return slots + step % SLOTS * SLOT_BYTES + (lower * 2 + up) * (16 * 128);
    }
};

// Start to read gate and up of a step: 32 columns of rows 0 and 8, or 64 and 72. Each thread waits for its own alone.
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

// Of two neighbours: the sums of their gradients with what those are to be multiplied by, gate and up as they are stored,
// and the gradients of both.
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

// Eight columns of one row, of which `sums` are the first pair's; pairs lie four accumulators apart.
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
    // A block that ended could not be written to, or told of a stage, by the other.
    cluster_sync();
}

// Compute gate_up = left @ right^T and act = silu(gate) * up in one kernel. M tokens, N intermediate, K hidden.
//
// left [M, K], right [2N, K] (the rows of gate first), gate_up [M, 2N] and act [M, N] are bf16. Half of a tile's
// columns are gate and half are up, for the same COLUMNS / 2 columns of act. So a thread has both factors of each
// element of act. act is computed from the rounded gate and up.
#define TRANSPOSED 0
#define EPILOGUE_BYTES (2 * 3 * 4096)

// Return the first row of `right` that a block fetches. Block 0 fetches rows of gate, and block 1 rows of up. A panel
// has COLUMNS / 2 columns of the intermediate.
__device__ __forceinline__ int right_row(int column, unsigned rank) {
    return column / 2 + static_cast<int>(rank) * WIDTH;
}

// A tile of COLUMNS has COLUMNS / 2 columns of act.
#define N (2 * WIDTH)
#include "product.cuh"

// Chunks [64, 32]: a tile has 96 columns of each of the three results.
#define NARROW 4096
#define NARROW_ACROSS (COLUMNS / 2 / 32)

// Return the same as `chunk_offset`, but for the 64-byte swizzle. lower: 1 for the row 8 rows below, else 0. eight:
// which eight of the 32 columns.
__device__ __forceinline__ u32 narrow_offset(u32 lower, u32 eight) {
    const u32 lane = threadIdx.x % 32;
    const u32 row = threadIdx.x % 128 / 32 * 16 + lower * 8 + lane / 4;
    return row * 64 + ((eight ^ (row >> 1 & 3)) << 4) + lane % 4 * 4;
}

__device__ __forceinline__ void write_tile(
    const Places& places, float (&c)[2][ACCUMULATORS_OF_64_ROWS], const TensorMap& gate_up, const TensorMap& act, Tile tile,
    u32 group) {
    const bool leads = threadIdx.x % 128 == 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int chunk = 0; chunk < NARROW_ACROSS; ++chunk) {
            const u32 buffer = places.epilogue + group * EPILOGUE_BYTES + (half * NARROW_ACROSS + chunk) % 2 * (3 * NARROW);
            if (leads) copy_out_read<1>();
            group_sync(group + 1);
#pragma unroll
            for (int eight = 0; eight < 4; ++eight) {
#pragma unroll
                for (int lower = 0; lower < 2; ++lower) {
                    const int first = (chunk * 4 + eight) * 4 + lower * 2;
                    const int second = first + COLUMNS / 4;
                    const u32 gate = pack_bf16(c[half][first], c[half][first + 1]);
                    const u32 up = pack_bf16(c[half][second], c[half][second + 1]);
                    const float low = low_bf16(gate), high = high_bf16(gate);
                    const u32 product = pack_bf16(
                        low * sigmoid(low) * low_bf16(up), high * sigmoid(high) * high_bf16(up));
                    const u32 at = buffer + narrow_offset(lower, eight);
                    shared_store(at, gate);
                    shared_store(at + NARROW, up);
                    shared_store(at + 2 * NARROW, product);
                }
            }
            threads_wrote();
            group_sync(group + 1);
            if (leads) {
                const int column = tile.column / 2 + chunk * 32, row = tile.row + half * 64;
                copy_out(gate_up, column, 0, row, buffer);
                copy_out(gate_up, column, 1, row, buffer + NARROW);
                copy_out(act, column, row, buffer + 2 * NARROW);
                copy_out_commit();
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(32 * NUM_WARPS, 1)
    products_up_swiglu(const __grid_constant__ TensorMap left, const __grid_constant__ TensorMap right,
               const __grid_constant__ TensorMap gate_up, const __grid_constant__ TensorMap act) {
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
        for (u32 number = blockIdx.x / 2 + group * (gridDim.x / 2); number < PAIRS * PANELS; number += gridDim.x) {
            multiply_tile(places, c, turn, group);
            write_tile(places, c, gate_up, act, tile_of(number, rank), group);
            turn += 2;
        }
        copy_out_done();
    }
    // Wait for the other block, because it may still write to this block's shared memory or arrive at its barriers.
    cluster_sync();
}

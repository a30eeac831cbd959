// Compute out = left @ right + extra_left @ extra_right: the gradient of a projection's input, including the part of
// its low-rank adapter.
//
// left [M, K], right [K, N], extra_left [M, EXTRA], extra_right [EXTRA, N] and out [M, N] are bf16. The result is
// rounded once.
#define TRANSPOSED 1
#define BUFFERS 2
#define EPILOGUE_BYTES (BUFFERS * 64 * 64 * 2)
#define N WIDTH
#include "product.cuh"

__device__ __forceinline__ void write_tile(
    const Places& places, const float (&c)[2][ACCUMULATORS_OF_64_ROWS], const TensorMap& out, Tile tile, u32 group) {
    const bool leads = threadIdx.x % 128 == 0;
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
        const u32 buffer = places.epilogue + group * EPILOGUE_BYTES + chunk % BUFFERS * CHUNK_BYTES;
        if (leads) copy_out_read<BUFFERS - 1>();
        group_sync(group + 1);
#pragma unroll
        for (int pair = 0; pair < PAIRS_OF_A_CHUNK; ++pair) {
            const float* sum = pair_of(c, chunk, pair);
            shared_store(buffer + chunk_offset(pair), pack_bf16(sum[0], sum[1]));
        }
        threads_wrote();
        group_sync(group + 1);
        if (leads) {
            copy_out(out, chunk_column(tile, chunk), chunk_row(tile, chunk), buffer);
            copy_out_commit();
        }
    }
}

extern "C" __global__ void __launch_bounds__(32 * NUM_WARPS, 1)
    products_input_gradient(const __grid_constant__ TensorMap left, const __grid_constant__ TensorMap right,
                            const __grid_constant__ TensorMap extra_left, const __grid_constant__ TensorMap extra_right,
                            const __grid_constant__ TensorMap out) {
    extern __shared__ unsigned char memory[];
    const Places places(memory);
    const u32 rank = cluster_rank(), group = threadIdx.x / 128;
    prepare_barriers(places);
    begin();
    if (group == 2) {
        registers_lower<24>();
        if (threadIdx.x % 128 == 0) feed(places, {left, right, extra_left, extra_right}, rank);
    } else {
        registers_raise<240>();
        float c[2][ACCUMULATORS_OF_64_ROWS];
        u32 turn = group;
        for (u32 number = blockIdx.x / 2 + group * (gridDim.x / 2); number < PAIRS * PANELS; number += gridDim.x) {
            multiply_tile(places, c, turn, group);
            write_tile(places, c, out, tile_of(number, rank), group);
            turn += 2;
        }
        copy_out_done();
    }
    cluster_sync();
}

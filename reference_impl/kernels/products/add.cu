// out = residual + left @ right^T in one kernel, rounded once; left [M, K], right [N, K], residual and out [M, N], all bf16.
#define TRANSPOSED 0
#define CHUNK 4096
#define BUFFERS 4
#define EPILOGUE_BYTES (BUFFERS * CHUNK)

__device__ __forceinline__ int right_row(int column, unsigned rank) {
    return column + static_cast<int>(rank) * (COLUMNS / 2);
}

#define N WIDTH
#include "product.cuh"

#define CHUNKS (COLUMNS / 32)
#define ROUNDS (2 * CHUNKS / BUFFERS)

__device__ __forceinline__ void fetch_chunk(const Places& places, const TensorMap& residual, Tile tile, u32 group, int index) {
    const u32 buffer = index % BUFFERS, barrier = places.fetched(group, buffer);
    barrier_expect(barrier, CHUNK);
    copy_in(places.epilogue + group * EPILOGUE_BYTES + buffer * CHUNK, residual, tile.column + index % CHUNKS * 32,
            tile.row + index / CHUNKS * 64, barrier);
}

__device__ __forceinline__ void write_tile(
    const Places& places, float (&c)[2][ACCUMULATORS_OF_64_ROWS], const TensorMap& residual, const TensorMap& out, Tile tile,
    u32 group, u32 round) {
    const bool leads = threadIdx.x % 128 == 0;
#pragma unroll
    for (int index = 0; index < 2 * CHUNKS; ++index) {
        const u32 buffer = places.epilogue + group * EPILOGUE_BYTES + index % BUFFERS * CHUNK;
        barrier_wait(places.fetched(group, index % BUFFERS), (round + index / BUFFERS) & 1);
        u32 before[8];
#pragma unroll
        for (int pair = 0; pair < 8; ++pair) before[pair] = shared_load(buffer + chunk_offset(pair % 2, pair / 2));
#pragma unroll
        for (int pair = 0; pair < 8; ++pair) {
            const float* product = &c[index / CHUNKS][(index % CHUNKS * 8 + pair) * 2];
            const u32 sum = pack_bf16(low_bf16(before[pair]) + product[0], high_bf16(before[pair]) + product[1]);
            shared_store(buffer + chunk_offset(pair % 2, pair / 2), sum);
        }
        threads_wrote();
        group_sync(group + 1);
        if (leads) {
            copy_out(out, tile.column + index % CHUNKS * 32, tile.row + index / CHUNKS * 64, buffer);
            copy_out_commit();
            if (index > 0 && index - 1 + BUFFERS < 2 * CHUNKS) {
                copy_out_read<1>();
                fetch_chunk(places, residual, tile, group, index - 1 + BUFFERS);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(32 * NUM_WARPS, 1)
    products_add(const __grid_constant__ TensorMap left, const __grid_constant__ TensorMap right,
                const __grid_constant__ TensorMap residual, const __grid_constant__ TensorMap out) {
    extern __shared__ unsigned char memory[];
    const Places places(memory);
    const u32 rank = cluster_rank(), group = threadIdx.x / 128;
    prepare_barriers(places);
    if (group == 2) {
        registers_lower<24>();
        if (threadIdx.x % 128 == 0) feed(places, {left, right, left, right}, rank);
    } else {
        registers_raise<240>();
        float c[2][ACCUMULATORS_OF_64_ROWS];
        u32 turn = group, round = 0;
        for (u32 number = blockIdx.x / 2 + group * (gridDim.x / 2); number < PAIRS * PANELS; number += gridDim.x) {
            const Tile tile = tile_of(number, rank);
            if (threadIdx.x % 128 == 0) {
                copy_out_read<0>();
                for (int index = 0; index < BUFFERS; ++index) fetch_chunk(places, residual, tile, group, index);
            }
            multiply_tile(places, c, turn, group);
            write_tile(places, c, residual, out, tile, group, round);
            turn += 2;
            round += ROUNDS;
        }
        copy_out_done();
    }
    cluster_sync();
}

// Compute out = residual + left @ right^T in one kernel, rounded once. left [M, K], right [N, K], residual and out [M,
// N] are bf16.
#define TRANSPOSED 0
#define BUFFERS 2
#define EPILOGUE_BYTES (BUFFERS * 64 * 64 * 2)

__device__ __forceinline__ int right_row(int column, unsigned rank) {
    return column + static_cast<int>(rank) * (COLUMNS / 2);
}

#define N WIDTH
#include "product.cuh"

#define TOGETHER 8  // number of pairs that a thread reads before it waits
#define ROUNDS (CHUNKS / BUFFERS)

__device__ __forceinline__ void fetch_chunk(
    const Places& places, const TensorMap& residual, Tile tile, u32 group, int chunk) {
    const u32 barrier = places.fetched(group, chunk % BUFFERS);
    barrier_expect(barrier, CHUNK_BYTES);
    copy_in(places.epilogue + group * EPILOGUE_BYTES + chunk % BUFFERS * CHUNK_BYTES, residual, chunk_column(tile, chunk),
            chunk_row(tile, chunk), barrier);
}

__device__ __forceinline__ void add_pairs(
    const float (&c)[2][ACCUMULATORS_OF_64_ROWS], u32 buffer, int chunk, int first) {
    u32 before[TOGETHER];
#pragma unroll
    for (int i = 0; i < TOGETHER; ++i) before[i] = shared_load(buffer + chunk_offset(first + i));
#pragma unroll
    for (int i = 0; i < TOGETHER; ++i) {
        const float* product = pair_of(c, chunk, first + i);
        const u32 sum = pack_bf16(low_bf16(before[i]) + product[0], high_bf16(before[i]) + product[1]);
        shared_store(buffer + chunk_offset(first + i), sum);
    }
}

__device__ __forceinline__ void write_tile(
    const Places& places, const float (&c)[2][ACCUMULATORS_OF_64_ROWS], const TensorMap& residual, const TensorMap& out,
    Tile tile, u32 group, u32 round) {
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
        const u32 buffer = places.epilogue + group * EPILOGUE_BYTES + chunk % BUFFERS * CHUNK_BYTES;
        barrier_wait(places.fetched(group, chunk % BUFFERS), (round + chunk / BUFFERS) & 1);
#pragma unroll
        for (int first = 0; first < PAIRS_OF_A_CHUNK; first += TOGETHER) add_pairs(c, buffer, chunk, first);
        threads_wrote();
        group_sync(group + 1);
        if (threadIdx.x % 128 == 0) {
            copy_out(out, chunk_column(tile, chunk), chunk_row(tile, chunk), buffer);
            copy_out_commit();
            if (chunk + BUFFERS < CHUNKS) {
                copy_out_read<0>();
                fetch_chunk(places, residual, tile, group, chunk + BUFFERS);
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
    begin();
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
                for (int chunk = 0; chunk < BUFFERS; ++chunk) fetch_chunk(places, residual, tile, group, chunk);
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

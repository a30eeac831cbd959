// Compute grad_act = left @ right and grad_gate_up, the backward of SwiGLU, in one kernel. M tokens, N intermediate, K
// hidden.
//
// left [M, K], right [K, N], gate_up and grad_gate_up [M, 2N] are bf16. gate_up and grad_gate_up may be the same
// tensor. grad_act is not rounded and not stored:
//     grad_gate = grad_act * up * s * (1 + gate * (1 - s)),  grad_up = grad_act * gate * s,  s = 1 / (1 + exp(-gate))
// An epilogue reads gate and up in chunks, through four buffers, and writes its results to the same buffers. For each
// of the two warp groups that multiply, one thread of the third warp group copies the chunks in and out. If a thread of
// a multiplying group waited for the copy engine instead, the other 127 threads of the group would wait, too.
#define TRANSPOSED 1
#define BUFFERS 4
#define CHUNK_COLUMNS 32
#define EPILOGUE_BYTES (BUFFERS * 2 * 64 * CHUNK_COLUMNS * 2)
#define N WIDTH
#include "product.cuh"

#define TOGETHER 4  // number of pairs that a thread reads before it waits
#define ROUNDS (CHUNKS / BUFFERS)  // how often a tile uses each buffer; must be an integer

__device__ __forceinline__ u32 buffer_of(const Places& places, u32 group, int chunk) {
    return places.epilogue + group * EPILOGUE_BYTES + chunk % BUFFERS * (2 * CHUNK_BYTES);
}

// Start to copy a chunk of gate and up into its buffer. The chunks of a tile's upper 64 rows come first.
__device__ __forceinline__ void fetch_chunk(
    const Places& places, const TensorMap& gate_up, Tile tile, u32 group, int chunk) {
    const u32 barrier = places.fetched(group, chunk % BUFFERS), to = buffer_of(places, group, chunk);
    barrier_expect(barrier, 2 * CHUNK_BYTES);
    copy_in(to, gate_up, chunk_column(tile, chunk), 0, chunk_row(tile, chunk), barrier);
    copy_in(to + CHUNK_BYTES, gate_up, chunk_column(tile, chunk), 1, chunk_row(tile, chunk), barrier);
}

// Replace gate and up of two neighboring columns (packed in a register) by their gradients.
__device__ __forceinline__ void backward_pair(const float* grad, u32& gates, u32& ups) {
    const float gate[2] = {low_bf16(gates), high_bf16(gates)}, up[2] = {low_bf16(ups), high_bf16(ups)};
    float grad_gate[2], grad_up[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const float s = sigmoid(gate[i]);
        grad_gate[i] = grad[i] * up[i] * s * (1.0f + gate[i] * (1.0f - s));
        grad_up[i] = grad[i] * gate[i] * s;
    }
    gates = pack_bf16(grad_gate[0], grad_gate[1]);
    ups = pack_bf16(grad_up[0], grad_up[1]);
}

// Process TOGETHER pairs of a chunk, starting with pair `first`. All reads come before the first result. Each scheduler
// has only one warp of the group, so no other warp hides the latency of the reads.
__device__ __forceinline__ void backward_pairs(
    const float (&c)[2][ACCUMULATORS_OF_64_ROWS], u32 buffer, int chunk, int first) {
    u32 gates[TOGETHER], ups[TOGETHER];
#pragma unroll
    for (int i = 0; i < TOGETHER; ++i) {
        gates[i] = shared_load(buffer + chunk_offset(first + i));
        ups[i] = shared_load(buffer + CHUNK_BYTES + chunk_offset(first + i));
    }
#pragma unroll
    for (int i = 0; i < TOGETHER; ++i) backward_pair(pair_of(c, chunk, first + i), gates[i], ups[i]);
#pragma unroll
    for (int i = 0; i < TOGETHER; ++i) {
        shared_store(buffer + chunk_offset(first + i), gates[i]);
        shared_store(buffer + CHUNK_BYTES + chunk_offset(first + i), ups[i]);
    }
}

__device__ __forceinline__ void move_chunks(
    const Places& places, const TensorMap& gate_up, const TensorMap& grad_gate_up, u32 group, u32 rank) {
    u32 round = 0;
    for (u32 number = blockIdx.x / 2 + group * (gridDim.x / 2); number < PAIRS * PANELS; number += gridDim.x) {
        const Tile tile = tile_of(number, rank);
        copy_out_read<0>();  // waits until the results of the previous tile have been read from the buffers
        for (int chunk = 0; chunk < BUFFERS; ++chunk) fetch_chunk(places, gate_up, tile, group, chunk);
#pragma unroll 1
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            const u32 buffer = buffer_of(places, group, chunk);
            barrier_wait(places.written(group, chunk % BUFFERS), (round + chunk / BUFFERS) & 1);
            copy_out(grad_gate_up, chunk_column(tile, chunk), 0, chunk_row(tile, chunk), buffer);
            copy_out(grad_gate_up, chunk_column(tile, chunk), 1, chunk_row(tile, chunk), buffer + CHUNK_BYTES);
            copy_out_commit();
            if (chunk + BUFFERS < CHUNKS) {
                copy_out_read<0>();
                fetch_chunk(places, gate_up, tile, group, chunk + BUFFERS);
            }
        }
        round += ROUNDS;
    }
    copy_out_done();
}

__device__ __forceinline__ void write_tile(
    const Places& places, const float (&c)[2][ACCUMULATORS_OF_64_ROWS], u32 group, u32 round) {
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS; ++chunk) {
        const u32 buffer = buffer_of(places, group, chunk);
        barrier_wait(places.fetched(group, chunk % BUFFERS), (round + chunk / BUFFERS) & 1);
#pragma unroll
        for (int first = 0; first < PAIRS_OF_A_CHUNK; first += TOGETHER) backward_pairs(c, buffer, chunk, first);
        threads_wrote();
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(places.written(group, chunk % BUFFERS));
    }
}

extern "C" __global__ void __launch_bounds__(32 * NUM_WARPS, 1)
    products_down_swiglu_backward(const __grid_constant__ TensorMap left, const __grid_constant__ TensorMap right,
                                  const __grid_constant__ TensorMap gate_up,
                                  const __grid_constant__ TensorMap grad_gate_up) {
    extern __shared__ unsigned char memory[];
    const Places places(memory);
    const u32 rank = cluster_rank(), group = threadIdx.x / 128;
    prepare_barriers(places);
    begin();
    if (group == 2) {
        registers_lower<24>();
        const u32 warp = threadIdx.x % 128 / 32;
        if (threadIdx.x % 32 == 0) {
            if (warp == 0) feed(places, {left, right, left, right}, rank);
            else if (warp < 3) move_chunks(places, gate_up, grad_gate_up, warp - 1, rank);
        }
    } else {
        registers_raise<240>();
        float c[2][ACCUMULATORS_OF_64_ROWS];
        u32 turn = group, round = 0;
        for (u32 number = blockIdx.x / 2 + group * (gridDim.x / 2); number < PAIRS * PANELS; number += gridDim.x) {
            multiply_tile(places, c, turn, group);
            write_tile(places, c, group, round);
            turn += 2;
            round += ROUNDS;
        }
    }
    // Wait for the other block, because it may still write to this block's shared memory or arrive at its barriers.
    cluster_sync();
}

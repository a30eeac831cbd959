// grad_gate_up = SwiGLU's backward of grad_act = left @ right, in one kernel; M tokens, N intermediate, K hidden.
//
// left [M, K], right [K, N], gate_up and grad_gate_up [M, 2N], which may be one, all bf16. grad_act is never rounded nor stored:
//     grad_gate = grad_act * up * s * (1 + gate * (1 - s)),  grad_up = grad_act * gate * s,  s = 1 / (1 + exp(-gate))
// An epilogue takes gate and up by chunks of [64, 32] through four buffers, and writes its results over them.
#define TRANSPOSED 1
#define CHUNK 4096
#define BUFFERS 4
#define EPILOGUE_BYTES (BUFFERS * 2 * CHUNK)
#define N WIDTH
#include "product.cuh"

#define CHUNKS (COLUMNS / 32)
#define ROUNDS (2 * CHUNKS / BUFFERS)  // of the buffers, a tile

// Chunk `index` of a tile: those of its upper 64 rows first.
__device__ __forceinline__ void fetch_chunk(
    const Places& places, const TensorMap& gate_up, Tile tile, u32 group, int index) {
    const u32 buffer = index % BUFFERS, barrier = places.fetched(group, buffer);
    const u32 to = places.epilogue + group * EPILOGUE_BYTES + buffer * (2 * CHUNK);
    const int column = tile.column + index % CHUNKS * 32, row = tile.row + index / CHUNKS * 64;
    barrier_expect(barrier, 2 * CHUNK);
    copy_in(to, gate_up, column, 0, row, barrier);
    copy_in(to + CHUNK, gate_up, column, 1, row, barrier);
}

// Two neighbours' gate and up, packed, become their gradients.
__device__ __forceinline__ void backward_pair(float grad_low, float grad_high, u32& gates, u32& ups) {
    const float gate[2] = {low_bf16(gates), high_bf16(gates)}, up[2] = {low_bf16(ups), high_bf16(ups)};
    const float grad[2] = {grad_low, grad_high};
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

__device__ __forceinline__ void write_tile(
    const Places& places, float (&c)[2][ACCUMULATORS_OF_64_ROWS], const TensorMap& gate_up, const TensorMap& grad_gate_up,
    Tile tile, u32 group, u32 round) {
    const bool leads = threadIdx.x % 128 == 0;
#pragma unroll
    for (int index = 0; index < 2 * CHUNKS; ++index) {
        const u32 buffer = places.epilogue + group * EPILOGUE_BYTES + index % BUFFERS * (2 * CHUNK);
        barrier_wait(places.fetched(group, index % BUFFERS), (round + index / BUFFERS) & 1);
#pragma unroll
        for (int part = 0; part < 8; part += 4) {
            // All reads before the first result: one warp of a group is alone on its scheduler, and nothing else hides them.
            u32 gates[4], ups[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const u32 at = buffer + chunk_offset(i % 2, (part + i) / 2);
                gates[i] = shared_load(at);
                ups[i] = shared_load(at + CHUNK);
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float* grad = &c[index / CHUNKS][(index % CHUNKS * 8 + part + i) * 2];
                backward_pair(grad[0], grad[1], gates[i], ups[i]);
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const u32 at = buffer + chunk_offset(i % 2, (part + i) / 2);
                shared_store(at, gates[i]);
                shared_store(at + CHUNK, ups[i]);
            }
        }
        threads_wrote();
        group_sync(group + 1);
        if (leads) {
            const int column = tile.column + index % CHUNKS * 32, row = tile.row + index / CHUNKS * 64;
            copy_out(grad_gate_up, column, 0, row, buffer);
            copy_out(grad_gate_up, column, 1, row, buffer + CHUNK);
            copy_out_commit();
            // The chunk before has left its buffer, or soon will have.
            if (index > 0 && index - 1 + BUFFERS < 2 * CHUNKS) {
                copy_out_read<1>();
                fetch_chunk(places, gate_up, tile, group, index - 1 + BUFFERS);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(32 * NUM_WARPS, 1)
    products_down_swiglu_backward(const __grid_constant__ TensorMap left, const __grid_constant__ TensorMap right,
                  const __grid_constant__ TensorMap gate_up, const __grid_constant__ TensorMap grad_gate_up) {
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
                copy_out_read<0>();  // of the tile before
                for (int index = 0; index < BUFFERS; ++index) fetch_chunk(places, gate_up, tile, group, index);
            }
            multiply_tile(places, c, turn, group);
            write_tile(places, c, gate_up, grad_gate_up, tile, group, round);
            turn += 2;
            round += ROUNDS;
        }
        copy_out_done();
    }
    // A block that ended could not be written to, or told of a stage, by the other.
    cluster_sync();
}

// out = FACTOR * x of [ROWS, COLUMNS] in fp32. A block of the grid has one box of ROWS_OF_A_BOX x COLUMNS_OF_A_BOX, which the
// copy engine brings to shared memory: what of it lies outside comes as zeros, and is not written.
#include "copied.cuh"

extern "C" __global__ void __launch_bounds__(NUM_WARPS * 32)
    scaled_copy(const __grid_constant__ TensorMap x, float* out) {
    extern __shared__ __align__(128) unsigned char memory[];
    float* tile = reinterpret_cast<float*>(memory);
    const unsigned bytes = ROWS_OF_A_BOX * COLUMNS_OF_A_BOX * sizeof(float);
    const unsigned start = static_cast<unsigned>(__cvta_generic_to_shared(memory)), barrier = start + bytes;
    const int row = blockIdx.y * ROWS_OF_A_BOX, column = blockIdx.x * COLUMNS_OF_A_BOX;
    if (threadIdx.x == 0) {
        barrier_init(barrier);
        barrier_expect(barrier, bytes);
        copy_in(start, x, column, row, barrier);
    }
    __syncthreads();
    barrier_wait(barrier);
    for (int i = threadIdx.x; i < ROWS_OF_A_BOX * COLUMNS_OF_A_BOX; i += NUM_WARPS * 32) {
        const int r = row + i / COLUMNS_OF_A_BOX, c = column + i % COLUMNS_OF_A_BOX;
        if (r < ROWS && c < COLUMNS) out[r * COLUMNS + c] = FACTOR * tile[i];
    }
}

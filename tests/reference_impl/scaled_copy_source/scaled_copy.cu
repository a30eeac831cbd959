// out = FACTOR * x of [ROWS, COLUMNS] in fp32. A block of the grid has one box, which the copy engine brings to shared
// memory: what of it lies outside of x comes as zeros, and is not written. `blocks` is told how many a cluster has.
#include "copied.cuh"

#define ROW_BYTES (BOX_COLUMNS * 4)

// Where an element of a box lies: 128 bytes of swizzle exchange the 16-byte parts of a row by its number.
__device__ __forceinline__ int place(int row, int column) {
    const int part = SWIZZLE == 128 ? (column / 4) ^ (row % 8) : column / 4;
    return row * BOX_COLUMNS + part * 4 + column % 4;
}

extern "C" __global__ void __launch_bounds__(NUM_WARPS * 32)
    scaled_copy(const __grid_constant__ TensorMap x, float* out, int* blocks) {
    begin();
    extern __shared__ __align__(1024) unsigned char memory[];
    const float* box = reinterpret_cast<float*>(memory);
    const unsigned start = static_cast<unsigned>(__cvta_generic_to_shared(memory));
    const unsigned barrier = start + BOX_ROWS * ROW_BYTES;
    const int first_row = blockIdx.y * BOX_ROWS, first_column = blockIdx.x * BOX_COLUMNS;
    if (threadIdx.x == 0) {
        barrier_init(barrier);
        barrier_expect(barrier, BOX_ROWS * ROW_BYTES);
        copy_in(start, x, first_column, first_row, barrier);
        asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(*blocks));
    }
    __syncthreads();
    barrier_wait(barrier);
    for (int i = threadIdx.x; i < BOX_ROWS * BOX_COLUMNS; i += NUM_WARPS * 32) {
        const int row = i / BOX_COLUMNS, column = i % BOX_COLUMNS;
        if (first_row + row < ROWS && first_column + column < COLUMNS) {
            out[(first_row + row) * COLUMNS + first_column + column] = FACTOR * box[place(row, column)];
        }
    }
}

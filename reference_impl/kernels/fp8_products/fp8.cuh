// Functions for the epilogues of FP8 products: scales of rows and columns, and the eight columns of a thread.
//
// The value of an element is its data times the scale of its row, which is a power of two. The value of a product is
// its accumulator times the scale of the left operand's row and the scale of the right operand's row. The scale of a
// result is computed from an upper bound of its row, because a tile does not contain the whole row with its largest
// value. Scales are those of `kernels/fp8_rows`.
//
// The copy engine changes the order of the right operand's rows. Among 32 rows, row 8 e + 2 q + b in shared memory is
// the row of column 8 q + 2 e + b. A thread has columns 2 q and 2 q + 1 of every eight columns of the accumulator. With
// the changed order, these are eight neighboring columns of the result. So a thread can read and write them together,
// without an exchange with other threads.
#pragma once

#if SCALE_BYTES != 2 * COLUMNS + 4 * 128
#error "two bytes a column, four a row"
#endif
#if WIDTH % 32
#error "columns are turned in groups of 32"
#endif

struct Four {
    u32 at[4];
};

__device__ __forceinline__ Four shared_load_four(u32 address) {
    Four value;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(value.at[0]), "=r"(value.at[1]), "=r"(value.at[2]), "=r"(value.at[3])
                 : "r"(address));
    return value;
}
__device__ __forceinline__ void shared_store(u32 address, u16 value) {
    asm volatile("st.shared.b16 [%0], %1;" ::"r"(address), "h"(value) : "memory");
}
// Store data that is not read again soon, so that the cache drops it before other data.
__device__ __forceinline__ void stream_out(void* to, const Four& value) {
    asm volatile("st.global.cs.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(value.at[0]), "r"(value.at[1]),
                 "r"(value.at[2]), "r"(value.at[3])
                 : "memory");
}
__device__ __forceinline__ void global_store(void* to, u32 low, u32 high) {
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(low), "r"(high) : "memory");
}

// Return the smallest power of two with bound / scale <= 448, or NaN if the bound is infinite or NaN.
__device__ __forceinline__ float row_scale(float bound) {
    const int bits = __float_as_int(bound);
    int exponent = ((bits + 0x1FFFFF) >> 23) - 8;
    exponent = exponent < 1 ? 1 : exponent > 253 ? 253 : exponent;
    return (bits >> 23 & 255) < 255 ? __int_as_float(exponent << 23) : __int_as_float(0x7FC00000);
}

// Return the exact inverse of a power of two, or NaN for NaN.
__device__ __forceinline__ float inverse_of(float scale) {
    const int exponent = __float_as_int(scale) >> 23;
    return exponent < 255 ? __int_as_float((254 - exponent) << 23) : scale;
}

// Return four neighboring values in e4m3. A value beyond the range becomes the largest value of e4m3.
__device__ __forceinline__ u32 pack_e4m3(float a, float b, float c, float d) {
    u32 packed;
    asm("{\n .reg .b16 low, high;\n cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
        " cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n mov.b32 %0, {low, high};\n}"
        : "=r"(packed)
        : "f"(a), "f"(b), "f"(c), "f"(d));
    return packed;
}

// Store a scale in shared memory. The scales of a tile are COLUMNS bf16 numbers, followed by ROWS pairs of bf16
// numbers. All are powers of two or NaN, so bf16 is exact. A warp group stores them before it multiplies, because at
// that time it has to wait anyway.
__device__ __forceinline__ void store_column(u32 scales, u32 column, float scale) {
    shared_store(scales + 2 * column, static_cast<u16>(__float_as_uint(scale) >> 16));
}
__device__ __forceinline__ void store_row(u32 scales, u32 row, float low, float high) {
    shared_store(scales + 2 * COLUMNS + 4 * row, pack_bf16(low, high));
}
// Return the scales of eight columns, starting with `column`, which must be a multiple of eight.
__device__ __forceinline__ Four columns_at(u32 scales, u32 column) { return shared_load_four(scales + 2 * column); }
__device__ __forceinline__ u32 row_at(u32 scales, u32 row) { return shared_load(scales + 2 * COLUMNS + 4 * row); }

// Return a thread's first row in a tile (its other rows are 8, 64 and 72 rows below), and its first column of every 32.
__device__ __forceinline__ u32 own_row() { return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4; }
__device__ __forceinline__ u32 own_column() { return threadIdx.x % 4 * 8; }

// Return a number of an array of `count` numbers. For an index beyond the end, return the last number. Results at such
// places are not stored.
__device__ __forceinline__ float number_at(const float* numbers, int index, int count) {
    return numbers[index < count ? index : count - 1];
}

// What epilogues of products in FP8 have in common: scales of rows and columns, and a thread's own eight columns.
//
// The value of an element is data * scale of its row, the scale a power of two. A product's value is its accumulator
// times the scales of its row on the left and its row on the right. A result's scale comes from a bound of its row,
// not from its largest value: no tile sees a whole row. Scales are those of `kernels/fp8_rows`.
//
// The copy engine lays the rows of the right operand down in turns: of 32, row 8 e + 2 q + b is that of column 8 q + 2 e +
// b. A thread, which has columns 2 q and 2 q + 1 of every eight, then holds eight neighbours of a result: it reads and
// writes them as they lie in memory, and no thread waits for another.
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
// What is not read again before much else is: the cache may drop it first.
__device__ __forceinline__ void stream_out(void* to, const Four& value) {
    asm volatile("st.global.cs.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(value.at[0]), "r"(value.at[1]),
                 "r"(value.at[2]), "r"(value.at[3])
                 : "memory");
}
__device__ __forceinline__ void global_store(void* to, u32 low, u32 high) {
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(low), "r"(high) : "memory");
}

// The smallest power of two for which bound / scale <= 448; of an infinite or NaN bound it is NaN.
__device__ __forceinline__ float row_scale(float bound) {
    const int bits = __float_as_int(bound);
    int exponent = ((bits + 0x1FFFFF) >> 23) - 8;
    exponent = exponent < 1 ? 1 : exponent > 253 ? 253 : exponent;
    return (bits >> 23 & 255) < 255 ? __int_as_float(exponent << 23) : __int_as_float(0x7FC00000);
}

// Of a power of two; exact. NaN of NaN.
__device__ __forceinline__ float inverse_of(float scale) {
    const int exponent = __float_as_int(scale) >> 23;
    return exponent < 255 ? __int_as_float((254 - exponent) << 23) : scale;
}

// Four neighbours as e4m3; what is beyond its range becomes its largest value.
__device__ __forceinline__ u32 pack_e4m3(float a, float b, float c, float d) {
    u32 packed;
    asm("{\n .reg .b16 low, high;\n cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
        " cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n mov.b32 %0, {low, high};\n}"
        : "=r"(packed)
        : "f"(a), "f"(b), "f"(c), "f"(d));
    return packed;
}

// What a tile's epilogue multiplies by, in shared memory: COLUMNS numbers in bf16, then ROWS pairs in bf16. All are powers
// of two or NaN, so that no bit is lost. A warp group writes them before it multiplies, when it has to wait anyway.
__device__ __forceinline__ void store_column(u32 scales, u32 column, float scale) {
    shared_store(scales + 2 * column, static_cast<u16>(__float_as_uint(scale) >> 16));
}
__device__ __forceinline__ void store_row(u32 scales, u32 row, float low, float high) {
    shared_store(scales + 2 * COLUMNS + 4 * row, pack_bf16(low, high));
}
// Of eight columns from `column` on, a multiple of eight.
__device__ __forceinline__ Four columns_at(u32 scales, u32 column) { return shared_load_four(scales + 2 * column); }
__device__ __forceinline__ u32 row_at(u32 scales, u32 row) { return shared_load(scales + 2 * COLUMNS + 4 * row); }

// A thread's first row of a tile; its others lie 8, 64 and 72 below. And its first column of every 32.
__device__ __forceinline__ u32 own_row() { return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4; }
__device__ __forceinline__ u32 own_column() { return threadIdx.x % 4 * 8; }

// Of an array of `count` numbers; the last one beyond its end, for results that lie outside of theirs.
__device__ __forceinline__ float number_at(const float* numbers, int index, int count) {
    return numbers[index < count ? index : count - 1];
}

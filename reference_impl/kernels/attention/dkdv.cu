// dK and dV of causal grouped-query attention: the kernel, and how it adds up and writes the sums of a tile.
// `dkdv_sums.cuh` has the legend and the formulas, and explains how blocks share the work.
#include "dkdv_sums.cuh"

// The sums are divided into 16 units. A unit has 8 registers of each thread: 8 columns of a head's first half and the
// same 8 columns of its second half, because the rotation mixes both halves. Units 0 to 7 are dK, and units 8 to 15 are
// dV. The block of rank P finishes the units from first_unit(P) up to, but not including, first_unit(P + 1). (With
// three blocks, these are 4, 6 and 6 units.)
__device__ __forceinline__ constexpr int first_unit(int rank) {
    return CLUSTER < 3 ? 16 / static_cast<int>(CLUSTER) * rank : rank * 6 - (rank > 0) * 2;
}

struct Output {
    u32* grad_qkv;  // points to the thread's upper row and the key head's first column; two elements in each u32
    const float2 *cosines, *sines;  // point to the thread's upper row and first column
};

// Send the sums of the units that block P finishes. Each thread sends its registers to the thread with the same number.
template <int P>
__device__ __forceinline__ void send(const float (&dk)[64], const float (&dv)[64], u32 base, u32 rank) {
    u32 target = address_at(base + EXCHANGE + (rank - (rank > P)) * PART_BYTES + threadIdx.x * 16, P);
    u32 barrier = address_at(base + SENT, P);
#pragma unroll
    for (int unit = first_unit(P); unit < first_unit(P + 1); ++unit) {
        const float* sum = (unit < 8 ? dk : dv) + unit % 8 * 4;
#pragma unroll
        for (int half = 0; half < 2; ++half, sum += 32)
            shared_store_at(target + (2 * (unit - first_unit(P)) + half) * CONSUMERS * 16, sum[0], sum[1], sum[2],
                            sum[3], barrier);
    }
}

// Add up the sums of all blocks for the units that this block finishes. (The sums are copied to `all`, because the
// compiler would not overlap products if other instructions wrote to their accumulators.)
template <int P>
__device__ __forceinline__ void total(
    float (&all)[PART], const float (&dk)[64], const float (&dv)[64], const char* shared) {
    constexpr int UNITS = first_unit(P + 1) - first_unit(P);
#pragma unroll
    for (int i = 0; i < 8 * UNITS; ++i) {
        int unit = first_unit(P) + i / 8;
        all[i] = (unit < 8 ? dk : dv)[unit % 8 * 4 + i % 8 / 4 * 32 + i % 4];
    }
    const float4* received = reinterpret_cast<const float4*>(shared + EXCHANGE) + threadIdx.x;
#pragma unroll 1
    for (u32 sender = 0; sender + 1 < CLUSTER; ++sender, received += PART_BYTES / 16) {
#pragma unroll
        for (int i = 0; i < 8 * UNITS; i += 4) {
            float4 other = received[i / 4 * CONSUMERS];
            all[i] += other.x, all[i + 1] += other.y, all[i + 2] += other.z, all[i + 3] += other.w;
        }
    }
}

// Return the results of one unit in the thread's upper row (half 0) or lower row (half 1, 8 rows below): two packed
// columns of the head's first half, and two of its second half.
__device__ __forceinline__ uint2 finished(const float* unit, int half, bool is_key, int number, const Output& out) {
    float2 x = {unit[2 * half], unit[2 * half + 1]}, y = {unit[4 + 2 * half], unit[5 + 2 * half]};
    if (is_key) {
        float2 c = out.cosines[half * 8 * (D / 4) + number * 4];
        float2 s = out.sines[half * 8 * (D / 4) + number * 4];
        x.x *= SCALE, x.y *= SCALE, y.x *= SCALE, y.y *= SCALE;
        float2 a = x, b = y;
        x = {a.x * c.x + b.x * s.x, a.y * c.y + b.y * s.y};
        y = {b.x * c.x - a.x * s.x, b.y * c.y - a.y * s.y};
    }
    return {pack_bf16(x.x, x.y), pack_bf16(y.x, y.y)};
}

// Write the units from U up to, but not including, LAST. Four units of one matrix are written together, 16 bytes by
// each thread. If fewer than four are left, they are written one at a time. The loads of the tables for a unit come
// after the stores of the previous units, because otherwise the compiler would need too many registers.
template <int U, int LAST>
__device__ __forceinline__ void write(const float* all, const Output& out) {
    if constexpr (U < LAST) {
        constexpr bool IS_KEY = U < 8;
        constexpr int COUNT = U + 4 <= LAST && U / 8 == (U + 3) / 8 ? 4 : 1;
        u32* target = out.grad_qkv + U % 8 * 4 + (IS_KEY ? 0 : KV_HEADS * (D / 2));
        uint2 rows[2][COUNT];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int i = 0; i < COUNT; ++i) rows[half][i] = finished(all + 8 * i, half, IS_KEY, U % 8 + i, out);
        }
#pragma unroll
        for (int half = 0; half < 2; ++half, target += 8 * (WIDTH / 2)) {
            const uint2* row = rows[half];
            if constexpr (COUNT == 4) {
                uint4* wide = reinterpret_cast<uint4*>(target) + threadIdx.x % 4;
                wide[0] = quad_transpose(row[0].x, row[1].x, row[2].x, row[3].x);
                wide[D / 16] = quad_transpose(row[0].y, row[1].y, row[2].y, row[3].y);
            } else {
                target[threadIdx.x % 4] = row[0].x, target[threadIdx.x % 4 + D / 4] = row[0].y;
            }
        }
        write<U + COUNT, LAST>(all + 8 * COUNT, out);
    }
}

template <int P>
__device__ __forceinline__ void finish(
    const float (&dk)[64], const float (&dv)[64], u32 rank, u32 turn, u32 base, const char* shared, const Output& out) {
    if constexpr (P < CLUSTER) {
        if (rank != P) return finish<P + 1>(dk, dv, rank, turn, base, shared, out);
        constexpr u32 UNITS = first_unit(P + 1) - first_unit(P);
        if (CLUSTER > 1) {
            if (threadIdx.x == 0) barrier_expect(base + SENT, (CLUSTER - 1) * UNITS * 32 * CONSUMERS);
            // Wait until the other blocks have read the sums of the first tile.
            if (turn) barrier_wait<true>(base + READ, 0);
            if constexpr (P != 0) send<0>(dk, dv, base, rank);
            if constexpr (P != 1 && CLUSTER > 1) send<1>(dk, dv, base, rank);
            if constexpr (P != 2 && CLUSTER > 2) send<2>(dk, dv, base, rank);
            barrier_wait<true>(base + SENT, turn);
        }
        float all[PART];
        total<P>(all, dk, dv, shared);
        if (CLUSTER > 1 && turn == 0)
            for (u32 other = 0; other < CLUSTER; ++other)
                if (other != P) barrier_release_at(base + READ, other);
        write<first_unit(P), first_unit(P + 1)>(all, out);
    }
}

__device__ __forceinline__ void consume(
    u32* grad_qkv, const float* cosines, const float* sines, u32 base, const char* shared) {
    Place at = place();
    u32 group = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
    u32 thread_row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    float dk[64], dv[64];
    Cursor cursor = {0, 0, 0, 0, 0};
#pragma unroll 1
    for (u32 turn = 0; turn < 2; ++turn) {
        Tile tile = tile_of(at.pair, turn, at.rank);
        cursor.left = tile.items, cursor.query = tile.query, cursor.count = tile.count;
        barrier_wait(base + KEYS_FULL, turn);
        accumulate_items(dk, dv, cursor, base, shared, group);
        if (threadIdx.x % 32 == 0) barrier_arrive(base + KEYS_EMPTY);
        u32 row = tile.first_key + thread_row;
        u64 token = at.batch * S + row;
        Output out = {
            grad_qkv + token * (WIDTH / 2) + (HEADS + at.kv_head) * (D / 2),
            reinterpret_cast<const float2*>(cosines) + row * (D / 4) + threadIdx.x % 4,
            reinterpret_cast<const float2*>(sines) + row * (D / 4) + threadIdx.x % 4,
        };
        finish<0>(dk, dv, at.rank, turn, base, shared, out);
    }
}

__device__ __forceinline__ void prepare_barriers(u32 base) {
    for (u32 slot = 0; slot < NUM_STAGES; ++slot) {
        barrier_init(base + FULL + slot * 8, 1);
        barrier_init(base + EMPTY + slot * 8, CONSUMER_WARPS);
    }
    barrier_init(base + KEYS_FULL, 1);
    barrier_init(base + KEYS_EMPTY, CONSUMER_WARPS);
    barrier_init(base + SENT, 1);
    barrier_init(base + READ, CONSUMERS * (CLUSTER > 1 ? CLUSTER - 1 : 1));
    barriers_ready();
}

extern "C" __global__ void __launch_bounds__(32 * NUM_WARPS, 1)
    attention_dkdv(const __grid_constant__ TensorMap qkv, const __grid_constant__ TensorMap grad_output,
                   const float* lse, const float* delta, const float* cosines, const float* sines, u32* grad_qkv) {
    extern __shared__ __align__(1024) char shared[];
    u32 base = shared_address(shared);
    if (threadIdx.x == 0) prepare_barriers(base);
    __syncwarp();
    cluster_sync();
    begin();
    if (threadIdx.x >= CONSUMERS) {
        registers_lower<24>();
        if (threadIdx.x == CONSUMERS) produce(qkv, grad_output, lse, delta, base);
        __syncwarp();
    } else {
        registers_raise<240>();
        consume(grad_qkv, cosines, sines, base, shared);
    }
    // A block must not end while other blocks of its cluster may still write to its shared memory.
    if (CLUSTER > 1) cluster_sync();
}

// Functions for instructions that only Hopper has: barriers in shared memory, the copy engine, products of warp groups.
//
// No header is included, so NVRTC can compile this file wherever torch's CUDA build is installed, without the CUDA
// toolkit. Addresses in shared memory have 32 bits, as PTX requires.
#pragma once

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// A tensor map, which the host encodes: the address of a tensor, its sizes, and the box that one copy moves.
struct alignas(64) TensorMap {
    u64 opaque[16];
};

__device__ __forceinline__ u32 shared_address(const void* pointer) {
    return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

// Wait until all earlier kernels have ended and their writes are visible. Then let the next kernel start, which waits
// in its own call of this function. Every thread must call this function before the block reads or writes a tensor.
__device__ __forceinline__ void begin() {
    asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::: "memory");
}

// ---- barriers

__device__ __forceinline__ void barrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

// Arrive at a barrier, and make it also wait for copies of this number of bytes.
__device__ __forceinline__ void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrive at the barrier with the same address in block `rank` of the cluster.
__device__ __forceinline__ void barrier_arrive_at(u32 barrier, u32 rank) {
    asm volatile(
        "{\n .reg .b32 remote;\n mapa.shared::cluster.u32 remote, %0, %1;\n"
        " mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(barrier),
        "r"(rank)
        : "memory");
}

// Do the same as `barrier_arrive_at`. A thread that waits there by `barrier_wait<true>` also sees the earlier writes of
// this thread.
__device__ __forceinline__ void barrier_release_at(u32 barrier, u32 rank) {
    asm volatile(
        "{\n .reg .b32 remote;\n mapa.shared::cluster.u32 remote, %0, %1;\n"
        " mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote];\n}" ::"r"(barrier),
        "r"(rank)
        : "memory");
}

template <bool OF_CLUSTER>
__device__ __forceinline__ bool barrier_passed(u32 barrier, u32 parity) {
    u32 passed;
    if (OF_CLUSTER)
        asm volatile(
            "{\n .reg .pred p;\n mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
            " selp.u32 %0, 1, 0, p;\n}"
            : "=r"(passed)
            : "r"(barrier), "r"(parity)
            : "memory");
    else
        asm volatile(
            "{\n .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
            " selp.u32 %0, 1, 0, p;\n}"
            : "=r"(passed)
            : "r"(barrier), "r"(parity)
            : "memory");
    return passed != 0;
}

// Wait at a barrier. OF_CLUSTER: afterwards this thread sees what other blocks of the cluster wrote before they
// arrived.
template <bool OF_CLUSTER = false>
__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
#ifdef TRAP_AFTER
    // In builds for tests, stop waiting after TRAP_AFTER polls, because a wrong result is better than a hang.
    for (u32 polls = 0; !barrier_passed<OF_CLUSTER>(barrier, parity) && polls < TRAP_AFTER; ++polls) {
    }
#else
    while (!barrier_passed<OF_CLUSTER>(barrier, parity)) {
    }
#endif
}

// Make initialized barriers visible to the copy engine and to the other blocks. Call this before the barriers are used.
__device__ __forceinline__ void barriers_ready() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

__device__ __forceinline__ u32 cluster_rank() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Synchronize the 128 threads of one warp group. Do not use the identifier 0, which belongs to the whole block.
__device__ __forceinline__ void group_sync(u32 identifier) {
    asm volatile("bar.sync %0, 128;" ::"r"(identifier) : "memory");
}

// Wait until the other one of two warp groups has called `group_tell` with the same identifier.
__device__ __forceinline__ void group_wait(u32 identifier) {
    asm volatile("bar.sync %0, 256;" ::"r"(identifier) : "memory");
}
__device__ __forceinline__ void group_tell(u32 identifier) {
    asm volatile("bar.arrive %0, 256;" ::"r"(identifier) : "memory");
}

template <int COUNT>
__device__ __forceinline__ void registers_raise() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT>
__device__ __forceinline__ void registers_lower() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// ---- the copy engine; the innermost coordinate comes first

__device__ __forceinline__ void copy_in(u32 to, const TensorMap& map, int x, int y, u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
        "l"(&map), "r"(x), "r"(y), "r"(barrier)
        : "memory");
}

__device__ __forceinline__ void copy_in(u32 to, const TensorMap& map, int x, int y, int z, u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(
            to),
        "l"(&map), "r"(x), "r"(y), "r"(z), "r"(barrier)
        : "memory");
}

// Copy to the same address in every block of `mask`. The barrier with the same address in each of these blocks counts
// the bytes.
__device__ __forceinline__ void copy_in_all(u32 to, const TensorMap& map, int x, int y, u32 barrier, u16 mask) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
        "l"(&map), "r"(x), "r"(y), "r"(barrier), "h"(mask)
        : "memory");
}

__device__ __forceinline__ void copy_in_all(
    u32 to, const TensorMap& map, int x, int y, int z, int u, int v, u32 barrier, u16 mask) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;" ::"r"(to),
        "l"(&map), "r"(x), "r"(y), "r"(z), "r"(u), "r"(v), "r"(barrier), "h"(mask)
        : "memory");
}

// Copy consecutive bytes. Their number and both addresses must be multiples of 16.
__device__ __forceinline__ void copy_in(u32 to, const void* from, u32 bytes, u32 barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier)
        : "memory");
}

__device__ __forceinline__ void copy_out(const TensorMap& map, int x, int y, u32 from) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map), "r"(x), "r"(y),
                 "r"(from)
                 : "memory");
}

__device__ __forceinline__ void copy_out(const TensorMap& map, int x, int y, int z, u32 from) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map), "r"(x),
                 "r"(y), "r"(z), "r"(from)
                 : "memory");
}

__device__ __forceinline__ void copy_out_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Wait until all but the newest `PENDING` groups of copies have been read from shared memory, which may then be
// overwritten.
template <int PENDING>
__device__ __forceinline__ void copy_out_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

__device__ __forceinline__ void copy_out_done() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Make the threads' writes to shared memory visible to the copy engine and to the tensor cores.
__device__ __forceinline__ void threads_wrote() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- asynchronous copies into shared memory by single threads

// Start to copy 16 bytes. The L2 cache fetches the 128 bytes that contain them.
__device__ __forceinline__ void read_sixteen_bytes(u32 to, const void* from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

__device__ __forceinline__ void reads_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Wait until all but the newest `PENDING` groups of this thread's copies are complete.
template <int PENDING>
__device__ __forceinline__ void reads_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// ---- products of a warp group

__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int PENDING>
__device__ __forceinline__ void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Return the descriptor of a tile with the 128-byte swizzle, as the copy engine writes it. `leading`: for an operand
// whose innermost dimension is not summed, the distance in bytes between pieces of 64 elements. Other operands do not
// use it.
__device__ __forceinline__ u64 tile_descriptor(u32 address, u32 leading) {
    return static_cast<u64>((address & 0x3FFFF) >> 4) | static_cast<u64>(leading >> 4) << 16 |
           static_cast<u64>(1024 >> 4) << 32 | 1ull << 62;
}

// ---- numbers

__device__ __forceinline__ u32 pack_bf16(float low, float high) {
    u32 packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

__device__ __forceinline__ float low_bf16(u32 packed) { return __uint_as_float(packed << 16); }
__device__ __forceinline__ float high_bf16(u32 packed) { return __uint_as_float(packed & 0xFFFF0000u); }

__device__ __forceinline__ float power_of_two(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}

__device__ __forceinline__ float sigmoid(float x) {
    float result;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(1.0f + power_of_two(-1.4426950408889634f * x)));
    return result;
}

// ---- shared memory

__device__ __forceinline__ u32 shared_load(u32 address) {
    u32 value;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(address));
    return value;
}

__device__ __forceinline__ void shared_store(u32 address, u32 value) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

// Return the address of the same place in the shared memory of block `rank` of the cluster.
__device__ __forceinline__ u32 address_at(u32 address, u32 rank) {
    u32 remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
    return remote;
}

// Store four numbers at an address from `address_at`. The barrier of that block counts the 16 bytes when they have
// arrived.
__device__ __forceinline__ void shared_store_at(u32 address, float a, float b, float c, float d, u32 barrier) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(address),
        "f"(a), "f"(b), "f"(c), "f"(d), "r"(barrier)
        : "memory");
}

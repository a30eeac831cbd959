#include "barrier.cuh"

// What the host encodes of a tensor; the copy engine alone looks into it.
struct alignas(64) TensorMap {
    unsigned long long opaque[16];
};

__device__ __forceinline__ void copy_in(unsigned tile, const TensorMap& map, int column, int row, unsigned barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(tile),
        "l"(&map), "r"(column), "r"(row), "r"(barrier)
        : "memory");
}

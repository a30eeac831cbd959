// As in `hopper.cuh`.
__device__ __forceinline__ void begin() {
    asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;" ::: "memory");
}

__device__ __forceinline__ void barrier_init(unsigned barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\n fence.mbarrier_init.release.cluster;" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void barrier_expect(unsigned barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_wait(unsigned barrier) {
    asm volatile(
        "{\n .reg .pred passed;\nwaiting:\n"
        " mbarrier.try_wait.parity.shared::cta.b64 passed, [%0], 0;\n @!passed bra waiting;\n}" ::"r"(barrier)
        : "memory");
}

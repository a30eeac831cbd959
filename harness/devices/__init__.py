"""CUDA's driver, NVML, the profiler and the machine: what is asked of them."""

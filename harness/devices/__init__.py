"""Read facts about this machine from CUDA's driver, NVML, the profiler and the operating system."""

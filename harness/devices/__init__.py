"""Ask CUDA's driver, NVML, the profiler and the operating system about this machine."""

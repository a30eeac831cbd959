"""Start a Triton kernel before the previous one on its stream has ended (programmatic dependent launch).

Each kernel calls `begin` first, and reads and writes nothing before that call, because the previous kernel may still be
running. The launch tells the driver that the kernel may start early (`triton_source`). Kernels in CUDA C++ do the same
by `begin` of `hopper.cuh`.
"""

from __future__ import annotations

import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from reference_impl.kernels.triton_source import device_function


@device_function
def begin(PDL: tl.constexpr) -> None:
    """Wait until all earlier kernels have ended and their writes are visible; then allow the next kernel to start.

    The next kernel waits at its own `begin`, so that only its start-up overlaps with this kernel.
    """
    if PDL:
        gdc_wait()
        gdc_launch_dependents()

"""Start a Triton kernel before the previous one on its stream has ended (programmatic dependent launch).

Each kernel must call `begin` before it reads or writes memory, because the previous kernel may still run. The launch
option that lets a kernel start early is set in `triton_source`. CUDA C++ kernels call `begin` of `hopper.cuh` instead.
"""

from __future__ import annotations

import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from reference_impl.kernels.triton_source import device_function


@device_function
def begin(PDL: tl.constexpr) -> None:
    """Wait until all earlier kernels have ended and their writes are visible. Then allow the next kernel to start.

    The next kernel then waits in its own call of `begin`, so that only its start overlaps with this kernel.
    """
    if PDL:
        gdc_wait()
        gdc_launch_dependents()

"""How a kernel in Triton starts: before the one before it on its stream has ended (programmatic dependent launch).

Each kernel begins with `begin`, and nothing that it reads or writes comes before that line: until then the kernel
before it may still be running. Its launch says so to the driver (`triton_source`); kernels in CUDA C++ do the same by
`begin` of `hopper.cuh`.
"""

from __future__ import annotations

import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from reference_impl.kernels.triton_source import device_function


@device_function
def begin(PDL: tl.constexpr) -> None:
    """Wait until all kernels before this one have ended and what they wrote is seen; then let the next one start.

    The next one waits here in its turn, so that it gains its way to the multiprocessors and no more.
    """
    if PDL:
        gdc_wait()
        gdc_launch_dependents()

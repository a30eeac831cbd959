"""Execute compiled code as it is written, where a dispatch mode stands in for the device.

Code that torch.compile made has kernels of its own. No mode sees what they compute, and they read and write the memory
of the tensors that they are given: a fake tensor has none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from harness.system.replay.frames import asked_at
from harness.system.replay.stand_ins import standing_in


@contextmanager
def as_written() -> Iterator[list[str]]:
    """Within its block nothing is compiled and no compiled code runs. Yields the lines that called such code."""
    from torch._dynamo import eval_frame

    calls: list[str] = []
    outer = eval_frame._callback_from_stance  # torch's own, or that of a block around this one, which notes calls, too

    def run_eagerly(compiler: Any) -> None:  # asked at each call of compiled code; None and False compile nothing
        outer(compiler)
        if compiler in (None, False):
            return
        place = asked_at()
        place = place if place[0] != "?" else "the step itself"  # called by no line of the user's
        if place not in calls:
            calls.append(place)

    # the stance alone leaves no note, and a step may set a stance of its own
    with torch.compiler.set_stance("force_eager"), standing_in((eval_frame,), "_callback_from_stance", run_eagerly):
        yield calls

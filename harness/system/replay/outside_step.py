"""Mark what the harness does between two steps, such as making a batch: no detector counts it as part of the step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch.utils._python_dispatch import _disable_current_modes

OUTSIDE = "harness.outside_of_the_step"
"""The range that a profile shows for it."""
_depth = 0


@contextmanager
def not_of_the_step() -> Iterator[None]:
    """Suspend what watches a step within the block: dispatch modes, torch's sync warnings, counts of waiting calls.

    A profile shows the block as the range `OUTSIDE`; readers of the profile leave the range out.
    """
    global _depth  # noqa: PLW0603
    # without a profiler the range would cost each timed step some microseconds
    profiled = torch._C._autograd._profiler_enabled()
    _depth += 1
    try:
        with _disable_current_modes(), torch.profiler.record_function(OUTSIDE) if profiled else nullcontext():
            yield
    finally:
        _depth -= 1


def is_of_the_step() -> bool:
    """Return False within the blocks of `not_of_the_step`."""
    return _depth == 0

"""The GPU architecture for which kernels are chosen. Hopper has its own kernels, which other GPUs cannot run."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from harness.devices.ptx import parse_target

HOPPER = 90

_named: ContextVar[int | None] = ContextVar("named", default=None)


@contextmanager
def planning_for(target: str) -> Iterator[None]:
    """Make code inside the `with` choose kernels for the architecture `target`, such as `sm_90`, on any machine.

    Raises ValueError if `target` is not the name of an architecture.
    """
    token = _named.set(parse_target(target).number)
    try:
        yield
    finally:
        _named.reset(token)


def hopper() -> bool:
    """Return True if kernels that only Hopper can run (compute capability 9.0) should be planned and launched.

    Inside `planning_for`, the result depends on its target, otherwise on the current CUDA device. Without a device the
    result is True: Hopper is assumed, as by `shared_memory_bytes`. The result is False if Triton interprets kernels,
    because kernels in CUDA C++ cannot be interpreted. Do not call this function in a cached function, because the cache
    would keep one result for all targets. Pass the result to the cached function instead.
    """
    named = _named.get()
    return _here() if named is None else named == HOPPER


@functools.cache
def _here() -> bool:
    if os.environ.get("TRITON_INTERPRET") == "1":
        return False
    return not torch.cuda.is_available() or torch.cuda.get_device_capability() == (9, 0)


def starts_early(sm: int) -> bool:
    """Return True if a kernel on the architecture `sm` may start before the previous kernel ends. Hopper (90) and later
    GPUs allow this."""
    return sm >= HOPPER


@functools.cache
def device_starts_early() -> bool:
    """Return `starts_early` for the current CUDA device. Return False without a device or for interpreted kernels."""
    if os.environ.get("TRITON_INTERPRET") == "1" or not torch.cuda.is_available():
        return False
    major, minor = torch.cuda.get_device_capability()
    return starts_early(10 * major + minor)

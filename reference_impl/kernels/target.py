"""The GPU architecture for which kernels are chosen, because Hopper has kernels that other GPUs cannot run."""

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
    """Choose kernels for `target` (`sm_90`) inside the `with`, on any machine. Raises ValueError for no such name."""
    token = _named.set(parse_target(target).number)
    try:
        yield
    finally:
        _named.reset(token)


def hopper() -> bool:
    """Return True if kernels for Hopper alone (compute capability 9.0) are to be planned and launched.

    The target of `planning_for` decides, otherwise the current CUDA device. Without a device the result is True,
    because `shared_memory_bytes` assumes Hopper, too. The result is False if Triton interprets kernels, because CUDA
    C++ has no interpreter. Do not call this in a cached function, which would keep one result for all targets; pass the
    result to it.
    """
    named = _named.get()
    return _here() if named is None else named == HOPPER


@functools.cache
def _here() -> bool:
    if os.environ.get("TRITON_INTERPRET") == "1":
        return False
    return not torch.cuda.is_available() or torch.cuda.get_device_capability() == (9, 0)


def starts_early(sm: int) -> bool:
    """Return True if kernels on `sm` (90 is Hopper) may start before the previous one has ended: from Hopper on."""
    return sm >= HOPPER


@functools.cache
def device_starts_early() -> bool:
    """Return `starts_early` for the current CUDA device; False if Triton interprets kernels or there is no device."""
    if os.environ.get("TRITON_INTERPRET") == "1" or not torch.cuda.is_available():
        return False
    major, minor = torch.cuda.get_device_capability()
    return starts_early(10 * major + minor)

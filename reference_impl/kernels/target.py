"""The target GPU that kernels are chosen for, where GPUs have different kernels."""

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
    """Choose kernels for `target` (`sm_90`) inside the `with`, on any machine. Raises ValueError if it is none."""
    token = _named.set(parse_target(target).number)
    try:
        yield
    finally:
        _named.reset(token)


def hopper() -> bool:
    """Return True if kernels that only capability 9.0 executes are to be planned and launched.

    Decides by the planned target, else by the current CUDA device; without a device it is True, as
    `shared_memory_bytes` assumes. It is False where Triton interprets kernels, which CUDA C++ has no interpreter for. A
    cached function that calls this would give one answer for all targets: call this before, and pass the answer.
    """
    named = _named.get()
    return _here() if named is None else named == HOPPER


@functools.cache
def _here() -> bool:
    if os.environ.get("TRITON_INTERPRET") == "1":
        return False
    return not torch.cuda.is_available() or torch.cuda.get_device_capability() == (9, 0)


def starts_early(sm: int) -> bool:
    """Return True if a kernel on `sm` (90 is Hopper) may start before the previous one has ended: from Hopper on."""
    return sm >= HOPPER


@functools.cache
def device_starts_early() -> bool:
    """Return `starts_early` of the current CUDA device; False where Triton interprets its kernels."""
    if os.environ.get("TRITON_INTERPRET") == "1" or not torch.cuda.is_available():
        return False
    major, minor = torch.cuda.get_device_capability()
    return starts_early(10 * major + minor)

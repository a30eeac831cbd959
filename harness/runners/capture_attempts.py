"""How often a capture begins in this process: what a system says of itself is held against it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch

from harness.system.replay.traced import TracedStep

_BEGINNINGS: tuple[tuple[Any, str], ...] = ((torch.cuda.CUDAGraph, "capture_begin"), (TracedStep, "record"))


class CaptureAttempts:
    """Within its block, counts captures that begin: of a CUDA graph by torch, by whichever library, or traced ones."""

    def __init__(self) -> None:
        self.count = 0
        self._replaced: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> Self:
        for owner, name in _BEGINNINGS:
            begin = getattr(owner, name)
            self._replaced.append((owner, name, begin))
            setattr(owner, name, self._counted(begin))
        return self

    def __exit__(self, *_raised: object) -> None:
        for owner, name, begin in self._replaced:
            setattr(owner, name, begin)
        self._replaced.clear()

    def _counted(self, begin: Callable[..., object]) -> Callable[..., object]:
        def counted(*arguments: object, **keywords: object) -> object:
            self.count += 1
            return begin(*arguments, **keywords)

        return counted

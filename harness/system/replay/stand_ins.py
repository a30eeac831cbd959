"""A function of torch's own in another's place, for the time of a block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any


@contextmanager
def standing_in(modules: Sequence[ModuleType | type], name: str, stand_in: Callable[..., Any]) -> Iterator[None]:
    """Within its block each module has `stand_in` under that name."""
    before = [getattr(module, name) for module in modules]
    try:
        for module in modules:
            setattr(module, name, stand_in)
        yield
    finally:
        for module, original in zip(modules, before, strict=True):
            setattr(module, name, original)

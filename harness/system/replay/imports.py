"""Restore the process's generators after an import: what an import draws is not the training's.

Libraries draw random numbers for their own purposes while they are imported (rich does, and httpx, transformers and
many more import it). The first arm in a process imports them, a later arm does not. Without this module the two would
start, or continue, from different generators.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import numpy.random  # noqa: F401 - numpy imports it when it is asked for first, which may be within an import

from harness.system.replay.generators import host_generators, restore


class UndrawnImports:
    """A finder before all others, which finds what they find. An import within another one is that one's.

    Only imports of the thread that trains are looked after: what another one puts back would be the state of before.
    """

    def __init__(self) -> None:
        self._thread = threading.local()
        self.trains = threading.get_ident()  # the thread

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return what the later finders find, with a loader that restores the generators."""
        if getattr(self._thread, "importing", False) or not self._looks():
            return None
        others = [each for each in sys.meta_path if each is not self and hasattr(each, "find_spec")]
        found = (each.find_spec(name, path, target) for each in others)
        spec = next((each for each in found if each is not None), None)
        if spec is not None:
            self._look_after(spec.loader)
        return spec

    def _looks(self) -> bool:
        return threading.get_ident() == self.trains

    def _look_after(self, loader: Any) -> None:
        """Wrap a loader's `exec_module`. Leave loaders alone that are classes, which all share, or that refuse it."""
        if not hasattr(loader, "exec_module") or "exec_module" in getattr(loader, "__dict__", {}):
            return
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            self._thread.importing, within = True, getattr(self._thread, "importing", False)
            put_back = None if within or not self._looks() else _generators_kept()
            try:
                execute(module)
            finally:
                self._thread.importing = within
                if put_back is not None:
                    put_back()

        with suppress(AttributeError):
            loader.exec_module = exec_module


def _generators_kept() -> Callable[[], None]:
    """Return a function that restores the host's generators, which may be read while a device captures."""
    host = host_generators()
    known = {name: get() for name, (get, _) in host.items()}  # a copy of it would be fake in a pass over fake tensors
    return lambda: restore(host, known)


_UNDRAWN = UndrawnImports()


def keep_imports_undrawn() -> None:
    """Keep imports undrawn from now on, in this thread and in no other of this process."""
    _UNDRAWN.trains = threading.get_ident()
    if _UNDRAWN not in sys.meta_path:
        sys.meta_path.insert(0, _UNDRAWN)

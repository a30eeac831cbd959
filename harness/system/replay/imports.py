"""What an import draws is not the training's: the process's generators are put back after it.

Libraries draw random numbers for ends of their own while they are imported (rich does, and httpx, transformers and many
more import it). The arm that runs first in a process imports them, an arm after it does not: without this the two
would start, or go on, from different generators.
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
        """As the finders after this one, with a loader that puts the generators back."""
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
        """Classes that load, as for built-in modules, stay as they are: they belong to all. So does what takes none."""
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
    """How to put back the generators of the host, which may be read while a device captures."""
    host = host_generators()
    known = {name: get() for name, (get, _) in host.items()}  # a copy of it would be fake in a pass over fake tensors
    return lambda: restore(host, known)


_UNDRAWN = UndrawnImports()


def keep_imports_undrawn() -> None:
    """From now on in this thread, and in no other of this process."""
    _UNDRAWN.trains = threading.get_ident()
    if _UNDRAWN not in sys.meta_path:
        sys.meta_path.insert(0, _UNDRAWN)

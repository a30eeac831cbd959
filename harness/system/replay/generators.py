"""Read and set every random generator that a step can draw from: generators of torch, numpy and Python.

If a step sets a generator's state, this module notes the line of code. A replay does not set the state again, so
replays draw other numbers than the step.
"""

from __future__ import annotations

import pickle
import random
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import numpy as np
import numpy.random  # otherwise numpy imports this module at its first use, perhaps during another import
import torch
from torch import Tensor

from harness.devices import device
from harness.system.replay.holders import asked, module_of
from harness.system.replay.launches import standing_in
from harness.system.replay.sites import asked_at

# Two functions: the first returns the state of a generator, and the second sets it.
Accessors = tuple[Callable[[], Any], Callable[[Any], None]]


def global_generators() -> dict[str, Accessors]:
    """Return, by name, the functions that read and set each generator of the process."""
    return host_generators() | device.generators()


def host_generators() -> dict[str, Accessors]:
    """Return `global_generators` without the generators of devices. The host's generators may be read in a capture."""
    return {
        "torch.cpu": (torch.get_rng_state, torch.set_rng_state),
        "numpy": (np.random.get_state, np.random.set_state),
        "python": (random.getstate, random.setstate),
    }


def accessors_of(generator: object) -> Accessors | None:
    """Return the functions that read and set the state of a generator object; None for any other object."""
    if isinstance(generator, torch.Generator):
        return generator.get_state, generator.set_state  # type: ignore[return-value]
    if isinstance(generator, random.Random):
        return generator.getstate, generator.setstate
    if module_of(type(generator)).partition(".")[0] != "numpy":
        return None
    if hasattr(generator, "get_state") and hasattr(generator, "set_state"):  # numpy's RandomState
        return generator.get_state, generator.set_state
    bits = getattr(generator, "bit_generator", generator)
    if hasattr(bits, "state"):
        return lambda: bits.state, lambda state: setattr(bits, "state", state)
    return None


def states(generators: Mapping[str, Accessors]) -> dict[str, Any]:
    """Return each generator's current state. The states of torch's generators are copies."""
    found = {}
    for name, (get, _) in generators.items():
        # `random.SystemRandom` takes its numbers from the operating system and has no state. `asked` then returns None.
        state = asked(get, None)
        if state is not None:
            found[name] = state.clone() if isinstance(state, Tensor) else state
    return found


def restore(generators: Mapping[str, Accessors], known: Mapping[str, Any]) -> None:
    """Restore the states that `states` returned. Do not change generators that appeared later."""
    for name, state in known.items():
        if name in generators:
            generators[name][1](state)


def as_tensor(state: Any) -> Tensor:
    """Return a generator's state as a tensor of bytes [number of bytes], to compute a digest of the state."""
    if isinstance(state, Tensor):
        return state.detach().cpu()
    return torch.frombuffer(bytearray(pickle.dumps(state, protocol=4)), dtype=torch.uint8)


def seed_all(seed: int) -> None:
    """Seed every global generator. Otherwise an arm would start with the generator states that an earlier arm left."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - a trainer may draw from this global generator


_set, _seed = torch.random.set_rng_state, torch.random.manual_seed


@contextmanager
def noted_generator_states() -> Iterator[list[str]]:
    """Yield a list. The list gets a text for each line of code that calls `torch.set_rng_state` or `torch.manual_seed`
    during the `with` block."""
    told: list[str] = []

    def note(how: str) -> None:
        if (sentence := how.format(place=asked_at())) not in told:
            told.append(sentence)

    def set_state(new_state: Tensor) -> None:
        note("its state is set at {place}, as torch.utils.checkpoint does")
        _set(new_state)

    def seed(number: Any) -> torch.Generator:
        note("it is seeded at {place}")
        return _seed(number)

    modules = (torch, torch.random)
    with standing_in(modules, "set_rng_state", set_state), standing_in(modules, "manual_seed", seed):
        yield told


# Restore the process's generators after an import, because numbers drawn during an import do not belong to the
# training.
#
# Libraries draw random numbers for their own purposes while they are imported. For example, rich does so, and many
# packages such as httpx and transformers import rich. The first arm in a process imports such a package, and a later
# arm does not. Without the restoration, the two arms would draw different numbers.


class UndrawnImports:
    """An import finder that restores the generators after each import. For this, the finder wraps the loader that
    another finder returns.

    Imports inside an import are not wrapped. Imports by other threads than the training thread are not wrapped either,
    because a restoration after such an import would undo draws of the training.
    """

    def __init__(self) -> None:
        self._thread = threading.local()
        self.trains = threading.get_ident()  # id of the training thread

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that another finder returns, with a loader that restores the generators after the import."""
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
        """Wrap a loader's `exec_module`. Skip read-only loaders. Also skip loaders that are classes, because all
        imports share a class."""
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
    """Return a function that restores the current states of the host's generators."""
    host = host_generators()
    # The states must not be copied. While a step runs on fake tensors, the copies would be fake tensors.
    known = {name: get() for name, (get, _) in host.items()}
    return lambda: restore(host, known)


_UNDRAWN = UndrawnImports()


def keep_imports_undrawn() -> None:
    """Restore the generators after each import by the calling thread, from now on."""
    _UNDRAWN.trains = threading.get_ident()
    if _UNDRAWN not in sys.meta_path:
        sys.meta_path.insert(0, _UNDRAWN)

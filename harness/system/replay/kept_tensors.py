"""Tensors that a step leaves in attributes, lists and closures, such as `self.accuracy = …`, kept up with replays.

A replay executes no Python, so what it computes would stay in memory that nobody reads: each replay binds it again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import CellType
from typing import Any

from torch import Tensor

from harness.system.replay.found_state import same
from harness.system.replay.holders import Bindings, Memo, Values, asked
from harness.system.replay.reachable import Container, reach


class KeptTensors:
    """Where one execution of a step left which of its results. Made before the execution."""

    def __init__(self, roots: Sequence[object]) -> None:
        self._roots = roots
        # held until then, so that no identity is used twice
        self._before = {id(tensor): tensor for _, _, tensor in _held(reach(*roots).containers)}
        self._places: list[tuple[Any, Any, str]] = []

    def find(self, results: Mapping[str, Tensor]) -> None:
        """Call after the execution, while what it bound is still bound; `results` are its tensors by name."""
        by_elements = {same(tensor): name for name, tensor in results.items()}
        self._places = [
            (container, key, by_elements[same(tensor)])
            for container, key, tensor in _held(reach(*self._roots).containers)
            if id(tensor) not in self._before and same(tensor) in by_elements
        ]
        self._before = {}

    def binds(self, container: Container, key: Any) -> bool:
        """Whether each replay puts a result there; `key` is None in a closure's cell."""
        bound = {(id(owner_of(place)), own) for place, own, _ in self._places}  # tensors as keys are equal to no number
        return (id(owner_of(container)), key) in bound

    def bind(self, results: Mapping[str, Tensor]) -> None:
        """Put a replay's results where the execution left its own."""
        for container, key, name in self._places:
            if isinstance(container, CellType):
                container.cell_contents = results[name]
            elif isinstance(container, Bindings):
                container.bind(key, results[name])
            else:
                container[key] = results[name]


def owner_of(container: Container) -> object:
    """What is changed through it: each walk has bindings of its own over the same names."""
    return container.owner if isinstance(container, Bindings | Values) else container


def _held(containers: Iterable[Container]) -> Iterator[tuple[Container, Any, Tensor]]:
    """Every tensor that a container holds itself, with its key there (none in a closure's cell)."""
    for container in containers:
        entries: Iterable[tuple[Any, Any]]
        if isinstance(container, CellType):
            try:
                entries = [(None, container.cell_contents)]
            except ValueError:  # an empty one
                continue
        elif isinstance(container, Memo | Values):
            continue
        elif isinstance(container, Bindings):
            entries = container.current().items()
        elif isinstance(container, list | deque):
            entries = enumerate(asked(partial(list, container), []))
        else:
            entries = list(dict.items(container))
        yield from ((container, key, value) for key, value in entries if issubclass(type(value), Tensor))

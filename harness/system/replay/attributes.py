"""What dictionaries, lists and closures held before a trial execution: attributes that it added or bound anew.

A table built in the first forward pass is such an attribute. Left behind by a fake pass it would hold fake tensors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from types import CellType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from harness.system.replay.holders import Bindings, Memo, Values, asked
from harness.system.replay.reachable import Container, reach, tensors_of

EMPTY = object()  # in a closure's cell
_UNREADABLE = object()


class Attributes:
    """Shallow copies of containers, and a way back to them."""

    def __init__(self, containers: Iterable[Container]) -> None:
        self._before: dict[int, tuple[Container, Any]] = {}
        self._created: dict[int, tuple[Tensor, Tensor]] = {}
        self._lengths: dict[int, int] = {}  # of lists, after the first execution
        self._known: set[int] = set()
        self.add(containers)

    def know(self, tensors: Iterable[int]) -> None:
        """Identities of tensors that are there already."""
        self._known |= {*tensors}

    def add(self, containers: Iterable[Container]) -> None:
        """Remember more containers as they are now."""
        for container in containers:
            before = asked(partial(copied, container), _UNREADABLE)
            if before is not _UNREADABLE:
                self._before.setdefault(id(container), (container, before))

    def changed(self) -> bool:
        """Whether any container holds something else than it did."""
        return any(not _holds_the_same(container, before) for container, before in self._before.values())

    def note_created(self, roots: Sequence[object]) -> None:
        """Remember the value of every tensor that can be reached now; see `created`."""
        with _disable_current_modes(), torch.no_grad():
            self._created = {id(tensor): (tensor, tensor.detach().clone()) for _, tensor in self._new_tensors(roots)}
        self._lengths = {key: len(each) for key, (each, _) in self._before.items() if isinstance(each, list | deque)}

    def created(self, roots: Sequence[object]) -> tuple[set[int], list[tuple[str, Tensor]]]:
        """Of the tensors noted, those still held: identities of the unchanged ones, and the changed ones by path."""
        kept: set[int] = set()
        changed: list[tuple[str, Tensor]] = []
        with _disable_current_modes(), torch.no_grad():
            for path, tensor in self._new_tensors(roots):
                noted = self._created.get(id(tensor))
                if noted is None:  # made anew by every execution
                    continue
                if torch.equal(torch.nan_to_num(tensor), torch.nan_to_num(noted[1])):
                    kept.add(id(tensor))
                else:
                    changed.append((path, tensor))
        return kept, changed

    def restore(self, kept: AbstractSet[int] = frozenset()) -> None:
        """Put every container back to what it held, but for new entries made of tensors whose identity is in `kept`."""
        for container, before in self._before.values():
            if _holds_the_same(container, before):
                continue
            if isinstance(container, Memo):
                container.forget(before, lambda results: _is_made_of(results, kept))
            elif isinstance(container, Values):
                container.put_back(before)
            elif isinstance(container, Bindings):
                _restore_bindings(container, before, kept)
            elif isinstance(container, dict):
                added = {
                    key: value
                    for key, value in container.items()
                    if before.get(key) is None and _is_made_of(value, kept)
                }
                container.clear()
                container.update({**before, **added})
            elif isinstance(container, CellType):
                _restore_cell(container, before, kept)
            else:
                grew_once = len(container) == self._lengths.get(id(container))  # what grows each time is a log
                appended = list(container)[len(before) :] if grew_once else []
                container.clear()
                container.extend([*before, *(value for value in appended if _is_made_of(value, kept))])

    def _new_tensors(self, roots: Sequence[object]) -> list[tuple[str, Tensor]]:
        """Tensors that no container held before, by path."""
        if not self.changed():
            return []
        found = reach(*roots)
        all_of_them = [*found.tensors.items(), *found.memoized.items()]
        for path, module in found.modules.items():
            all_of_them += [(f"{path}.{name}", tensor) for name, tensor in module.named_buffers()]
        for path, scaler in found.scalers.items():
            all_of_them += [(f"{path}.{name}", each) for name, each in vars(scaler).items() if isinstance(each, Tensor)]
        return [(path, tensor) for path, tensor in all_of_them if id(tensor) not in self._known]


def copied(container: Container) -> Any:
    """A shallow copy; of a closure's cell what it holds, of a cache how much."""
    if isinstance(container, CellType):
        return contents(container)
    if isinstance(container, Memo):
        return container.size()
    if isinstance(container, Bindings | Values):
        return container.current()
    return dict(container) if isinstance(container, dict) else list(container)


def contents(cell: CellType) -> Any:
    """What a closure's cell holds, `EMPTY` where that is nothing."""
    try:
        return cell.cell_contents
    except ValueError:
        return EMPTY


def _holds_the_same(container: Container, before: Any) -> bool:
    return asked(partial(_is_as, container, before), True)


def _is_as(container: Container, before: Any) -> bool:
    if isinstance(container, CellType):
        return contents(container) is before
    if isinstance(container, Memo):
        return bool(container.size() == before)
    if isinstance(container, Values):
        return container.is_as(before)
    if isinstance(container, Bindings):
        container = container.current()
    if isinstance(container, dict):
        # by hash: two tensors that are keys are equal to no truth
        in_order = [*map(hash, container)] == [*map(hash, before)]
        return in_order and all(container.get(key, EMPTY) is value for key, value in before.items())
    return len(container) == len(before) and all(a is b for a, b in zip(container, before, strict=True))


def _restore_cell(cell: CellType, before: Any, kept: AbstractSet[int]) -> None:
    if before is EMPTY:
        del cell.cell_contents
    elif not (before is None and _is_made_of(cell.cell_contents, kept)):
        cell.cell_contents = before


def _restore_bindings(bindings: Bindings, before: dict[str, Any], kept: AbstractSet[int]) -> None:
    for name, value in bindings.current().items():
        if before.get(name) is None and _is_made_of(value, kept):
            continue
        if name not in before:
            bindings.unbind(name)
    for name, value in before.items():
        now = bindings.current().get(name, EMPTY)
        if now is not value and not (value is None and _is_made_of(now, kept)):
            bindings.bind(name, value)


def _is_made_of(value: Any, kept: AbstractSet[int]) -> bool:
    """Whether a value holds tensors, and none but those in `kept`."""
    if not kept:
        return False
    found = reach(value)
    tensors = [*found.tensors.values(), *(each for module in found.modules.values() for each in tensors_of(module))]
    return bool(tensors) and all(id(tensor) in kept for tensor in tensors)

"""What one execution of a step changes on the host: numbers, numpy's arrays, tensors that are bound anew or given other
memory, generators of the host; where a device's graph is replayed, tensors in the host's memory, too.

A replay executes no Python, so it does none of that again: training that needs it goes wrong without an error.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from functools import partial
from types import CellType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from harness.system.replay import generators
from harness.system.replay.attributes import EMPTY, contents, copied
from harness.system.replay.found_state import same
from harness.system.replay.holders import Bindings, Memo, Values, asked, key_name
from harness.system.replay.kept_tensors import KeptTensors, owner_of
from harness.system.replay.reachable import Container, Reachable, reach

_NUMBERS = (bool, int, float)
_PLAIN = (bool, int, float, str, type(None))
_SHOWN = 40  # characters of a value
_GONE = object()
_UNREADABLE = object()


class _Change(NamedTuple):
    container: Container
    key: Any
    path: str
    how: str
    is_number: bool = False  # before and after


class HostChanges:
    """Made before an execution of the step; `found` after it."""

    def __init__(self, roots: Sequence[object], *, of_device: bool) -> None:
        """of_device: whether replays are of a device's graph, which has nothing of what torch does on the CPU."""
        found = reach(*roots)
        memories = [] if of_device else _memories(found)
        self._before = [
            (each, before, found.paths[id(each)])
            for each in found.containers
            if not _is_of_a_tensor(each, memories)
            and (before := asked(partial(copied, each), _UNREADABLE)) is not _UNREADABLE
        ]
        self._kept_by_optimizers: list[tuple[Container, Any, str]] = [
            (entry, dict(entry), ".".join(filter(None, (path, "state", str(number)))))
            for path, optimizer in found.optimizers.items()
            for number, entry in enumerate(optimizer.state.values())
            if isinstance(entry, dict)
        ]
        self._generators = generators.global_generators() | found.generators
        self._of_device = of_device
        self._in_place = {path: (each, each._version) for path, each in _on_host(found)} if of_device else {}
        self._memory = [(path, each, same(each)) for path, each in _held(found)]
        self._drawn_before = self._drawn()

    def found(self, kept: KeptTensors) -> list[str]:
        """What changed, each by its path and how; without what `kept` keeps up with replays."""
        changes = [f"{each.path} ({each.how})" for each in self._changed(kept, self._before)]
        changes += [
            f"{path} (a tensor on the host, changed in place)"
            for path, (tensor, version) in self._in_place.items()
            if tensor._version != version
        ]
        changes += [
            f"{path} (other memory, by an assignment to `.data`)"
            for path, tensor, before in self._memory
            if same(tensor) != before
        ]
        now = self._drawn()
        drawn = [f"{name} (numbers drawn on the host)" for name in now if now[name] != self._drawn_before.get(name)]
        return list(dict.fromkeys([*changes, *drawn]))

    def numbers(self, kept: KeptTensors) -> list[tuple[Container, Any, str]]:
        """Container, key and path of each number that became another number."""
        changed = [*self._changed(kept, self._before), *self._changed(kept, self._kept_by_optimizers)]
        return [(each.container, each.key, each.path) for each in changed if each.is_number]

    def _changed(self, kept: KeptTensors, noted: Sequence[tuple[Container, Any, str]]) -> list[_Change]:
        """Every entry that is another one, each once: functions of one module may name the same of it."""
        found: dict[tuple[int, Any], _Change] = {}
        for container, before, held_at in noted:
            differences = asked(lambda: [*_differences(container, before, held_at)], [])  # noqa: B023 - called here
            for each in differences:
                if not kept.binds(container, each.key):
                    found.setdefault((id(owner_of(container)), each.key), each)
        return list(found.values())

    def _drawn(self) -> dict[str, bytes | str]:
        """The states of the host's generators, to be compared."""
        with _disable_current_modes():
            return {
                name: state.cpu().numpy().tobytes() if isinstance(state, Tensor) else repr(state)
                for name, state in generators.states(self._generators).items()
                if not isinstance(state, Tensor) or (self._of_device and not name.startswith("torch.cuda"))
            }


def _held(found: Reachable) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of the training's that is there, with its path."""
    yield from found.tensors.items()
    for path, module in found.modules.items():
        for named in (module.named_parameters(), module.named_buffers()):
            yield from ((".".join(filter(None, (path, name))), each) for name, each in named)


def _on_host(found: Reachable) -> Iterator[tuple[str, Tensor]]:
    """Every tensor in the host's memory, with its path. A pinned one may be what the device's graph copies to."""
    yield from ((path, each) for path, each in found.tensors.items() if _is_of_host(each))
    for container in found.containers:
        if isinstance(container, dict):
            held_at = found.paths[id(container)]
            named = ((key_name(key, index), each) for index, (key, each) in enumerate(dict.items(container)))
            yield from ((f"{held_at}.{name}", each) for name, each in named if _is_of_host(each))
    for path, optimizer in found.optimizers.items():
        for number, state in enumerate(optimizer.state.values()):
            held_at = ".".join(filter(None, (path, "state", str(number))))
            entries = state if isinstance(state, dict) else {"": state}
            yield from ((f"{held_at}.{key}".rstrip("."), each) for key, each in entries.items() if _is_of_host(each))


def _memories(found: Reachable) -> list[np.ndarray[Any, Any]]:
    """The bytes [n] that each loose tensor on the host lies in."""
    strided = [each for each in found.tensors.values() if _is_of_host(each) and each.layout is torch.strided]
    storages = [each.untyped_storage() for each in strided]
    # by addresses: within a recorded step a call of torch would count as the step's
    return [
        np.ctypeslib.as_array((ctypes.c_uint8 * each.nbytes()).from_address(each.data_ptr()))
        for each in storages
        if each.nbytes()
    ]


def _is_of_a_tensor(container: Container, memories: Sequence[np.ndarray[Any, Any]]) -> bool:
    """Whether it is an array in the memory of a tensor: what a replay computes there is done again."""
    array = container.owner if isinstance(container, Values) else None
    return isinstance(array, np.ndarray) and any(np.may_share_memory(array, memory) for memory in memories)


def _is_of_host(value: Any) -> bool:
    is_there = issubclass(type(value), Tensor) and value.device.type == "cpu"
    return is_there and not (value.is_inference() or value.is_pinned())


def _differences(container: Container, before: Any, path: str) -> Iterator[_Change]:
    """Every entry that is another one."""
    entries: Iterator[tuple[Any, str, Any, Any]]
    if isinstance(container, CellType):
        entries = iter([(None, path, before, contents(container))])
    elif isinstance(container, Memo | Values):
        yield from (_Change(container, None, path, how) for how in _difference_of_all(container, before))
        return
    elif isinstance(container, Bindings):
        bound = container.current()
        names = dict.fromkeys([*before, *bound])
        entries = (
            (name, ".".join(filter(None, (path, name))), before.get(name, _GONE), bound.get(name, _GONE))
            for name in names
        )
    elif isinstance(container, dict):
        keys = dict.fromkeys([*before, *container])
        entries = (
            (key, f"{path}.{key_name(key, index)}", before.get(key, _GONE), container.get(key, _GONE))
            for index, key in enumerate(keys)
        )
    elif len(container) != len(before):
        yield _Change(container, None, path, f"{len(before)} entries, then {len(container)}")
        return
    else:
        pairs = enumerate(zip(before, container, strict=True))
        entries = ((index, f"{path}.{index}", was, now) for index, (was, now) in pairs)
    for key, place, was, now in entries:
        if was is not now and not (isinstance(was, _PLAIN) and type(was) is type(now) and was == now):
            is_number = type(was) in _NUMBERS and type(now) in _NUMBERS
            yield _Change(container, key, place, _manner(was, now), is_number)


def _difference_of_all(container: Memo | Values, before: Any) -> Iterator[str]:
    """The manner in which something differs that is told as one."""
    if isinstance(container, Values):
        if not container.is_as(before):
            yield f"{type(container.owner).__name__}, changed in place"
    elif container.size() != before:
        yield f"{before} results kept, then {container.size()}"


def _manner(was: Any, now: Any) -> str:
    if type(was) is type(now) and not isinstance(now, _PLAIN):
        return f"another {type(now).__name__}"
    return f"{_shown(was)}, then {_shown(now)}"


def _shown(value: Any) -> str:
    if value is _GONE or value is EMPTY:
        return "nothing"
    return repr(value)[:_SHOWN] if isinstance(value, _PLAIN) else f"a {type(value).__name__}"

"""Store the content of places (dictionaries, lists and other holders of values), list later changes, and restore the
earlier content."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from harness.system.replay import generators
from harness.system.replay.found_state import same
from harness.system.replay.holders import asked
from harness.system.replay.places import Change, Elements, Place, Slot, Stays, Values
from harness.system.replay.reachable import Reachable, reach

_UNREADABLE = object()


class Snapshot:
    """Shallow copies of the content of places. A place that raises an error when it is read is skipped."""

    def __init__(self, places: Iterable[Place] = ()) -> None:
        self._held: dict[tuple[object, ...], tuple[Place, Any]] = {}
        self.add(places)

    def add(self, places: Iterable[Place]) -> None:
        """Add more places, and store their present content."""
        for place in places:
            held = asked(place.read, _UNREADABLE) if place.identity not in self._held else _UNREADABLE
            if held is not _UNREADABLE:
                self._held[place.identity] = place, held

    def changed(self) -> bool:
        """Return True if the content of any place differs from the stored content."""
        return any(True for _ in self._others())

    def changes(self) -> list[Change]:
        """Return the changes of all slots (entries of places) whose values differ from the stored values. A slot that
        was found twice, such as a global of two functions, is listed once."""
        found: dict[tuple[int, Any], Change] = {}
        for place, held in self._others():
            for each in asked(lambda: [*place.changes(held)], []):  # noqa: B023 - called at once
                found.setdefault(each.slot.identity, each)
        return [*found.values()]

    def restore(self, stays: Stays = lambda _slot, _value: False) -> None:
        """Restore the stored content of every place. Keep a new entry if `stays` returns True for it."""
        for place, held in self._others():
            place.restore(held, stays)

    def grown(self) -> None:
        """Store the lengths of lists after the first execution of the step. A list that later executions extend again
        is a log, whose new entries `restore` removes."""
        for place, _ in self._held.values():
            if isinstance(place, Elements):
                place.grew_to = asked(partial(len, place.owner), None)

    def tensors(self) -> Iterator[tuple[Slot, Tensor]]:
        """Yield (slot, tensor) for every slot that contained a tensor when the snapshot was taken."""
        for place, held in self._held.values():
            for index, (key, value) in enumerate(place.entries(held)):
                if issubclass(type(value), Tensor):
                    yield Slot(place, key, place.name(key, index)), value

    def _others(self) -> Iterator[tuple[Place, Any]]:
        """Yield (place, stored content) for each place whose present content differs from the stored content."""
        return ((place, held) for place, held in self._held.values() if not asked(partial(place.is_as, held), True))


# Find what one execution of a step changes on the host: numbers, numpy arrays, tensors that are replaced by another
# object or get other memory, and the host's generators. If replays run a device's graph, changes of tensors in the
# host's memory count, too.
#
# A replay executes no Python and repeats none of these changes. If a training needs these changes, its replays train
# wrongly without an error.

_NUMBERS = (bool, int, float)
KeptUp = list[tuple[Slot, str]]  # slots, each with the name of the result that every replay stores in the slot


def keep_up(kept: KeptUp, results: Mapping[str, Tensor]) -> None:
    """Put a replay's results into the slots in which the captured step stored its results (`self.accuracy = …`).

    A replay executes no Python. Without this function, code that reads the slots would not see the new results.
    """
    for slot, name in kept:
        slot.put(results[name])


class HostChanges:
    """Finds what one execution of a step changes on the host. Create this object before the execution, and call its
    methods before the execution is undone."""

    def __init__(self, roots: Sequence[object], *, of_device: bool) -> None:
        """Store the present values. of_device: True if replays run the graph of a device, and therefore do not repeat
        work of the CPU."""
        self._roots, self._of_device = roots, of_device
        found = reach(*roots)
        memories = [] if of_device else _memories(found)
        self._places = Snapshot(each for each in found.places if not _is_of_a_tensor(each, memories))
        self._kept_by_optimizers = Snapshot(found.of_optimizers)
        self._generators = generators.global_generators() | found.generators
        self._memory = [(path, each, same(each)) for path, each in found.named_tensors()]
        self._in_place: dict[int, tuple[str, Tensor, int]] = {}
        if of_device:
            held = [*self._places.tensors(), *self._kept_by_optimizers.tensors()]
            for path, each in [*found.named_tensors(), *((slot.name, each) for slot, each in held)]:
                if _is_of_host(each):
                    self._in_place.setdefault(id(each), (path, each, each._version))
        self._drawn_before = self._drawn()

    def kept_up(self, results: Mapping[str, Tensor]) -> KeptUp:
        """Return the slots in which the execution stored results. results: the tensors of the results, by name.

        Slots of a list that became longer are left out, because a replay appends nothing.
        """
        by_elements = {same(tensor): name for name, tensor in results.items()}
        held = [*self._places.tensors(), *self._kept_by_optimizers.tensors()]
        before = {id(tensor) for _, tensor in held}
        grown = {id(each.slot.place.owner) for each in self._places.changes() if each.slot.key is None}
        found = reach(*self._roots) if results else None
        now = () if found is None else Snapshot([*found.places, *found.of_optimizers]).tensors()
        return [
            (slot, by_elements[same(tensor)])
            for slot, tensor in now
            if id(tensor) not in before and same(tensor) in by_elements and id(slot.place.owner) not in grown
        ]

    def found(self, kept: KeptUp) -> list[str]:
        """Return one text for each change on the host, with its path and its kind. Leave out changes of slots in
        `kept`, because replays repeat these changes."""
        changes = [str(each) for each in self._changes(self._places, kept)]
        changes += [
            f"{path} (a tensor on the host, changed in place)"
            for path, tensor, version in self._in_place.values()
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

    def replaced(self, kept: KeptUp) -> list[tuple[str, Tensor]]:
        """Return (path, earlier tensor) for each slot of `kept` that held a tensor before the execution."""
        bound = {slot.identity for slot, _ in kept}
        changes = [each for each in self._places.changes() if each.slot.identity in bound]
        return [(each.slot.name, each.was) for each in changes if isinstance(each.was, Tensor)]

    def numbers(self, kept: KeptUp) -> list[Slot]:
        """Return the slots, except those in `kept`, in which one number was replaced by another number."""
        changes = [*self._changes(self._places, kept), *self._changes(self._kept_by_optimizers, kept)]
        return [each.slot for each in changes if type(each.was) in _NUMBERS and type(each.now) in _NUMBERS]

    def restore(self) -> None:
        """Restore the content of all places except those of optimizers."""
        self._places.restore()

    def _changes(self, snapshot: Snapshot, kept: KeptUp) -> list[Change]:
        bound = {slot.identity for slot, _ in kept}
        return [each for each in snapshot.changes() if each.slot.identity not in bound]

    def _drawn(self) -> dict[str, bytes | str]:
        """Return the states of the host's generators. For a recording, leave out torch's generators, because replays of
        the recording draw from them as well."""
        with _disable_current_modes():
            return {
                name: state.cpu().numpy().tobytes() if isinstance(state, Tensor) else repr(state)
                for name, state in generators.states(self._generators).items()
                if not isinstance(state, Tensor) or (self._of_device and not name.startswith("torch.cuda"))
            }


def _memories(found: Reachable) -> list[np.ndarray[Any, Any]]:
    """Return the memory of each tensor on the host that no module holds, as arrays uint8 [number of bytes]."""
    strided = [each for each in found.tensors.values() if _is_of_host(each) and each.layout is torch.strided]
    storages = [each.untyped_storage() for each in strided]
    # Read the memory by its address. A call of torch inside a recorded step would become part of the recording.
    return [
        np.ctypeslib.as_array((ctypes.c_uint8 * each.nbytes()).from_address(each.data_ptr()))
        for each in storages
        if each.nbytes()
    ]


def _is_of_a_tensor(place: Place, memories: Sequence[np.ndarray[Any, Any]]) -> bool:
    """Return True for a numpy array that shares its memory with a tensor. A replay repeats the tensor's changes of this
    memory."""
    array = place.owner if isinstance(place, Values) else None
    return isinstance(array, np.ndarray) and any(np.may_share_memory(array, memory) for memory in memories)


def _is_of_host(value: Tensor) -> bool:
    return value.device.type == "cpu" and not (value.is_inference() or value.is_pinned())

"""Remember what places held at one time, list what differs since then, and restore it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from torch import Tensor

from harness.system.replay.holders import asked
from harness.system.replay.places import Change, Elements, Place, Slot, Stays

_UNREADABLE = object()


class Snapshot:
    """Shallow copies of places. A place that raises when it is read holds nothing that can be seen."""

    def __init__(self, places: Iterable[Place] = ()) -> None:
        self._held: dict[tuple[object, ...], tuple[Place, Any]] = {}
        self.add(places)

    def add(self, places: Iterable[Place]) -> None:
        """Remember more places as they are now."""
        for place in places:
            held = asked(place.read, _UNREADABLE) if place.identity not in self._held else _UNREADABLE
            if held is not _UNREADABLE:
                self._held[place.identity] = place, held

    def changed(self) -> bool:
        """Return True if any place holds something else than it did."""
        return any(True for _ in self._others())

    def changes(self) -> list[Change]:
        """Return the slots that differ, each once: functions of one module may name the same global."""
        found: dict[tuple[int, Any], Change] = {}
        for place, held in self._others():
            for each in asked(lambda: [*place.changes(held)], []):  # noqa: B023 - called here
                found.setdefault(each.slot.identity, each)
        return [*found.values()]

    def restore(self, stays: Stays = lambda _slot, _value: False) -> None:
        """Restore what every place held; new entries stay if `stays` is true for them."""
        for place, held in self._others():
            place.restore(held, stays)

    def grown(self) -> None:
        """Note the lengths of lists after one of several executions: a list that grows in the next, too, is a log."""
        for place, _ in self._held.values():
            if isinstance(place, Elements):
                place.grew_to = asked(partial(len, place.owner), None)

    def tensors(self) -> Iterator[tuple[Slot, Tensor]]:
        """Yield every tensor that a slot held, with its slot."""
        for place, held in self._held.values():
            for index, (key, value) in enumerate(place.entries(held)):
                if issubclass(type(value), Tensor):
                    yield Slot(place, key, place.name(key, index)), value

    def _others(self) -> Iterator[tuple[Place, Any]]:
        """Return the places that hold something else than they did."""
        return ((place, held) for place, held in self._held.values() if not asked(partial(place.is_as, held), True))

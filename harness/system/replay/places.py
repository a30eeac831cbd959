"""Model the places where a training keeps values, such as dictionaries and lists. Every kind of place has methods to
read, compare and restore its content.

The module `reachable` finds places; `snapshots` stores the content of many places. A slot is one entry of a place.

Most optimizers keep named tensors for each parameter. Some optimizers keep lists of tensors, such as Shampoo's
statistics. Some keep one count for all parameters together next to the entries of the parameters, as MADGRAD does.
"""

from __future__ import annotations

import functools
import gc
import operator
import sys
from array import array
from collections.abc import Callable, Collection, Iterator
from types import CellType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from harness.errors import HarnessError
from harness.numbers import told_apart
from harness.system.protocol import WARM_STEPS
from harness.system.replay.holders import data_of, key_name, slots_of
from harness.system.replay.ledger import FirstValues, writing_to
from harness.system.sharded_tensors import local

ABSENT = object()  # stands for the value of a name that is not bound
# Largest size of an array that counts as state, in bytes. A larger array counts as a data set. Only state is copied
# before each execution that is undone later.
LARGEST = 2**28
# The class of the links in the internal list of a bounded cache. The class has no public name.
_LINK = next(
    (each for each in gc.get_referents(functools.lru_cache(int)) if "list_elem" in getattr(each, "__name__", "")), None
)
# For each kind of owner of a place: the functions that set and delete a name. The functions for objects also work with
# a frozen dataclass.
_WAYS: tuple[tuple[type, Callable[..., None], Callable[..., None]], ...] = (
    (dict, operator.setitem, operator.delitem),
    (type, setattr, delattr),
    (object, object.__setattr__, object.__delattr__),
)
_CONTENTS = "cell_contents"
_PLAIN = (bool, int, float, str, type(None))
_SHOWN = 40  # largest number of characters of a value in the text of a `Change`


class Slot(NamedTuple):
    """One entry of a place, such as one key of a dictionary."""

    place: Place
    key: Any
    name: str

    @property
    def identity(self) -> tuple[int, Any]:
        """Return a key for the entry that this slot stands for. Each search creates new `Place` objects, but slots of
        one entry always have equal keys."""
        return id(self.place.owner), self.key

    def value(self) -> Any:
        return self.place.read()[self.key]

    def put(self, value: object) -> None:
        self.place.put(self.key, value)


class Change(NamedTuple):
    """A slot with its earlier and its present value."""

    slot: Slot
    was: Any
    now: Any
    how: str

    def __str__(self) -> str:
        return f"{self.slot.name} ({self.how})"


Stays = Callable[[Slot, Any], bool]


class Place:
    """A dictionary as a place. Subclasses are for other kinds of place and define how their owner is read and filled.

    owner: the object that holds the values, here the dictionary. is_shared: True if the whole process shares the place,
    such as the global names of a Python module and the data of a class.
    """

    is_shared = False

    def __init__(self, owner: Any, path: str) -> None:
        self.owner, self.path = owner, path
        self.identity: tuple[Any, ...] = (id(owner),)

    def read(self) -> Any:
        """Return a shallow copy of the content of the place."""
        return dict(self.owner)

    def put(self, key: Any, value: object) -> None:
        self.owner[key] = value

    def fill(self, entries: dict[Any, Any]) -> None:
        """Replace the content of the place by these entries, in their order."""
        self.owner.clear()
        self.owner.update(entries)

    def entries(self, held: Any) -> Collection[tuple[Any, Any]]:
        """Return key and value of each entry. held: the content that `read` returned."""
        found: Collection[tuple[Any, Any]] = held.items()
        return found

    def name(self, key: Any, index: int) -> str:
        """Return the name of the entry with this key and this index."""
        return joined(self.path, key_name(key, index))

    def is_as(self, before: Any) -> bool:
        """Return True if the place contains the same objects as `before`, in the same order. before: an earlier result
        of `read`."""
        now = self.read()
        if isinstance(now, dict):
            # Compare hashes and not keys. Keys may be tensors, and `==` of two tensors returns a tensor.
            if [*map(hash, now)] != [*map(hash, before)]:
                return False
            now, before = now.values(), before.values()
        return len(now) == len(before) and all(map(operator.is_, now, before))

    def restore(self, before: Any, stays: Stays) -> None:
        """Restore the entries of `before`, an earlier result of `read`. Keep a new entry if `stays` returns True."""
        held, now = dict(self.entries(before)), enumerate(self.entries(self.read()))
        came = ((Slot(self, key, self.name(key, index)), each) for index, (key, each) in now if held.get(key) is None)
        self.fill({**held, **{slot.key: each for slot, each in came if stays(slot, each)}})

    def changes(self, before: Any) -> Iterator[Change]:
        """Yield the entries that differ from `before`, the result of an earlier `read`."""
        was, now = dict(self.entries(before)), dict(self.entries(self.read()))
        for index, key in enumerate(dict.fromkeys([*was, *now])):
            one, other = was.get(key, ABSENT), now.get(key, ABSENT)
            if one is not other and not (isinstance(one, _PLAIN) and type(one) is type(other) and one == other):
                yield Change(Slot(self, key, self.name(key, index)), one, other, _manner(one, other))


class Elements(Place):
    """A list or a deque as a place. The keys are indices."""

    grew_to: int | None = None  # length of the list after the first execution of the step; None before this execution

    def read(self) -> list[Any]:
        return list(self.owner)

    def fill(self, entries: dict[Any, Any]) -> None:
        self.owner.clear()
        self.owner.extend(entries.values())

    def entries(self, held: list[Any]) -> Collection[tuple[int, Any]]:
        return [*enumerate(held)]

    def restore(self, before: list[Any], stays: Stays) -> None:
        # If the present length is neither the earlier length nor the length after the first execution, every execution
        # extends the list.
        is_log = len(self.owner) not in (len(before), self.grew_to)
        super().restore(before, (lambda _slot, _value: False) if is_log else stays)

    def changes(self, before: list[Any]) -> Iterator[Change]:
        now = len(self.read())
        if now == len(before):
            yield from super().changes(before)
        else:
            yield Change(Slot(self, None, self.path), ABSENT, ABSENT, f"{len(before)} entries, then {now}")


class Bindings(Place):
    """Names of a Python module that the step's code uses, data of a class, slots of an object, or a closure's variable.

    These places have no dictionary that belongs only to the training.
    """

    def __init__(self, owner: object, path: str, names: frozenset[str] = frozenset()) -> None:
        """Store the owner: a Python module's dictionary, a class, a closure's cell, or an object with slots. names: the
        names to read in the module."""
        super().__init__(owner, path)
        # The whole process shares Python modules and classes. Slots and cells belong to one object.
        self.is_shared = isinstance(owner, dict | type)
        self.identity = id(owner), names
        self._bind, self._unbind = next(ways for kind, *ways in _WAYS if isinstance(owner, kind))

    def read(self) -> dict[str, Any]:
        if isinstance(self.owner, dict):
            return {name: self.owner[name] for name in sorted(self.identity[1]) if name in self.owner}
        if isinstance(self.owner, CellType):
            value = contents(self.owner)
            return {} if value is ABSENT else {_CONTENTS: value}
        return dict(data_of(self.owner) if isinstance(self.owner, type) else slots_of(self.owner))

    def name(self, key: str, _index: int) -> str:
        return joined(self.path, "" if isinstance(self.owner, CellType) else key)

    def put(self, key: str, value: object) -> None:
        self._bind(self.owner, key, value)

    def fill(self, entries: dict[str, Any]) -> None:
        now = self.read()
        for key in now.keys() - entries.keys():
            self._unbind(self.owner, key)
        for key, value in entries.items():
            if now.get(key, ABSENT) is not value:
                self.put(key, value)


class _Whole(Place):
    """A place that is read, compared and restored as a whole."""

    def entries(self, _held: Any) -> Collection[tuple[Any, Any]]:
        return ()

    def changes(self, before: Any) -> Iterator[Change]:
        yield Change(Slot(self, None, self.path), ABSENT, ABSENT, self._difference(before))

    def _difference(self, before: Any) -> str:
        raise NotImplementedError


class Memo(_Whole):
    """The results that `functools.cache` or `lru_cache` keeps for a function. They can only be deleted all at once."""

    is_shared = True

    def read(self) -> int:
        """Return how many results the cache keeps."""
        size: int = self.owner.cache_info().currsize
        return size

    def results(self) -> list[Any]:
        """Return the kept results, read from the objects to which the cache refers (`gc.get_referents`).

        In the list of these objects, the dictionary of results comes just before the function. In a bounded cache, keys
        and results come before that dictionary.
        """
        held = gc.get_referents(self.owner)
        function = max((index for index, each in enumerate(held) if each is self.owner.__wrapped__), default=0)
        # `function` is 0 if code replaced `__wrapped__`. The dictionary of results then cannot be found.
        if not function or not isinstance(held[function - 1], dict):
            return []
        cache, chain = held[function - 1], held[: function - 1]
        if self.owner.cache_parameters()["maxsize"] is None:
            return list(cache.values())
        return [chain[index - 1] for index, each in enumerate(chain) if each is _LINK]

    def is_as(self, before: int) -> bool:
        return self.read() == before

    def restore(self, before: int, stays: Stays) -> None:
        """Clear the cache if its results contain fake tensors. Also clear a cache that was empty before, except if
        `stays` returns True for its results. Otherwise keep the cache, because the training may need the results."""
        results = self.results()
        fake = any(isinstance(each, FakeTensor) for each in parts_of(results))
        if fake or (before == 0 and not stays(Slot(self, None, self.path), results)):
            self.owner.cache_clear()

    def _difference(self, before: int) -> str:
        return f"{before} results kept, then {self.read()}"


class Values(_Whole):
    """Data without tensors that can be changed in place: numpy arrays, sets, bytearrays, arrays of numbers."""

    @staticmethod
    def has(value: object) -> bool:
        """Return True if a value is data that can be changed in place and is small enough to copy."""
        if isinstance(value, np.ndarray):
            return bool(value.flags.writeable) and value.nbytes <= LARGEST
        return isinstance(value, set | bytearray | array) and sys.getsizeof(value) <= LARGEST

    def read(self) -> Any:
        return self.owner.copy() if isinstance(self.owner, np.ndarray | set) else self.owner[:]

    def is_as(self, before: Any) -> bool:
        """Return True if the data is unchanged. NaN counts as equal to NaN. Objects in an array are compared by
        identity."""
        if not isinstance(self.owner, np.ndarray):
            return bool(self.owner == before)
        return bool(self.owner.tobytes() == before.tobytes())

    def restore(self, before: Any, _stays: Stays) -> None:
        if isinstance(self.owner, set):
            self.owner.clear()
            self.owner.update(before)
        else:
            self.owner[... if isinstance(self.owner, np.ndarray) else slice(None)] = before

    def _difference(self, _before: Any) -> str:
        return f"{type(self.owner).__name__}, changed in place"


# Optimizers of torch that create their tensors, filled with zeros, in the first update. For these optimizers, a missing
# tensor and a tensor of zeros give the same training.
_STARTS_AT_ZERO = (
    *(torch.optim.Adam, torch.optim.AdamW, torch.optim.Adamax, torch.optim.Adadelta, torch.optim.RMSprop),
    *(torch.optim.RAdam, torch.optim.SGD),
)
_WHOLE = object()  # stands for the name in the key of an entry that does not belong to a parameter's dictionary


class StateError(HarnessError):
    """An execution that is undone later created optimizer state, and the harness does not know the first value of this
    state."""


class OptimizerState(Place):
    """The state of an optimizer. The key of an entry is a pair: (parameter, name) for an entry of a parameter's
    dictionary, or (key, `_WHOLE`) for any other entry of the state."""

    def read(self) -> dict[tuple[Any, Any], Any]:
        found: dict[tuple[Any, Any], Any] = {}
        for owner, entry in self.owner.state.items():
            of_parameter = isinstance(owner, Tensor) and isinstance(entry, dict)
            found |= {(owner, name): each for name, each in entry.items()} if of_parameter else {(owner, _WHOLE): entry}
        return found

    def name(self, key: tuple[Any, Any], _index: int) -> str:
        """Return the entry's name, such as `state.0.exp_avg`. The number is the index of the parameter."""
        number = next((str(number) for number, each in enumerate(self.owner.state) if each is key[0]), "")
        return joined(joined(self.path, f"state.{number}"), "" if key[1] is _WHOLE else str(key[1]))

    def put(self, key: tuple[Any, Any], value: object) -> None:
        owner, name = key
        if name is _WHOLE:
            self.owner.state[owner] = value
        else:
            self.owner.state.setdefault(owner, {})[name] = value

    def fill(self, entries: dict[Any, Any]) -> None:
        state = self.owner.state
        for owner, name in self.read().keys() - entries.keys():
            if name is not _WHOLE:
                del state[owner][name]
            if name is _WHOLE or not state[owner]:
                del state[owner]
        for key, value in entries.items():
            self.put(key, value)

    def begin_anew(self, key: tuple[Any, Any], value: Any, first_values: FirstValues) -> None:
        """Reset state that the first execution of the step created under this key to its first value.

        Raise `StateError` if the first value is unknown, because the state was not created only from numbers.
        """
        parts = [part for part in parts_of(value) if part is not None]
        dampened = any(group.get("dampening", 0) for group in self.owner.param_groups)
        if type(self.owner) in _STARTS_AT_ZERO and not dampened and all(isinstance(part, Tensor) for part in parts):
            for part in parts:
                with writing_to(part):
                    local(part).zero_()
            return
        numbers = [part for part in parts if not isinstance(part, Tensor)]
        if numbers or not all(first_values.put_back(part) for part in parts):
            raise StateError(
                "a captured optimizer must have its state before the first step",
                where=type(self.owner).__name__,
                got=f"state {str(key[0] if key[1] is _WHOLE else key[1])!r} created lazily, {_described(numbers)}",
                remedy=f"{WARM_STEPS}; or keep the number in a tensor, because a captured step never reads a new "
                "Python number"
                if numbers
                else f"{WARM_STEPS}; or create the optimizer's state when the trainer is built, and change it in place",
            )


def _described(numbers: list[Any]) -> str:
    kinds = ", ".join(sorted({type(each).__name__ for each in numbers}))
    return f"with values that are not tensors: {kinds}" if numbers else "with an unknown first value"


def contents(cell: CellType) -> Any:
    """Return the content of a closure's cell; `ABSENT` if the cell is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return ABSENT


def joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name else path or name


def parts_of(value: Any) -> Iterator[Any]:
    """Yield each value inside lists, tuples and dictionaries, also nested ones. If `value` is none of these containers,
    yield `value` itself."""
    if isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from parts_of(each)
    else:
        yield value


def _manner(was: Any, now: Any) -> str:
    if type(was) is type(now) and not isinstance(now, _PLAIN):
        return f"another {type(now).__name__}"
    # Two floats may differ only in their last digits, so the texts must show all digits.
    if isinstance(was, float) and isinstance(now, float):
        return ", then ".join(told_apart(was, now))
    return f"{_shown(was)}, then {_shown(now)}"


def _shown(value: Any) -> str:
    if value is ABSENT:
        return "nothing"
    return repr(value)[:_SHOWN] if isinstance(value, _PLAIN) else f"a {type(value).__name__}"

"""Observe the operators of a step: where each was called, what it was given, and digests of what it read and made."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef

from harness.evidence.observed_step import ObservedOperator, ReadTensor
from harness.execution.watchers.reductions import as_hex, combine_on_device
from harness.system.replay.host_made import LIFT, tensors_in
from harness.system.replay.observer import Observer
from harness.system.replay.operations import is_repeated, repeated_site
from harness.system.replay.sites import BETWEEN, Site, SiteFinder
from harness.system.replay.traced import is_prepared

# Operators whose result is memory as it was found: it has a value once something is written there.
_UNWRITTEN = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_"}
_NOWHERE = Site("forward", "", "", "")
_VALUES = 65_536  # elements of what one operator makes, at most, that are kept


class _Found(NamedTuple):
    """An operator; the bytes that it says it writes, those of what it was given, and digests on the device."""

    operator: ObservedOperator
    written: list[_Range]
    given: list[_Range | None]
    before: list[Tensor | None]
    made: list[Tensor | None]  # what it returned, then what it was given


class StepOperators(Observer):
    """Keeps every operator that runs in its block, but for what is executed to prepare a capture and undone."""

    def __init__(self, finder: SiteFinder, with_values: Collection[int] = ()) -> None:
        """Set up the observer. with_values: operators to keep values of, by their numbers."""
        super().__init__()
        self.between = True  # steps: what is called now belongs to no step yet
        self._finder, self._with_values = finder, with_values
        self._names = _Named({})
        self._writers = _Writers()
        self._unwritten: set[int] = set()
        self._found: list[_Found] = []

    def begin(self, finder: SiteFinder, state: Mapping[str, Tensor]) -> None:
        """Begin the step. state: tensors from before it, by name."""
        self.between, self._finder = False, finder
        self._names = _Named(state)

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        given = list(tensors_in([*args, *kwargs.values()]))
        if is_prepared() or any(isinstance(each, FakeTensor) for each in given):
            return func(*args, **kwargs)
        site = (repeated_site() or _NOWHERE) if is_repeated() else self._finder.find()
        reads = [self._read(each) for each in given]
        before = [self._digest(each) for each in given]
        returned = func(*args, **kwargs)
        self._keep(func, site, reads, before, args, kwargs, returned)
        return returned

    def _keep(
        self,
        func: OpOverload,
        site: Site,
        reads: list[ReadTensor],
        before: list[Tensor | None],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        returned: Any,
    ) -> None:
        number, name = len(self._found), func._schema.name.replace("::", ".")
        made, given = list(tensors_in([returned])), list(tensors_in([*args, *kwargs.values()]))
        if func.is_view:
            changed = list[_Range]()
        else:
            written = [*made, *_written(func, args, kwargs)]
            changed = [each for tensor in written if (each := _range(tensor)) is not None]
            self._writers.note(written, changed, number)
        keys = {each.memory for each in changed}
        if name.removeprefix("aten.") in _UNWRITTEN:
            self._unwritten |= keys
        else:
            self._unwritten -= keys
        operator = ObservedOperator.model_construct(
            name="aten.clone" if func is LIFT else name,
            phase=BETWEEN if self.between else site.phase,
            module=site.module,
            line=site.line,
            code=site.code,
            arguments=[*map(_text, args), *(f"{key}={_text(value)}" for key, value in kwargs.items())],
            reads=reads,
            makes=[],
            leaves=[],
            replayed=is_repeated(),
            values=[_values(each) for each in (*made, *given)] if number in self._with_values else None,
        )
        # what it was given, too: an operator may change more than it says, as a batch norm does its statistics
        made_and_left = [] if func.is_view else [*made, *given]
        places = [] if func.is_view else list(map(_range, given))
        self._found.append(_Found(operator, changed, places, before, [*map(self._digest, made_and_left)]))

    def _read(self, tensor: Tensor) -> ReadTensor:
        place, number = _range(tensor), None
        source = self._writers.last(place)
        if tensor.dim() == 0 and tensor.device.type == "cpu" and source is None:
            with suppress(Exception):  # a tensor of a library may have no number
                number = repr(tensor.detach().item())
        return ReadTensor.model_construct(
            digest=None,
            form=f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}",
            source=source,
            name=next(iter(self._names.of(place)), None) if source is None else None,
            number=number,
        )

    def _digest(self, tensor: Tensor) -> Tensor | None:
        """Return a digest on the tensor's device. None for memory without a value, and what shows no bits."""
        place = _range(tensor)
        if place is not None and place.memory in self._unwritten:
            return None
        with suppress(Exception), torch.no_grad():  # some library's tensor, of which nobody says how it is read
            return combine_on_device({"": tensor})
        return None

    def operators(self, after: Mapping[str, Tensor]) -> list[ObservedOperator]:
        """Return what was observed, with the digests fetched in one transfer for each device.

        after: state and gradients that came with the step, by name.
        """
        digests = [each for found in self._found for each in (*found.before, *found.made) if each is not None]
        fetched, later = iter(_fetched(digests)), _Named(after)
        observed = []
        for operator, written, given, before, made in self._found:
            texts = [None if each is None else next(fetched) for each in before]
            reads = [read.model_copy(update={"digest": text}) for read, text in zip(operator.reads, texts, strict=True)]
            after_it = [None if each is None else next(fetched) for each in made]
            makes, left = after_it[: len(made) - len(given)], after_it[len(made) - len(given) :]
            leaves = [now if now != then else None for then, now in zip(texts, left, strict=False)]
            changed = [place for place, digest in zip(given, leaves, strict=False) if digest is not None]
            places = [each for each in (*written, *changed) if each is not None]
            writes = [*dict.fromkeys(name for each in places for name in (*self._names.of(each), *later.of(each)))]
            update = {"reads": reads, "makes": makes, "leaves": leaves, "writes": writes}
            observed.append(operator.model_copy(update=update))
        return observed


def _fetched(digests: Sequence[Tensor]) -> list[str]:
    by_device: dict[torch.device, list[int]] = {}
    for place, each in enumerate(digests):
        by_device.setdefault(each.device, []).append(place)
    found = [""] * len(digests)
    for places in by_device.values():
        values = torch.stack([digests[place].reshape(()) for place in places]).tolist()
        for place, value in zip(places, values, strict=True):
            found[place] = as_hex(value)
    return found


class _Range(NamedTuple):
    """The bytes of a tensor: the memory that they are in, the first one, and the one after the last."""

    memory: int
    start: int
    end: int

    def meets(self, other: _Range) -> bool:
        return self.memory == other.memory and self.start < other.end and other.start < self.end


def _range(tensor: Tensor) -> _Range | None:
    """Return the bytes from a tensor's first element to its last; None for one that is not in one memory."""
    if not torch._C._has_storage(tensor) or tensor.layout is not torch.strided or not tensor.numel():
        return None
    span = 1 + sum((int(size) - 1) * int(step) for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    start = int(tensor.storage_offset()) * tensor.element_size()
    return _Range(int(tensor.untyped_storage()._cdata), start, start + span * tensor.element_size())


class _Named:
    """Names of tensors by their bytes; several may share some."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._of: dict[int, list[tuple[_Range, str]]] = {}
        self._held: list[StorageWeakRef] = []  # references keep an address from being given out again
        for name, tensor in tensors.items():
            if (place := _range(tensor)) is not None:
                self._of.setdefault(place.memory, []).append((place, name))
                self._held.append(StorageWeakRef(tensor.untyped_storage()))  # type: ignore[no-untyped-call]

    def of(self, place: _Range | None) -> list[str]:
        """Return the names of the tensors that share bytes with a place."""
        return [] if place is None else [name for each, name in self._of.get(place.memory, []) if each.meets(place)]


class _Writers:
    """Which operator wrote bytes last."""

    def __init__(self) -> None:
        # references keep an address from being given out again
        self._of: dict[int, tuple[StorageWeakRef, list[tuple[_Range, int]]]] = {}

    def note(self, tensors: Sequence[Tensor], places: Sequence[_Range], number: int) -> None:
        by_memory = {place.memory: tensor for tensor in tensors if (place := _range(tensor)) is not None}
        for place in places:
            if place.memory not in self._of:
                storage = by_memory[place.memory].untyped_storage()
                self._of[place.memory] = StorageWeakRef(storage), []  # type: ignore[no-untyped-call]
            written = self._of[place.memory][1]
            written[:] = [each for each in written if not (place.start <= each[0].start and each[0].end <= place.end)]
            written.append((place, number))

    def last(self, place: _Range | None) -> int | None:
        if place is None or place.memory not in self._of:
            return None
        return max((number for each, number in self._of[place.memory][1] if each.meets(place)), default=None)


def _written(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from tensors_in([args[place] if place < len(args) else kwargs.get(argument.name)])


def _values(tensor: Tensor) -> list[float]:
    plain = tensor.detach()
    return [float(each) for each in plain.reshape(-1).tolist()] if plain.numel() <= _VALUES else []


def _text(value: Any) -> str:
    """Return arguments as text, with numbers in full and a point for each tensor."""
    if isinstance(value, Tensor):
        return "·"
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_text, value))})"
    if isinstance(value, bool | int | float | str | torch.dtype) or value is None:
        return repr(value)
    return type(value).__name__

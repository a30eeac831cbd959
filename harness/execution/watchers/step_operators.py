"""Record the operators of a step: for each call its source line, its arguments, and digests of its tensors.

A step that replays a CUDA graph is observed during its capture (`ObservedCaptures`). The computation of the digests is
captured together with each operator, so that each replay computes the digests again. Kernels that are launched without
torch are recorded if their launches are announced to the harness (see `harness.system.replay.launches`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from math import inf
from time import monotonic
from types import FrameType
from typing import Any, NamedTuple, Self
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _disable_current_modes

from harness.devices.graphs import is_capturing, nodes_captured_so_far, watched_graphs
from harness.evidence.run_records import ObservedOperator, ReadTensor
from harness.execution.watchers.reductions import as_hex, digest_on_device
from harness.system.replay import launches
from harness.system.replay.cpu_as_device import LIFT, tensors_in
from harness.system.replay.observer import Observer
from harness.system.replay.operations import is_repeated, repeated_site
from harness.system.replay.sites import BETWEEN, Site, SiteFinder
from harness.system.replay.traced import is_prepared

# Operators that return uninitialized memory. Such memory has no meaningful value until something is written to it.
_UNWRITTEN = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_"}
_NOWHERE = Site("forward", "", "", "")
_VALUES = 65_536  # largest number of elements of a tensor whose values are recorded
_BLOCK = 512  # number of bytes that the device's allocator uses for a tensor of one element


class _Seen(NamedTuple):
    """A tensor at one moment. place: its range of bytes in memory. form: its type and shape. digest: a tensor on the
    device."""

    place: _Range | None
    form: str
    strides: tuple[int, ...]
    digest: Tensor | None


class _Found(NamedTuple):
    """A call of an operator, with its tensors before the call (`given`) and after it (`after`). written: the ranges of
    bytes that the operator writes according to its schema."""

    operator: ObservedOperator
    # for each tensor in `given` that is a single number on the host, its value; otherwise None
    numbers: list[str | None]
    written: list[_Range]
    given: list[_Seen]
    # the returned tensors and then the given tensors, as they are after the call; empty if the operator returns a view
    after: list[_Seen]
    names: _Named
    values: list[Tensor]


class StepOperators(Observer):
    """Records every operator in its `with` block. Operators of executions that only prepare a capture are left out,
    because these executions are undone.

    is_cut: True if the time limit was reached before the end. unseen: the number of kernels that a capture recorded
    outside of recorded operators, plus the number of replays of graphs whose operators were not recorded.
    """

    def __init__(
        self, finder: SiteFinder, with_values: Collection[int] = (), *, until: float = inf, captures: bool = False
    ) -> None:
        """Prepare to record operators.

        finder: finds the source line of a call. with_values: numbers of the operators for which the values of tensors
        are recorded in addition to their digests. until: time of `monotonic()` after which nothing is recorded.
        captures: True to record a capture instead of a step.
        """
        super().__init__()
        # Operators that run before `begin` is called count as work between two steps. During a capture, all operators
        # belong to the captured step.
        self.between = not captures
        self.is_cut, self.unseen = False, 0
        self._finder, self._with_values, self._until, self._captures = finder, with_values, until, captures
        self._names = _Named({})
        self._held: dict[int, StorageWeakRef] = {}  # weak references to storages; they prevent the reuse of an address
        self._computed: set[int] = set()  # addresses of memory that the step has written to
        self._unwritten: set[int] = set()
        self._nodes: int | None = None  # number of nodes in the capture after the previous operator; None: no capture
        self._is_inside = self._is_launching = False  # True while an operator runs, and True while a kernel launch runs
        self._found: list[_Found] = []

    def begin(self, finder: SiteFinder, state: Mapping[str, Tensor]) -> None:
        """Begin the step. state: the tensors that existed before the step, by name."""
        self.between, self._finder = False, finder
        self._names = _Named(state)

    def __enter__(self) -> Self:
        launches.watches.append(self)
        self._nodes = self._nodes_so_far()
        return super().__enter__()  # type: ignore[no-any-return,no-untyped-call]

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        self._count_unseen()
        launches.watches.remove(self)

    def execute(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = list(tensors_in([*args, *kwargs.values()]))
        if self._looks_away(given):
            return func(*args, **kwargs)
        name = func._schema.name.replace("::", ".")
        with self._one_operator():
            site = (repeated_site() or _NOWHERE) if is_repeated() else self._finder.find()
            numbers = [*map(self._number, given)]
            before = [self._look(each, digested=not func.is_view) for each in given]
            returned = func(*args, **kwargs)
            made = list(tensors_in([returned]))
            written = [] if func.is_view else [*made, *_written(func, args, kwargs)]
            is_unwritten = name.removeprefix("aten.") in _UNWRITTEN
            ranges = self._note_written(written, is_filled=not is_unwritten)
            if is_unwritten and not name.endswith("resize_"):
                _fill(made)
            operator = _operator("aten.clone" if func is LIFT else name, site, args, kwargs, between=self.between)
            self._keep(operator, numbers, ranges, before, [] if func.is_view else [*made, *given])
        return returned

    def launched(
        self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], launch: Callable[[], object], caller: FrameType
    ) -> object:
        """Launch a kernel, and record the launch as an operator that may write to each of its tensor arguments."""
        given = [*_tensors_of_launch([*args, *kwargs.values()])]
        if self._looks_away(given):
            return launch()
        with self._one_operator():
            with _disable_current_modes():
                site, before = self._finder.find(caller), [*map(self._look, given)]
            self._is_launching = True  # operators that run within the launch belong to the launch
            try:
                returned = launch()
            finally:
                self._is_launching = False
            with _disable_current_modes():
                self._note_written(given, is_filled=True)
                operator = _operator(name, site, args, kwargs, between=self.between)
                self._keep(operator, [None] * len(given), [], before, given)
        return returned

    def replayed(self, captured: StepOperators | None) -> None:
        """Add the operators of a graph that was replayed just now, with the digests that this replay computed.
        captured: the operators of the graph's capture; None if they were not recorded."""
        if captured is None or captured.is_cut:
            self.unseen += 1
            return
        self.unseen += captured.unseen
        with _disable_current_modes(), torch.no_grad():
            seen = [each for found in captured._found for each in (*found.given, *found.after)]
            digests = iter(_copied([each.digest for each in seen]))
            for number, found in enumerate(captured._found):
                phase = BETWEEN if self.between else found.operator.phase
                update = {"phase": phase, "replayed": True, "captured_as": number}
                replay = found._replace(
                    operator=found.operator.model_copy(update=update),
                    given=[each._replace(digest=next(digests)) for each in found.given],
                    after=[each._replace(digest=next(digests)) for each in found.after],
                    names=self._names,
                    values=[*map(torch.clone, found.values)],
                )
                self._found.append(replay)
        self._held |= captured._held
        self._computed |= captured._computed

    def _looks_away(self, given: Sequence[Tensor]) -> bool:
        self.is_cut = self.is_cut or monotonic() > self._until
        is_fake = any(isinstance(each, FakeTensor) for each in given)
        is_others = is_prepared() or is_capturing() is not self._captures
        return self.is_cut or is_fake or self._is_launching or is_others

    @contextmanager
    def _one_operator(self) -> Iterator[None]:
        """Mark an operator as running for the duration of the `with` block. If no other operator called this operator,
        first count the nodes that were added to the capture since the previous operator."""
        is_outer, self._is_inside = not self._is_inside, True
        if is_outer:
            self._count_unseen()
        try:
            yield
        finally:
            if is_outer:
                self._is_inside, self._nodes = False, self._nodes_so_far()

    def _count_unseen(self) -> None:
        now = self._nodes_so_far()
        if now is not None and self._nodes is not None:
            self.unseen += now - self._nodes

    def _nodes_so_far(self) -> int | None:
        return nodes_captured_so_far() if self._captures else None

    def _note_written(self, tensors: Sequence[Tensor], *, is_filled: bool) -> list[_Range]:
        ranges = [each for tensor in tensors if (each := _range(tensor)) is not None]
        memory = {each.memory for each in ranges}
        self._computed |= memory
        self._unwritten = self._unwritten - memory if is_filled else self._unwritten | memory
        return ranges

    def _keep(
        self,
        operator: ObservedOperator,
        numbers: list[str | None],
        written: list[_Range],
        before: list[_Seen],
        after: Sequence[Tensor],
    ) -> None:
        # Look at the arguments again after the call. An operator may change tensors although its schema does not
        # declare this, such as the statistics of a batch norm.
        seen = [*map(self._look, after)]
        kept = len(self._found) in self._with_values
        values = [each.detach().clone() for each in after if kept and each.numel() <= _VALUES]
        self._found.append(_Found(operator, numbers, written, before, seen, self._names, values))

    def _number(self, tensor: Tensor) -> str | None:
        """Return the value of a CPU tensor of shape [] as text. Return None for any other tensor, and for a tensor that
        the step itself computed."""
        place = _range(tensor)
        if tensor.dim() == 0 and tensor.device.type == "cpu" and (place is None or place.memory not in self._computed):
            with suppress(Exception):  # the tensor type of another library may have no value
                return repr(tensor.detach().item())
        return None

    def _look(self, tensor: Tensor, *, digested: bool = True) -> _Seen:
        """Return a description of a tensor. Its digest stays on the device. It has no digest if it is uninitialized or
        unreadable."""
        place, digest = _range(tensor), None
        if place is not None and place.memory not in self._held:
            self._held[place.memory] = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        if digested and (place is None or place.memory not in self._unwritten):
            with suppress(Exception), torch.no_grad():  # the tensor type of another library may not be readable
                digest = digest_on_device(tensor)
        form = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
        return _Seen(place, form, _strides(tensor), digest)

    @property
    def bytes(self) -> int:
        """Return how many bytes of memory all recorded digests and values use."""
        digests = [each.digest for found in self._found for each in (*found.given, *found.after)]
        kept = [*digests, *(each for found in self._found for each in found.values)]
        whole = [(each.nbytes, _BLOCK if each.is_cuda else 1) for each in kept if each is not None]
        return sum(-(-size // block) * block for size, block in whole)

    def operators(self, after: Mapping[str, Tensor]) -> list[ObservedOperator]:
        """Return the recorded operators in the order of their calls. The digests of all tensors on one device are
        copied to the host in one transfer. after: state and gradients after the step, by name."""
        seen = [each for found in self._found for each in (*found.given, *found.after)]
        texts, later, writers = iter(_fetched([each.digest for each in seen])), _Named(after), _Writers()
        observed = []
        for number, found in enumerate(self._found):
            before, left = ([next(texts) for _ in tensors] for tensors in (found.given, found.after))
            made = max(0, len(left) - len(before))
            leaves = [now if now != then else None for then, now in zip(before, left[made:], strict=False)]
            changed = [each.place for each, digest in zip(found.given, leaves, strict=False) if digest is not None]
            places = [each for each in (*found.written, *changed) if each is not None]
            rows = zip(found.given, before, found.numbers, strict=True)
            reads = [_read(*row, writers, found.names) for row in rows]
            writers.note(places, number, {each[:3]: text for each, text in zip(found.after, left, strict=True)})
            writes = [*dict.fromkeys(name for each in places for name in (*found.names.of(each), *later.of(each)))]
            values = [_values(each) for each in found.values] if number in self._with_values else None
            update = {"reads": reads, "makes": left[:made], "leaves": leaves, "writes": writes, "values": values}
            observed.append(found.operator.model_copy(update=update))
        return observed


class ObservedCaptures:
    """Records the operators that CUDA graphs capture within this object's `with` block. At each replay of a graph, the
    graph's operators are added to `step`."""

    def __init__(self, finder: Callable[[], SiteFinder], with_values: Collection[int] = (), until: float = inf) -> None:
        self.step: StepOperators | None = None  # records the operators of the current step
        self._finder, self._with_values, self._until = finder, with_values, until
        self._of: WeakKeyDictionary[Any, StepOperators] = WeakKeyDictionary()
        self._capturing: list[StepOperators] = []
        self._watching = ExitStack()

    def __enter__(self) -> Self:
        self._watching.enter_context(watched_graphs(self._begun, self._ended, self._replayed))
        return self

    def __exit__(self, *_raised: object) -> None:
        self._watching.close()

    @property
    def bytes(self) -> int:
        """Return how many bytes of memory the digests in all captured graphs use."""
        return sum(each.bytes for each in self._of.values())

    def _begun(self, begin: Callable[..., object]) -> Callable[..., object]:
        def begun(graph: Any, *arguments: object, **keywords: object) -> object:
            returned = begin(graph, *arguments, **keywords)
            self._of[graph] = StepOperators(self._finder(), self._with_values, until=self._until, captures=True)
            self._capturing.append(self._of[graph].__enter__())
            return returned

        return begun

    def _ended(self, end: Callable[..., object]) -> Callable[..., object]:
        def ended(*arguments: object, **keywords: object) -> object:
            if self._capturing:
                self._capturing.pop().__exit__(None, None, None)
            return end(*arguments, **keywords)

        return ended

    def _replayed(self, replay: Callable[..., object]) -> Callable[..., object]:
        def replayed(graph: Any, *arguments: object, **keywords: object) -> object:
            returned = replay(graph, *arguments, **keywords)
            if self.step is not None:
                self.step.replayed(self._of.get(graph))
            return returned

        return replayed


def _operator(
    name: str, site: Site, args: Sequence[Any], kwargs: Mapping[str, Any], *, between: bool
) -> ObservedOperator:
    return ObservedOperator.model_construct(
        name=name,
        phase=BETWEEN if between else site.phase,
        module=site.module,
        line=site.line,
        code=site.code,
        arguments=[*map(_text, args), *(f"{key}={_text(value)}" for key, value in kwargs.items())],
        reads=[],
        makes=[],
        leaves=[],
        replayed=is_repeated(),
    )


def _read(seen: _Seen, digest: str | None, number: str | None, writers: _Writers, names: _Named) -> ReadTensor:
    source, is_known = writers.last(seen, digest)
    name = next(iter(names.of(seen.place)), None) if source is None and is_known else None
    return ReadTensor.model_construct(digest=digest, form=seen.form, source=source, name=name, number=number)


def _strides(tensor: Tensor) -> tuple[int, ...]:
    return tuple(map(int, tensor.stride())) if tensor.layout is torch.strided and not tensor.is_nested else ()


def _fill(made: Sequence[Tensor]) -> None:
    """Fill uninitialized tensors with 0. Otherwise the digest of such a tensor would depend on the old content of those
    elements that no operator writes."""
    for each in made:
        with suppress(Exception), torch.no_grad():
            each.zero_()


def _tensors_of_launch(values: Sequence[Any]) -> Iterator[Tensor]:
    """Yield the tensors among the arguments of a kernel. If an argument is a tensor descriptor, yield the tensor that
    it refers to."""
    return tensors_in([each if isinstance(each, Tensor | tuple) else getattr(each, "base", None) for each in values])


def _copied(digests: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return copies of the digests, which have shape []. Only a few operations run on each device, however many digests
    there are."""
    found = list(digests)
    for places in _by_device(digests).values():
        copies = torch.stack([found[place].reshape(()) for place in places]).unbind()  # type: ignore[union-attr]
        for place, copy in zip(places, copies, strict=True):
            found[place] = copy
    return found


def _fetched(digests: Sequence[Tensor | None]) -> list[str | None]:
    found: list[str | None] = [None] * len(digests)
    for places in _by_device(digests).values():
        values = torch.stack([digests[place].reshape(()) for place in places]).tolist()  # type: ignore[union-attr]
        for place, value in zip(places, values, strict=True):
            found[place] = as_hex(value)
    return found


def _by_device(digests: Sequence[Tensor | None]) -> dict[torch.device, list[int]]:
    by_device: dict[torch.device, list[int]] = {}
    for place, each in enumerate(digests):
        if each is not None:
            by_device.setdefault(each.device, []).append(place)
    return by_device


class _Range(NamedTuple):
    """A tensor's range of bytes: the number of its storage, the position of its first byte, and the position after its
    last byte."""

    memory: int
    start: int
    end: int

    def meets(self, other: _Range) -> bool:
        return self.memory == other.memory and self.start < other.end and other.start < self.end


def _range(tensor: Tensor) -> _Range | None:
    """Return the range of bytes from a tensor's first element to its last element. Return None if the tensor has no
    storage, has no elements, or is not strided."""
    if not torch._C._has_storage(tensor) or tensor.layout is not torch.strided or not tensor.numel():
        return None
    span = 1 + sum((int(size) - 1) * int(step) for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    start = int(tensor.storage_offset()) * tensor.element_size()
    return _Range(int(tensor.untyped_storage()._cdata), start, start + span * tensor.element_size())


class _Named:
    """Finds the names of tensors that share bytes with a given range of bytes."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._of: dict[int, list[tuple[_Range, str]]] = {}
        # weak references to storages; they prevent the reuse of an address
        self._held: list[StorageWeakRef] = []
        for name, tensor in tensors.items():
            if (place := _range(tensor)) is not None:
                self._of.setdefault(place.memory, []).append((place, name))
                self._held.append(StorageWeakRef(tensor.untyped_storage()))  # type: ignore[no-untyped-call]

    def of(self, place: _Range | None) -> list[str]:
        """Return the names of the tensors that share bytes with `place`."""
        return [] if place is None else [name for each, name in self._of.get(place.memory, []) if each.meets(place)]


# a key that identifies a tensor: range of bytes, data type with shape, and strides
_Exact = tuple[_Range | None, str, tuple[int, ...]]


class _Writers:
    """Stores, for each range of bytes, the operator that last wrote to it. Also stores digests of that operator's
    tensors after the call."""

    def __init__(self) -> None:
        self._of: dict[int, list[tuple[_Range, int]]] = {}
        self._left: dict[_Exact, tuple[int, str | None]] = {}

    def note(self, places: Sequence[_Range], number: int, left: Mapping[_Exact, str | None]) -> None:
        for place in places:
            written = self._of.setdefault(place.memory, [])
            written[:] = [each for each in written if not (place.start <= each[0].start and each[0].end <= place.end)]
            written.append((place, number))
        self._left |= {seen: (number, digest) for seen, digest in left.items()}

    def last(self, seen: _Seen, digest: str | None) -> tuple[int | None, bool]:
        """Return the number of the operator that last wrote to the tensor `seen`, and True if this number is certain.
        The number is None if no recorded operator wrote to the tensor, or if it is uncertain which operator did.

        digest: the tensor's digest now. If it differs from the digest after the operator, code that was not recorded
        has written to the tensor, and the result is uncertain.
        """
        place = seen.place
        written = [] if place is None else self._of.get(place.memory, [])
        number = max((number for each, number in written if place is not None and each.meets(place)), default=None)
        at, left = self._left.get(seen[:3], (None, None))
        is_known = number is None or at is None or at < number or None in (left, digest) or left == digest
        return (number if is_known else None), is_known


def _written(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Tensor]:
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from tensors_in([args[place] if place < len(args) else kwargs.get(argument.name)])


def _values(tensor: Tensor) -> list[float]:
    plain = tensor.detach()
    return [float(each) for each in plain.reshape(-1).tolist()] if plain.numel() <= _VALUES else []


def _text(value: Any) -> str:
    """Return an operator's argument as text. Numbers are written in full. A tensor is written as a dot."""
    if isinstance(value, Tensor):
        return "·"
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_text, value))})"
    if isinstance(value, bool | int | float | str | torch.dtype) or value is None:
        return repr(value)
    return type(value).__name__

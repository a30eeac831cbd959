"""Find from which tensors each tensor of a training is computed, and which tensors a later step reads.

Each operator passes the sources of its inputs on to its results. A tensor that still exists after its step gets a mark
when a later step reads it. Operators pass the mark on as they pass on sources. If the mark reaches parameters, an
optimizer, other state, the loss or the host, the training uses the tensor. For example, the mark of a running sum of
losses reaches only that sum, so the training does not use the sum. Memory is identified by its storage, so a tensor and
its views are the same memory. Results of compiled code count as data, because no operator shows their sources. Memory
created outside of the steps counts as data, too.

The first value of each tensor that was created from constants is stored. Optimizers create their state in the first
step and change it there, but a capture needs the state from before that step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.weak import WeakTensorKeyDictionary

from harness.system.replay.cpu_as_device import LIFT, tensors_in
from harness.system.replay.observer import Observer
from harness.system.sharded_tensors import local

_SMALL = 64  # largest number of elements of a tensor whose first value is stored as a copy
_aten = torch.ops.aten
# Operators that fill a tensor with one number, and functions that read this number from the operator's arguments.
_FILLED: dict[Any, Callable[[Sequence[Any]], Any]] = {
    **dict.fromkeys((_aten.zeros, _aten.zeros_like, _aten.new_zeros), lambda _arguments: 0),
    **dict.fromkeys((_aten.ones, _aten.ones_like, _aten.new_ones), lambda _arguments: 1),
    _aten.scalar_tensor: lambda arguments: arguments[0],
    _aten.full: lambda arguments: arguments[1],
    _aten.full_like: lambda arguments: arguments[1],
    _aten.new_full: lambda arguments: arguments[2],
}
_EMPTY = {_aten.empty, _aten.empty_like, _aten.new_empty, _aten.empty_strided, _aten.new_empty_strided}
_FILLS: dict[Any, Callable[[Sequence[Any]], Any]] = {_aten.zero_: lambda _: 0, _aten.fill_: lambda given: given[1]}
_SAME = {_aten.clone, _aten.detach, _aten._to_copy, _aten.alias, _aten.view, _aten.expand, _aten.unsqueeze}
_LIFTED = {_aten.lift_fresh, _aten.lift_fresh_copy}


class FirstValues(Observer):
    """Within the `with` block, stores the first value of each tensor that is created only from numbers."""

    def __init__(self) -> None:
        super().__init__()
        # tensor -> the number that fills the tensor or, for a small tensor, a copy on the host
        self._values: Any = WeakTensorKeyDictionary()
        self._empty: Any = WeakTensorKeyDictionary()
        self._changed: Any = WeakTensorKeyDictionary()

    def put_back(self, tensor: Tensor) -> bool:
        """Restore the first value of the tensor and return True. Return False if the first value is unknown."""
        if tensor not in self._values:
            return False
        value = self._values[tensor]
        with writing_to(tensor):
            _ = local(tensor).copy_(value) if isinstance(value, Tensor) else local(tensor).fill_(value)
        return True

    def execute(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name, returned = func.overloadpacket, func(*args, **kwargs)
        if name in _FILLED:
            self._values[returned] = _FILLED[name](args)
        elif name in _LIFTED and returned.numel() <= _SMALL:
            self._values[returned] = returned.detach().to("cpu", copy=True)
        elif name in _EMPTY:
            self._empty[returned] = True
        elif name in _FILLS and args[0] in self._empty and not isinstance(_FILLS[name](args), Tensor):
            del self._empty[args[0]]
            self._values[args[0]] = _FILLS[name](args)
        elif name in _SAME and args[0] in self._values and args[0] not in self._changed:
            self._values[returned] = self._values[args[0]]
        elif func._schema.is_mutable:
            for tensor in tensors_in([*args, *kwargs.values()]):
                self._changed[tensor] = True
        return returned


def writing_to(tensor: Tensor) -> AbstractContextManager[object]:
    """Allow in-place changes of the tensor in the `with` block. Inference tensors allow such changes only in inference
    mode."""
    return torch.inference_mode() if tensor.is_inference() else nullcontext()


def copy_into(tensor: Tensor, value: Tensor) -> None:
    """Copy a value into a tensor. If the tensor is divided among ranks, copy only into this rank's part."""
    with writing_to(tensor):
        local(tensor).copy_(value)


# Bits for the sources from which the content of memory is computed. WHOLE: the content depends on parameters, and not
# only through a single number. Higher bits are marks.
PARAMETERS, DATA, WHOLE = 1, 2, 4
_MADE_OF, _FIRST_MARK = PARAMETERS | DATA | WHOLE, 3
_PLAIN = frozenset({Tensor, nn.Parameter, nn.Buffer})
# In-place operators that overwrite all earlier values of a tensor.
_REPLACE = frozenset(
    {
        "bernoulli_", "cauchy_", "copy_", "exponential_", "fill_", "geometric_", "log_normal_", "normal_", "random_",
        "uniform_", "zero_", "_foreach_copy_", "_foreach_zero_",
    }
)  # fmt: skip
_CONDITIONS = frozenset({"condition", "mask"})  # names of arguments that only select values


class Effect(NamedTuple):
    """The effects of an operator. `writes` contains the positions and names of the arguments that the operator changes,
    and `chooses` those of the arguments that only select values."""

    writes: frozenset[int | str]
    chooses: frozenset[int | str]
    replaces: bool  # True: the operator overwrites all earlier values
    by_shape: bool  # True: the result has the shape of an argument, but depends on none of its values
    draws: bool
    tells: bool  # True: the host reads a value through the operator


@cache
def effect_of(func: OpOverload) -> Effect:
    """Return an operator's effect. The effect is derived from the operator's schema."""
    schema = getattr(func, "_schema", None)
    if schema is None:  # a higher-order operator has no schema
        return Effect(frozenset(), frozenset(), replaces=False, by_shape=False, draws=False, tells=False)
    arguments = list(enumerate(schema.arguments))
    written = [(place, each) for place, each in arguments if each.alias_info is not None and each.alias_info.is_write]
    chosen = [(place, each) for place, each in arguments if each.name in _CONDITIONS]
    name = schema.name.partition("::")[2]
    is_out = bool(written) and all(each.kwarg_only for _, each in written)
    return Effect(
        writes=frozenset(key for place, each in written for key in (place, each.name)),
        chooses=frozenset(key for place, each in chosen for key in (place, each.name)),
        replaces=is_out or name in _REPLACE,
        by_shape=name.endswith("_like") or name.startswith("new_"),
        draws=torch.Tag.nondeterministic_seeded in func.tags,
        tells=torch.Tag.data_dependent_output in func.tags,
    )


class Memory:
    """Facts about one storage, the memory of a tensor and its views.

    is_kept: a parameter, buffer or optimizer holds the memory.
    is_early: before the first step, the memory belonged to a tensor that no module or optimizer holds.
    is_given: no operator of a step created the memory.
    is_unseen: a step that was not followed created the memory.
    """

    __slots__ = (
        "born", "is_early", "is_given", "is_kept", "is_unseen", "made_in", "made_of", "mark", "marks", "reference",
        "written",
    )  # fmt: skip

    def __init__(self, reference: StorageWeakRef, made_of: int, step: int, stretch: int, *, is_given: bool) -> None:
        self.reference, self.made_of, self.is_given = reference, made_of, is_given
        self.born = step  # number of the step in which the memory appeared
        self.made_in = stretch  # number of the stretch (a step or an evaluation) that computed the present content
        self.written: int | None = None  # number of the last step that wrote to the memory; None: no step did
        self.is_kept = self.is_early = self.is_unseen = False
        # mark: the mark of the present content; 0 if no later step read the content. marks: all marks, including those
        # of earlier content.
        self.mark = self.marks = 0


class Ledger(Observer):
    """Records from which tensors the operators of an execution's steps compute each tensor. Enter the ledger around
    each step whose operators it must record (a followed step), and call `ended` after the step.

    failure: the error that stopped the ledger, or None. The training continues without the ledger.
    """

    def __init__(self) -> None:
        super().__init__()
        self.failure: str | None = None
        self.step = 0
        # The number of the present step or evaluation. Memory that an earlier step or evaluation wrote, and that the
        # present one reads, was kept in between.
        self._stretch = 0
        # address of memory -> the facts about this memory, with a reference, so that the address is not used again
        self._memories: dict[int, Memory] = {}
        self._sources: list[int] = []  # index of a mark -> the source bits of the memory that has this mark
        self._reached = 0  # bits of the marks whose content reached kept or early memory, a loss or the host

    def keep(self, tensors: Iterable[Tensor]) -> None:
        """Note that parameters, buffers or optimizers hold the tensors' memory. Later writes to the memory do not
        change its `is_kept`."""
        for memory in self._in(list(tensors)):
            memory.is_kept = True

    def begin_with(self, tensors: Iterable[Tensor]) -> None:
        """Note the memory of tensors that exist before the first step and that no module or optimizer holds
        (`is_early`).

        The content counts as data until a step writes to it. A single number counts as a setting instead.
        """
        for tensor in tensors:
            for memory in self._in(tensor):
                memory.is_early, memory.made_of = True, DATA if tensor.numel() > 1 else 0

    def adopt(self, tensors: Iterable[Tensor]) -> None:
        """Add the memory of tensors from steps whose operators were not recorded. The memory has no sources until a
        recorded operator writes to it."""
        for memory in self._in(list(tensors), 0):
            if memory.born == self.step and not memory.is_kept:
                memory.is_unseen = True
                memory.born, memory.made_in = self.step - 1, self._stretch - 1

    def passed(self) -> None:
        """Count a step that has ended, and whose operators were not recorded."""
        self.step += 1
        self._stretch += 1

    def evaluated(self) -> None:
        """Count an evaluation between two steps that has ended. Drop entries of memory that no longer exists."""
        self._stretch += 1
        self._forget_gone()

    def ended(self, loss: object) -> None:
        """Count a step that has ended, and mark its loss as used. Drop entries of memory that no longer exists."""
        for memory in self._in(loss):
            self._reached |= self._read(memory)
        self.passed()
        self._forget_gone()

    def _forget_gone(self) -> None:
        self._memories = {key: each for key, each in self._memories.items() if not _is_gone(each.reference)}

    def memory_of(self, tensor: Tensor) -> Memory | None:
        """Return the facts about a tensor's memory. Return None if no followed step used this memory."""
        has_storage = type(tensor) in _PLAIN and torch._C._has_storage(tensor)
        return self._memories.get(tensor.untyped_storage()._cdata) if has_storage else None

    def read_marks(self, also: Iterable[Memory] = ()) -> int:
        """Return the bits of the marks of all memory that the training uses, directly or indirectly. also: further
        memory that the training uses."""
        reached, waiting = 0, self._reached & ~_MADE_OF
        for memory in also:
            waiting |= memory.made_of & ~_MADE_OF
        while waiting:
            reached |= waiting
            sources = [each for place, each in enumerate(self._sources) if waiting >> (place + _FIRST_MARK) & 1]
            waiting = 0
            for each in sources:
                waiting |= each & ~_MADE_OF & ~reached
        return reached

    def execute(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        returned = func(*args, **kwargs)
        if self.failure is None:
            try:
                self._note(func, args, kwargs, returned)
            except Exception as error:
                self.failure = f"{type(error).__name__}: {error}"
        return returned

    def _note(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], returned: Any) -> None:
        if func is LIFT:  # the numbers come from the host; a single number counts as a setting and not as data
            self._in([*args, returned], DATA if args[0].numel() > 1 else 0)
            return
        effect = effect_of(func)
        made_of, written = DATA if effect.draws else 0, list[tuple[Memory, Any]]()
        for place, value in (*enumerate(args), *kwargs.items()):
            for memory in self._in(value):
                if place in effect.writes:
                    written.append((memory, value))
                    continue
                if effect.by_shape:
                    continue
                read = self._read(memory)
                made_of |= read & ~_MADE_OF if place in effect.chooses else read
        if made_of & WHOLE and isinstance(returned, Tensor) and returned.numel() == 1:
            made_of &= ~WHOLE
        if effect.tells:
            self._reached |= made_of
        for memory, value in written:
            self._write(memory, made_of, replaces=effect.replaces and _is_whole(value))
        self._in(returned, made_of)

    def _read(self, memory: Memory) -> int:
        if memory.is_kept:
            return PARAMETERS | WHOLE
        if memory.is_early or memory.made_in == self._stretch:
            return memory.made_of
        if not memory.mark:
            memory.mark = 1 << (len(self._sources) + _FIRST_MARK)
            memory.marks |= memory.mark
            self._sources.append(memory.made_of)
        return memory.made_of & _MADE_OF | memory.mark

    def _write(self, memory: Memory, made_of: int, *, replaces: bool) -> None:
        is_first, memory.written = memory.written is None, self.step
        if memory.is_kept:
            self._reached |= made_of
        elif memory.is_early:
            self._reached |= made_of
            memory.made_of = made_of | (0 if is_first or replaces else memory.made_of)
        elif replaces:
            memory.made_of, memory.made_in, memory.mark = made_of, self._stretch, 0
        else:
            memory.made_of |= made_of & ~memory.mark
            if memory.mark:
                self._sources[memory.mark.bit_length() - 1 - _FIRST_MARK] = memory.made_of

    def _in(self, value: Any, made_of: int | None = None) -> Sequence[Memory]:
        """Return the `Memory` of each tensor in a value. Add an entry for memory that is not known yet.

        made_of: the sources of new memory; None if no operator created it, as for a batch.
        """
        kind = type(value)
        if kind in _PLAIN:
            return self._of_plain(value, made_of)
        parts: Iterable[Any] = value if kind is list or kind is tuple else ()
        if issubclass(kind, Tensor) and not issubclass(kind, FakeTensor):
            if not hasattr(kind, "__tensor_flatten__"):
                return self._of_plain(value, made_of)
            parts = [getattr(value, name) for name in value.__tensor_flatten__()[0]]
        return [memory for each in parts for memory in self._in(each, made_of)]

    def _of_plain(self, tensor: Tensor, made_of: int | None) -> Sequence[Memory]:
        if tensor.is_meta or not torch._C._has_storage(tensor):
            return ()
        storage = tensor.untyped_storage()
        memory = self._memories.get(storage._cdata)
        if memory is None:
            reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
            is_given = made_of is None
            memory = Memory(
                reference, DATA if made_of is None else made_of, self.step, self._stretch, is_given=is_given
            )
            self._memories[storage._cdata] = memory
        if type(tensor) is nn.Parameter:
            # A parameter's memory is always kept, even if the training assigned new memory to the parameter.
            memory.is_kept = True
        return (memory,)


def is_of_torch(tensor: Tensor) -> bool:
    """Return True if torch allocated the tensor's memory. Return False if, for example, numpy allocated it."""
    return type(tensor) in _PLAIN and torch._C._has_storage(tensor) and tensor.untyped_storage().resizable()


def _is_gone(reference: StorageWeakRef) -> bool:
    return bool(reference.expired())  # type: ignore[no-untyped-call]


def _is_whole(value: Any) -> bool:
    """Return True if a tensor (or, for a list, each tensor of the list) takes up the whole of its storage."""
    tensors = value if isinstance(value, list | tuple) else [value]
    return all(each.numel() * each.element_size() >= each.untyped_storage().nbytes() for each in tensors)

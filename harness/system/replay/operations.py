"""Record the ATen operations of a function while it executes, and repeat them on the same tensors.

A dispatch mode below autograd observes the operations. Therefore backward passes and optimizers are recorded like other
code. torch's `make_fx` records the same operations, but builds a fake tensor with its own mode for each value. For a
step of the reference trainer's tiny model, `make_fx` took 3.1 s of processor time, and this module takes 0.2 s.

This module also measures the size of the terms from which a loss is added up. Large terms that cancel one another leave
a large rounding error in a loss near 0. Terms may cancel in a sum over a batch, as advantages in reinforcement learning
do. They may also cancel within each element of the batch, as in an estimate of a divergence.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.weak import WeakTensorKeyDictionary

from harness.system.replay.cpu_as_device import LIFT, HostMade, tensors_in
from harness.system.replay.found_state import same
from harness.system.replay.observer import Observer
from harness.system.replay.placement import executed
from harness.system.replay.sites import Site, site_to_note

# The following code names the operators that a step runs. If a captured step runs other kernels than the plain step,
# the names show it.
#
# Libraries may run other code during a capture. For example, transformers then passes a causal mask, so that attention
# runs in another kernel. The results of both kernels are correct, but their rounding differs. With dropout, the random
# numbers differ, too.

# Operators that move or create memory and do not round. They are not compared, because a captured step copies its batch
# with such operators, but a plain step need not copy its batch.
_MOVES = frozenset(
    {
        "_reshape_alias", "_to_copy", "_local_scalar_dense", "_unsafe_view", "alias", "arange",
        "clone", "copy", "copy_", "detach", "empty", "empty_like", "empty_strided", "expand",
        "fill", "fill_", "full", "full_like", "is_pinned", "is_same_size", "lift_fresh", "new_empty",
        "new_empty_strided", "new_full", "new_ones", "new_zeros", "ones", "ones_like",
        "resize_", "scalar_tensor", "set_", "zero_", "zeros", "zeros_like",
    }
)  # fmt: skip


def operator_name(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Return the name of an operator, with the names of the optional tensors in this call. Return None if the operator
    does not round."""
    name, optional = _known(func)
    if name is None or not optional:
        return name
    given = [each for place, each in optional if (args[place] if place < len(args) else kwargs.get(each)) is not None]
    return f"{name} with {', '.join(given)}" if given else name


@cache
def _known(func: OpOverload) -> tuple[str | None, tuple[tuple[int, str], ...]]:
    name = func._schema.name.replace("::", ".")
    if func.is_view or name.removeprefix("aten.") in _MOVES:
        return None, ()
    arguments = enumerate(func._schema.arguments)
    return name, tuple((place, each.name) for place, each in arguments if str(each.type) == "Optional[Tensor]")


# Names of arguments that decide whether an operator draws random numbers. The operator draws none if such an argument
# is 0 or False.
_DRAWS_BY = frozenset({"dropout", "dropout_p", "p", "train", "training"})


def drawn_by(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], returned: object) -> str | None:
    """Return a text for a call that draws random numbers, with the operator and the layouts of its tensors. Return None
    for other calls.

    Data types, shapes and order in memory decide which element gets which number. The form of an operator (in place,
    `out`, `_like`) does not change the numbers that it draws.
    """
    name, read = _drawing(func)
    if name is None:
        return None
    given = {each: args[place] if place < len(args) else kwargs.get(each, default) for each, place, default in read}
    tensors = [*tensors_in([*args, *kwargs.values()]), *tensors_in([returned])]
    if not tensors or any(given.get(each) in (0, False) for each in _DRAWS_BY if _is_number(given.get(each))):
        return None
    if name == "aten.native_dropout" and tensors[0].device.type == "cpu":
        name, tensors = "aten.bernoulli", tensors[:1]  # on a CPU, the kernel of dropout calls `bernoulli`
    own = " from its own generator" if given.get("generator") is not None else ""
    return f"{name} of {', '.join(dict.fromkeys(map(_layout, tensors)))}{own}"


def _is_number(value: object) -> bool:
    return isinstance(value, bool | int | float)


@cache
def _drawing(func: OpOverload) -> tuple[str | None, tuple[tuple[str, int, Any], ...]]:
    """Return two things about an operator: its name if the operator may draw random numbers (else None), and the
    arguments that decide whether it draws, as (name, position, default)."""
    arguments, read = [*enumerate(func._schema.arguments)], {*_DRAWS_BY, "generator"}
    # Operators of other packages lack torch's tag. Those that draw random numbers are recognized by `dropout_p`.
    drops_out = any(each.name == "dropout_p" for _, each in arguments)
    if not drops_out and torch.Tag.nondeterministic_seeded not in func.tags:
        return None, ()
    name = func._schema.name.replace("::", ".").removesuffix("_").removesuffix("_functional").removesuffix("_like")
    return name, tuple((each.name, place, each.default_value) for place, each in arguments if each.name in read)


def _layout(tensor: Tensor) -> str:
    form = f"{str(tensor.dtype).removeprefix('torch.')} {'x'.join(map(str, tensor.shape)) or 'number'}"
    strided = tensor.layout is torch.strided and not tensor.is_contiguous()
    return f"{form} in strides {'x'.join(map(str, tensor.stride()))}" if strided else form


class OperatorWatch(Observer):
    """Collects the operators that are executed in the `with` block.

    names: the set of these operators, except operators inside compiled code.
    draws: the calls that draw random numbers, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.draws: list[str] = []
        self._form = hashlib.sha256()

    @property
    def form(self) -> str:
        """Return a digest of all operators in order, with the types, shapes and strides of their inputs and results."""
        return self._form.hexdigest()[:16]

    def execute(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if (name := operator_name(func, args, kwargs)) is not None:
            self.names.add(name)
        returned = func(*args, **kwargs)
        layouts = map(_layout, tensors_in([*args, *kwargs.values(), returned]))
        self._form.update(f"{func} {'; '.join(layouts)}\n".encode())
        if (drawn := drawn_by(func, args, kwargs, returned)) is not None:
            self.draws.append(drawn)
        return returned


_repetitions = 0  # number of `Operations` that are being repeated (called) now
_repeated: _Operation | None = None  # the operation that is being repeated now
_COPY = torch.ops.aten.clone.default
_VIEW = torch.ops.aten.as_strided.default
# The harness itself calls this operator during a recording. The operator reads no values.
_PINNED = torch.ops.aten.is_pinned.default


@dataclass(frozen=True)
class _Result:
    """Stands for a tensor that an operation returns. place: the tensor's index among the results of all operations."""

    place: int


@dataclass
class _Operation:
    """One recorded call. In its arguments, a `_Result` stands for each tensor that every repetition computes again."""

    function: OpOverload
    arguments: list[Any]
    keywords: dict[str, Any]
    results: list[tuple[int, int]]  # for each result: its index in the returned value, and its place (see `_Result`)
    last_used: list[int]  # the places (see `_Result`) whose values no later operation needs
    with_gradients: bool  # torch's grad mode at the call; if True, a kernel may keep tensors for a backward pass
    of_inference: bool = False  # True: the operation writes in inference mode, as torch requires for inference tensors
    site: Site | None = None  # the place at which the step called the operation; None: places are not noted


class Operations:
    """Recorded operations. Calling the object repeats them, and returns the recorded function's result with new
    values."""

    def __init__(self, operations: list[_Operation], returned: list[Any], places: int, draws: list[str]) -> None:
        """Store a recording, and find where each result is used last. draws: the operators that draw random numbers, in
        order."""
        self._operations, self._returned, self._places, self.draws = operations, returned, places, draws
        needed = set(_places(returned))
        # Search from the last operation back, to find the last use of each value. A repetition then frees each value as
        # early as the function itself does.
        for operation in reversed(operations):
            used = _places([*operation.arguments, *operation.keywords.values()])
            own = {*used, *(place for _, place in operation.results)}
            operation.last_used = sorted(own - needed)
            needed |= own

    def __len__(self) -> int:
        return len(self._operations)

    def names(self) -> set[str]:
        """Return the names of the recorded operators, except those that only move or view values."""
        named = (operator_name(each.function, each.arguments, each.keywords) for each in self._operations)
        return {name for name in named if name is not None}

    def reads(self, tensor: Tensor) -> bool:
        """Return True if an operation reads the content that the tensor's memory had before the recording."""
        own = [each for each in self._operations if each.function is not _PINNED]
        given = tensors_in([each for one in own for each in (*one.arguments, *one.keywords.values())])
        return same(tensor) in map(same, given)

    def __call__(self) -> list[Tensor]:
        global _repeated  # noqa: PLW0603
        values: list[Any] = [None] * self._places
        # The operations were recorded below autograd, so they must also be called below autograd.
        with _repeating(), torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
            for operation in self._operations:
                _repeated = operation
                torch._C._set_grad_enabled(operation.with_gradients)
                with torch.inference_mode() if operation.of_inference else nullcontext():
                    returned = operation.function(
                        *[_filled(each, values) for each in operation.arguments],
                        **{name: _filled(each, values) for name, each in operation.keywords.items()},
                    )
                for index, place in operation.results:
                    values[place] = returned if isinstance(returned, Tensor) else returned[index]
                for place in operation.last_used:
                    values[place] = None
        return [_filled(each, values) for each in self._returned]


@contextmanager
def _repeating() -> Iterator[None]:
    global _repetitions  # noqa: PLW0603
    _repetitions += 1
    try:
        yield
    finally:
        _repetitions -= 1


def is_repeated() -> bool:
    """Return True while recorded operations are called again (a replay). Such a repetition never waits for the device,
    because a step that waits cannot be recorded."""
    return _repetitions > 0


def repeated_site() -> Site | None:
    """Return the place at which the step called the operation that is being repeated; None outside of a repetition."""
    return _repeated.site if _repeated is not None and _repetitions else None


def record(function: Callable[[], list[Tensor]]) -> Operations:
    """Execute `function`, which returns tensors, and return its recorded operations.

    Raise RuntimeError if the host reads a value that the recording computes. Otherwise each repetition would use what
    the host computed from the value in the recorded execution.
    """
    with _Recording() as recording, _no_earlier_casts():
        returned = function()
    known = [recording.known(tensor) for tensor in returned]
    return Operations(recording.operations, known, recording.places, recording.draws)


class _Recording(Observer):
    """Executes and records every operation in the `with` block."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[_Operation] = []
        self.places, self.draws = 0, list[str]()
        self.host = HostMade(recorded=True)
        self._results: Any = WeakTensorKeyDictionary()
        self._memory = _Memory()

    def execute(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = list(tensors_in([*args, *kwargs.values()]))
        self._find_shared(given)
        # A value is constant if it is computed only from numbers in the code, as by `arange`, and if it is not random.
        drawn = torch.Tag.nondeterministic_seeded in func.tags
        constant = not drawn and self.host.alone(func, args, kwargs)
        if torch.Tag.data_dependent_output in func.tags and not constant:
            raise RuntimeError(f"{func} makes the host read a value that the step computes; no replay can do that")
        called = _COPY if func is LIFT else func  # each repetition then copies the numbers into a new tensor
        arguments, keywords = [*map(self.known, args)], {k: self.known(v) for k, v in kwargs.items()}
        writes = torch.is_inference_mode_enabled() and called._schema.is_mutable
        operation = _Operation(called, arguments, keywords, [], [], torch.is_grad_enabled(), of_inference=writes)
        operation.site = site_to_note()
        returned, needed = executed(called, args, kwargs)
        if needed and not constant:
            raise RuntimeError(f"{func} calls {needed[0]}, which makes the host read a value that the step computes")
        self.operations.append(operation)
        if (name := drawn_by(func, args, kwargs, returned)) is not None:
            self.draws.append(name)
        self.host.note(func, args, kwargs, returned)
        for index, tensor in enumerate(returned if isinstance(returned, tuple | list) else [returned]):
            if not isinstance(tensor, Tensor):
                continue
            if not any(tensor is each for each in given):
                operation.results.append((index, self.places))
                self._keep(tensor)
            if drawn:
                self.host.remove(tensor)
        return returned

    def read(self, tensor: Tensor, called: str) -> Tensor:
        """Return a tensor that is computed only from constants. For other tensors, raise RuntimeError, because the host
        would read them."""
        if not self.host.has(tensor):
            raise RuntimeError(f"{called} makes the host read a value that the step computes; no replay can do that")
        return tensor

    def _keep(self, tensor: Tensor) -> None:
        self._results[tensor] = _Result(self.places)
        self._memory.computed(tensor, self.places)
        self.places += 1

    def _find_shared(self, given: Iterable[Tensor]) -> None:
        """Record a view for each tensor that shares the memory of a result but was created without an operator, such as
        `nn.Parameter(result)`.

        Repetitions need this tensor, too. Raise RuntimeError if its data type differs from the type of the result.
        """
        for tensor in given:
            place = None if tensor in self._results else self._memory.place_of(tensor)
            if place is None:
                continue
            dtype, number = place
            if dtype != tensor.dtype:
                raise RuntimeError(
                    "the step uses a tensor that no recorded operation created, so no replay can create it again; the "
                    "tensor shares memory with a tensor that the step computes, but has another data type"
                )
            shape = [list(tensor.shape), list(tensor.stride()), tensor.storage_offset()]
            view = [_Result(number), *shape]
            self.operations.append(_Operation(_VIEW, view, {}, [(0, self.places)], [], torch.is_grad_enabled()))
            self._keep(tensor)

    def known(self, value: Any) -> Any:
        """Return `value`, with each tensor that the recording computes replaced by its `_Result`."""
        if isinstance(value, Tensor):
            return self._results.get(value, value)
        if isinstance(value, tuple | list):
            return [self.known(each) for each in value]
        return value


class _Memory:
    """Stores which memory each tensor uses: the memory of a result (by the result's position), or memory from before
    the recording."""

    def __init__(self) -> None:
        # Address of a storage -> a reference to the storage, so that the address is not used again, and the data type
        # and the position of the first result in the storage (None: the storage is from before the recording).
        self._places: dict[int, tuple[StorageWeakRef, tuple[torch.dtype, int] | None]] = {}

    def computed(self, tensor: Tensor, place: int) -> None:
        """Store the memory of a result. If the result is a view of an earlier tensor, this memory is already stored."""
        if torch._C._has_storage(tensor):
            self._note(tensor, (tensor.dtype, place))

    def place_of(self, tensor: Tensor) -> tuple[torch.dtype, int] | None:
        """Return data type and position of the first result in the tensor's memory. Return None for memory from before
        the recording."""
        return self._note(tensor, None) if torch._C._has_storage(tensor) else None

    def _note(self, tensor: Tensor, place: tuple[torch.dtype, int] | None) -> tuple[torch.dtype, int] | None:
        reference = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        return self._places.setdefault(reference.cdata, (reference, place))[1]


def _filled(value: Any, values: Sequence[Any]) -> Any:
    if type(value) is _Result:
        return values[value.place]
    if type(value) is list:
        return [_filled(each, values) for each in value]
    return value


def _places(value: Any) -> Iterator[int]:
    if isinstance(value, _Result):
        yield value.place
    elif isinstance(value, list):
        for each in value:
            yield from _places(each)


@contextmanager
def _no_earlier_casts() -> Iterator[None]:
    """Clear autocast's cache before and after the `with` block. Otherwise each repetition would use weights that were
    converted to another data type before the recording.

    Within the `with` block the cache works as in a plain step, so that all gradients of a weight are added in the
    converted type.
    """
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        torch.clear_autocast_cache()


_SUMS = {"sum", "mean"}
_FOLLOWED = 1 << 16  # largest size of a tensor whose terms are followed; in a larger tensor each element is one term
_ADDITIONS = {"add", "sub", "rsub"}
_SCALINGS = {"mul", "div"}
# Operators whose results have terms of the same size as the terms of their inputs. `relu` and similar operators are in
# this set, although they may cut off the rounding error of a sum.
_SAME = {
    "relu",
    "clamp",
    "clamp_min",
    "clamp_max",
    "threshold",
    "neg",
    "clone",
    "detach",
    "alias",
    "view",
    "_to_copy",
    "squeeze",
    "unsqueeze",
    "_unsafe_view",
}


class LossTerms(Observer):
    """Computes the size of each element of each tensor that is computed in the `with` block. The size is the sum of the
    absolute values of the element's terms."""

    def __init__(self) -> None:
        super().__init__()
        self._sizes: Any = WeakTensorKeyDictionary()

    def size_of(self, value: Any) -> Any:
        """Return the size of each element of a value: the sum of the absolute values of its terms. If the terms are
        unknown, return the absolute value of the element."""
        if not isinstance(value, Tensor):
            return abs(value)
        known = self._sizes.get(value)
        if known is not None:
            return known
        return value.detach().abs() if value.is_floating_point() else value.double().abs()

    def execute(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        returned = func(*args, **kwargs)
        # Compute no sizes for a tensor that is divided among ranks, because a sum over the tensor may need all ranks.
        plain = type(returned) is Tensor and returned.layout is torch.strided and returned.is_floating_point()
        if plain and returned.numel() <= _FOLLOWED:
            size = None
            with suppress(RuntimeError, TypeError):  # if this fails, the elements' absolute values count as their sizes
                size = self._followed(func, args, kwargs)
            if size is not None and size.numel() == returned.numel():
                self._sizes[returned] = size.detach().reshape(returned.shape)
        return returned

    def _followed(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        name = func._schema.name.removeprefix("aten::").removesuffix("_")
        if name in _SUMS and func._schema.is_mutable:
            return None  # this form of the operator changes memory of the step, so it must not be called again
        if name in _SUMS:
            terms: Tensor = self.size_of(args[0])
            if args[1:]:
                return torch.as_tensor(func(terms, *args[1:], **kwargs))
            return terms.sum(dtype=torch.float64) if name == "sum" else terms.mean(dtype=torch.float64)
        if name in _SAME:
            same: Tensor = self.size_of(args[0])
            return same
        if name not in _ADDITIONS | _SCALINGS:
            return None
        first, second = map(self.size_of, args[:2])
        if name in _ADDITIONS:
            alpha = abs(kwargs.get("alpha", 1))
            first, second = (first * alpha, second) if name == "rsub" else (first, second * alpha)
        return torch.as_tensor(
            first + second if name in _ADDITIONS else first * second if name == "mul" else first / second
        )

"""Follow Python numbers that each step changes, and list operators whose bits on CUDA may differ at each repetition.

A replay executes no Python, so a Python number keeps its value from the capture. If the step only counts with the
number, only the count is wrong. If the number affects a comparison or a tensor, the captured step trains differently.
The first effect may come only after all compared steps (`if done > 50`). Therefore the harness checks for what the step
uses the number.

A `Followed` object replaces a number. Arithmetic and functions of `math` return further `Followed` objects. Writing the
number as text does not count as a read. If C code requires a plain number, the number counts as read.
"""

from __future__ import annotations

import dis
import math
import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed
from torch._ops import OpOverload

from harness.system.replay.launches import as_written, standing_in
from harness.system.replay.observer import Interceptor
from harness.system.replay.places import Slot
from harness.system.replay.sites import of_current_stack
from harness.system.replay.snapshots import HostChanges

_ARITHMETIC = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "divmod"),
    *("and", "or", "xor", "lshift", "rshift"),
)
_OF_ONE = ("neg", "pos", "abs", "invert")
_COMPARISONS = ("lt", "le", "eq", "ne", "gt", "ge")
_ROUNDINGS: dict[str, Callable[..., Any]] = {
    "trunc": math.trunc,
    "floor": math.floor,
    "ceil": math.ceil,
    "round": round,
}


class HostNumber(NamedTuple):
    """A number that each step changes.

    name: the path of the attribute or entry that holds the number.
    read: for what and where the step reads the number; None if the step only counts with the number.
    """

    name: str
    read: str | None


class Followed:
    """An object that replaces a number. names: the names of the numbers from which the object's value is computed.

    notes: name of each number -> for what the number was first read, and on which line. For `isinstance`, the object
    has the type of the replaced number.
    """

    def __init__(self, value: Any, names: frozenset[str], notes: dict[str, str]) -> None:
        self.value, self.names, self.notes = value, names, notes

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self.value)

    def note(self, what: str) -> None:
        place = of_current_stack()
        for name in self.names:
            self.notes.setdefault(name, f"{what} at {place.file}:{place.line}")

    def __repr__(self) -> str:
        return repr(self.value)

    def __format__(self, form: str) -> str:
        return format(self.value, form)

    def __hash__(self) -> int:
        self.note("looked up")
        return hash(self.value)

    def __reduce__(self) -> Any:
        self.note("copied")
        return type(self.value), (self.value,)

    def __array_ufunc__(self, function: Any, method: str, *given: Any, **keywords: Any) -> Any:
        self.note("given to numpy")
        return getattr(function, method)(*_plain(given), **_plain(keywords))

    def __array_function__(self, function: Any, _types: Any, given: Any, keywords: Any) -> Any:
        self.note("given to numpy")
        return function(*_plain(given), **_plain(keywords))


def _is_followed(value: object) -> bool:
    return type(value) is Followed


def _plain(value: Any) -> Any:
    """Return a number, or a call's arguments, with each followed number replaced by a plain number."""
    if _is_followed(value):
        return value.value
    if type(value) is dict:
        return {key: _plain(each) for key, each in value.items()}
    return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value


def _in(value: Any) -> Iterator[Followed]:
    if _is_followed(value):
        yield value
    elif type(value) in (list, tuple, dict):
        for each in value.values() if type(value) is dict else value:
            yield from _in(each)


def _calculated(function: Callable[..., Any], *given: Any) -> Any:
    """Call the function with plain numbers. If the result is a number, return it as a followed number. Any other result
    counts as a read."""
    sources, result = [*_in(given)], function(*_plain(given))
    if not sources or result is NotImplemented or (function is operator.mod and given[1] == 1 and result == 0):
        # The remainder by 1 is always 0, so nothing is read (as when gradients are accumulated over one batch).
        return result
    parts = result if type(result) is tuple else (result,)
    if all(type(each) in (int, float) for each in parts):
        names = frozenset().union(*(each.names for each in sources))
        made = tuple(Followed(each, names, sources[0].notes) for each in parts)
        return made if type(result) is tuple else made[0]
    for each in sources:
        each.note("compared" if isinstance(result, bool) else f"converted to a {type(result).__name__}")
    return result


def _read(what: str, function: Callable[..., Any], *given: Any) -> Any:
    for each in _in(given):
        each.note(what)
    return function(*_plain(given))


def _converted(function: Callable[..., Any], ours: Followed) -> Any:
    """Convert a followed number to a plain number. This counts as a read, unless `%` formats the number as text."""
    caller = sys._getframe(2)
    # If the caller executes a BINARY_OP, it formats a text with `%`, as in `"%d" % number`. For arithmetic, Python
    # calls other methods of `Followed`.
    if dis.opname[caller.f_code.co_code[caller.f_lasti]] != "BINARY_OP":
        ours.note("converted to a plain number or an index")
    return function(ours.value)


def _method(call: Callable[..., Any], function: Callable[..., Any], *, turned: bool = False) -> Callable[..., Any]:
    if turned:
        return lambda self, other: call(function, other, self)
    return lambda self, *given: call(function, self, *given)


def _special_methods() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield (name, method) of each special method of `Followed` that Python calls for operators and built-ins."""
    for name in _ARITHMETIC:
        function: Callable[..., Any] = divmod if name == "divmod" else getattr(operator, f"__{name}__")
        yield name, _method(_calculated, function)
        yield f"r{name}", _method(_calculated, function, turned=True)
    for name in _OF_ONE:
        yield name, _method(_calculated, getattr(operator, f"__{name}__"))
    for name, function in _ROUNDINGS.items():
        yield name, _method(_calculated, function)
    for name in _COMPARISONS:
        yield name, _method(partial(_read, "compared"), getattr(operator, f"__{name}__"))
    yield "bool", _method(partial(_read, "compared"), operator.truth)
    for name, kind in (("int", int), ("float", float), ("index", operator.index), ("complex", complex)):
        yield name, _method(_converted, kind)


for _special, _function in _special_methods():
    setattr(Followed, f"__{_special}__", _function)


class _GivenToTorch(Interceptor):
    """Notes which followed numbers are arguments of torch functions. Calls the functions with plain numbers."""

    def execute(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for each in _in([args, kwargs]):
            each.note(f"given to {getattr(func, '__name__', 'torch')}")
        return func(*_plain(args), **_plain(kwargs))


@contextmanager
def _following(slots: Sequence[Slot], notes: dict[str, str]) -> Iterator[None]:
    """Within the `with` block, replace the numbers in the slots by followed numbers. Functions of `math` then return
    followed numbers."""
    functions = [(name, each) for name, each in vars(math).items() if callable(each) and not name.startswith("__")]
    for slot in slots:
        slot.put(Followed(slot.value(), frozenset({slot.name}), notes))
    try:
        with ExitStack() as stack:
            for name, each in functions:
                stack.enter_context(standing_in((math,), name, partial(_calculated, each)))
            stack.enter_context(_GivenToTorch())
            yield
    finally:
        for slot in slots:
            slot.put(_plain(slot.value()))


def can_follow() -> bool:
    """Return False if several ranks train together, because `follow` executes the step more often, and all ranks must
    execute the step equally often."""
    return not (distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1)


def follow(body: Callable[[], object], roots: Sequence[object], *, of_device: bool) -> list[HostNumber]:
    """Execute `body` twice: first to find the numbers that `body` changes, then to find for what it reads these
    numbers. Return these numbers.

    `body` must have run once before. A number that only the first execution changes, such as a flag that something was
    built, needs no replay. If the step cannot run with a followed number in place of a number, the number counts as
    read. The caller must undo the executions.
    """
    changes = HostChanges(roots, of_device=of_device)
    body()
    slots = changes.numbers([])
    notes = _read_in(body, slots) if slots else {}
    if notes is None:  # the step did not run with all followed numbers together, so follow each number separately
        notes = {}
        for slot in slots:
            alone = _read_in(body, [slot])
            notes |= {slot.name: "given to code that takes only a plain number"} if alone is None else alone
    return [HostNumber(slot.name, notes.get(slot.name)) for slot in slots]


def _read_in(body: Callable[[], object], slots: Sequence[Slot]) -> dict[str, str] | None:
    """Execute `body` with followed numbers in the slots. Return, by the number's name, for what each number is read.
    Return None if the execution raises an error because of the followed numbers."""
    notes = dict[str, str]()
    try:
        with as_written(), _following(slots, notes):
            body()
    except Exception:  # an error of the user's code, or of C code that accepts only a plain number
        return notes if len(slots) == 1 and notes else None
    return notes


Call = Mapping[str, Any]  # the arguments of an operator; key: name


def _always(_call: Call) -> bool:
    return True


class Unrepeated(NamedTuple):
    documented: str  # the name of the function or class in torch's documentation
    # Names of ATen operators whose bits may differ. If torch lists only the backward pass of `documented`, these are
    # the backward operators. "" if no operator is checked.
    operators: str
    deterministic: bool  # True: torch also has a deterministic form of the operators
    when: Callable[[Call], bool] = _always


def _no_accumulation(call: Call) -> bool:
    return not call.get("accumulate", False)


def _reduces(*kinds: str) -> Callable[[Call], bool]:
    return lambda call: call.get("reduce") in kinds


def _is_weighted(call: Call) -> bool:
    return call.get("weights") is not None


def _takes_the_largest(call: Call) -> bool:
    return call.get("mode") == 2  # 2 is the mode "max" of EmbeddingBag


def _of_real_numbers(call: Call) -> bool:
    given = call.get("self")
    dtype = call.get("dtype") or (given.dtype if isinstance(given, Tensor) else torch.int64)
    return bool(dtype.is_floating_point or dtype.is_complex)


# Source: the lists in the documentation of `torch.use_deterministic_algorithms`.
# `tests/harness/system/test_unrepeated.py` compares the rows with the installed torch's own lists.
UNREPEATED = (
    Unrepeated("torch.nn.Conv1d", "convolution convolution_backward", deterministic=True),
    Unrepeated("torch.nn.Conv2d", "convolution convolution_backward", deterministic=True),
    Unrepeated("torch.nn.Conv3d", "convolution convolution_backward", deterministic=True),
    Unrepeated("torch.nn.ConvTranspose1d", "convolution convolution_backward", deterministic=True),
    Unrepeated("torch.nn.ConvTranspose2d", "convolution convolution_backward", deterministic=True),
    Unrepeated("torch.nn.ConvTranspose3d", "convolution convolution_backward", deterministic=True),
    Unrepeated("torch.nn.ReplicationPad1d", "replication_pad1d_backward", deterministic=True),
    Unrepeated("torch.nn.ReplicationPad2d", "replication_pad2d_backward", deterministic=True),
    Unrepeated("torch.nn.ReplicationPad3d", "replication_pad3d_backward", deterministic=True),
    Unrepeated("torch.bmm", "", deterministic=True),  # torch lists only products of a sparse and a dense tensor
    Unrepeated("torch.Tensor.index_put", "index_put index_put_ _index_put_impl_", True, _no_accumulation),
    Unrepeated("torch.Tensor.scatter_add_", "scatter_add scatter_add_", deterministic=True),
    Unrepeated("torch.gather", "scatter_add scatter_add_", deterministic=True),
    Unrepeated("torch.index_add", "index_add index_add_", deterministic=True),
    Unrepeated("torch.index_select", "index_add index_add_", deterministic=True),
    Unrepeated("torch.repeat_interleave", "index_add index_add_", deterministic=True),
    Unrepeated("torch.Tensor.index_copy", "index_copy index_copy_", deterministic=True),
    Unrepeated("torch.Tensor.scatter", "scatter.src scatter_.src", deterministic=True),
    Unrepeated("torch.Tensor.scatter_reduce", "scatter_reduce.two scatter_reduce_.two", True, _reduces("sum", "mean")),
    Unrepeated("torch.nn.MaxPool3d", "max_pool3d_with_indices_backward", deterministic=True),
    Unrepeated("torch.nn.AvgPool3d", "avg_pool3d_backward", deterministic=False),
    Unrepeated("torch.nn.AdaptiveAvgPool2d", "_adaptive_avg_pool2d_backward", deterministic=False),
    Unrepeated("torch.nn.AdaptiveAvgPool3d", "_adaptive_avg_pool3d_backward", deterministic=False),
    Unrepeated("torch.nn.AdaptiveMaxPool2d", "adaptive_max_pool2d_backward", deterministic=False),
    Unrepeated("torch.nn.FractionalMaxPool2d", "fractional_max_pool2d_backward", deterministic=False),
    Unrepeated("torch.nn.FractionalMaxPool3d", "fractional_max_pool3d_backward", deterministic=False),
    Unrepeated("torch.nn.MaxUnpool1d", "max_unpool2d", deterministic=False),
    Unrepeated("torch.nn.MaxUnpool2d", "max_unpool2d", deterministic=False),
    Unrepeated("torch.nn.MaxUnpool3d", "max_unpool3d", deterministic=False),
    Unrepeated(
        "torch.nn.functional.interpolate",
        "upsample_linear1d_backward upsample_bilinear2d_backward upsample_bicubic2d_backward "
        "upsample_trilinear3d_backward",
        deterministic=False,
    ),
    Unrepeated("torch.nn.ReflectionPad1d", "reflection_pad1d_backward", deterministic=False),
    Unrepeated("torch.nn.ReflectionPad2d", "reflection_pad2d_backward", deterministic=False),
    Unrepeated("torch.nn.ReflectionPad3d", "reflection_pad3d_backward", deterministic=False),
    Unrepeated("torch.nn.NLLLoss", "nll_loss2d_forward", deterministic=False),
    Unrepeated("torch.nn.CTCLoss", "_ctc_loss_backward", deterministic=False),
    Unrepeated(
        "torch.nn.EmbeddingBag", "_embedding_bag_backward _embedding_bag_dense_backward", False, _takes_the_largest
    ),
    Unrepeated("torch.Tensor.put_", "put put_", deterministic=False),
    Unrepeated("torch.histc", "histc", deterministic=False),
    Unrepeated("torch.bincount", "bincount", False, _is_weighted),
    Unrepeated("torch.median", "median.dim", deterministic=False),
    Unrepeated("torch.nn.functional.grid_sample", "grid_sampler_2d_backward grid_sampler_3d_backward", False),
    Unrepeated("torch.cumsum", "cumsum cumsum_", False, _of_real_numbers),
    Unrepeated("torch.Tensor.scatter_reduce", "scatter_reduce.two scatter_reduce_.two", False, _reduces("prod")),
    Unrepeated("torch.Tensor.resize_", "", deterministic=False),  # torch lists only quantized tensors
)
_BY_OPERATOR: dict[str, list[Unrepeated]] = {}
for _row in UNREPEATED:
    for _name in _row.operators.split():
        _BY_OPERATOR.setdefault(_name, []).append(_row)


def unrepeated(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
    """Return the operator's name if torch documents that this call may give different bits at each repetition, else
    None."""
    rows = _rows(func)
    if not rows:
        return None
    names = (argument.name for argument in func._schema.arguments)
    call = {**dict(zip(names, args, strict=False)), **kwargs}
    repeated = torch.are_deterministic_algorithms_enabled()
    row = next((row for row in rows if row.when(call) and not (row.deterministic and repeated)), None)
    if row is None:
        return None
    return f"{func._schema.name.replace('::', '.')}{'' if row.deterministic else ', which has no deterministic form,'}"


@cache
def _rows(func: OpOverload) -> list[Unrepeated]:
    if func.namespace != "aten":
        return []
    name = func._schema.name.removeprefix("aten::")
    return [*_BY_OPERATOR.get(name, []), *_BY_OPERATOR.get(f"{name}.{func._overloadname}", [])]

"""Follow Python numbers that a step keeps changing through one execution, and find out what they are read for.

A replay executes no Python, so such a number stays as it was at the capture. If the step only counts, the count is all
that goes wrong. If the number reaches a comparison or a tensor, the captured step trains differently from then on. That
may begin after all compared steps: `if done > 50`. So what decides is where a number leads, and not for how long both
arms agreed.

A followed number takes the place of a number. Arithmetic and `math` make further followed numbers from it; text does
not count as reading. C code that insists on a number refuses it, and then the number counts as read.
"""

from __future__ import annotations

import dis
import math
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

from torch import distributed
from torch.overrides import TorchFunctionMode

from harness.system.replay.places import Slot
from harness.system.replay.sites import of_current_stack
from harness.system.replay.snapshots import HostChanges
from harness.system.replay.stand_ins import as_written, standing_in

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
    """A number by its path, and what the step reads it for, with the line; None: for counting alone."""

    name: str
    read: str | None


class Followed:
    """A number with the names that it comes from. `notes` has what the first reading of each name was, and where.

    It answers `isinstance` as its number does.
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
    """Return a number, or the arguments of a call, with plain numbers instead of followed ones."""
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
    """Calculate with plain numbers. Resulting numbers are followed; any other result is a reading."""
    sources, result = [*_in(given)], function(*_plain(given))
    if not sources or result is NotImplemented or (function is operator.mod and given[1] == 1 and result == 0):
        return result  # no number is otherwise by 1: batches that are accumulated one at a time
    parts = result if type(result) is tuple else (result,)
    if all(type(each) in (int, float) for each in parts):
        names = frozenset().union(*(each.names for each in sources))
        made = tuple(Followed(each, names, sources[0].notes) for each in parts)
        return made if type(result) is tuple else made[0]
    for each in sources:
        each.note("compared" if isinstance(result, bool) else f"made into a {type(result).__name__}")
    return result


def _read(what: str, function: Callable[..., Any], *given: Any) -> Any:
    for each in _in(given):
        each.note(what)
    return function(*_plain(given))


def _converted(function: Callable[..., Any], ours: Followed) -> Any:
    """Make a plain number, and note this as a reading, unless `%` is formatting a text."""
    caller = sys._getframe(2)
    if dis.opname[caller.f_code.co_code[caller.f_lasti]] != "BINARY_OP":  # arithmetic has methods of its own
        ours.note("made a plain number, or an index,")
    return function(ours.value)


def _method(call: Callable[..., Any], function: Callable[..., Any], *, turned: bool = False) -> Callable[..., Any]:
    if turned:
        return lambda self, other: call(function, other, self)
    return lambda self, *given: call(function, self, *given)


def _special_methods() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the special methods that Python calls for operators and functions, with their names."""
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


class _GivenToTorch(TorchFunctionMode):
    """Notes followed numbers among what torch is given, and hands plain ones on."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for each in _in([args, kwargs]):
            each.note(f"given to {getattr(func, '__name__', 'torch')}")
        return func(*_plain(args), **_plain(kwargs or {}))


@contextmanager
def _following(slots: Sequence[Slot], notes: dict[str, str]) -> Iterator[None]:
    """Put followed numbers into the slots within the block, and let `math` make further ones from them."""
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
    """Return False where ranks train together: each must execute a step as often as the others do."""
    return not (distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1)


def follow(body: Callable[[], object], roots: Sequence[object], *, of_device: bool) -> list[HostNumber]:
    """Execute `body` twice more, after a first execution: numbers that change in one are followed in the other.

    Numbers that only the first execution changes, such as a flag that something was built, are not missed by a replay.
    A number whose stand-in the step refuses counts as read. The caller must undo all executions.
    """
    changes = HostChanges(roots, of_device=of_device)
    body()
    slots = changes.numbers([])
    notes = _read_in(body, slots) if slots else {}
    if notes is None:  # one of them was refused: each by itself
        notes = {}
        for slot in slots:
            alone = _read_in(body, [slot])
            notes |= {slot.name: "given to code that takes no stand-in"} if alone is None else alone
    return [HostNumber(slot.name, notes.get(slot.name)) for slot in slots]


def _read_in(body: Callable[[], object], slots: Sequence[Slot]) -> dict[str, str] | None:
    """Return what an execution reads the slots' numbers for, by name; None if it raises because of the stand-ins."""
    notes = dict[str, str]()
    try:
        with as_written(), _following(slots, notes):
            body()
    except Exception:  # of the user's code, or of C code that insists on a number
        return notes if len(slots) == 1 and notes else None
    return notes

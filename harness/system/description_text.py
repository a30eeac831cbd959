"""Turn a `SystemDescription` into plain JSON values and back, exactly, and name anything else that a system returns.

Both ways are strict: a description comes from untrusted code, and arrives from an untrusted process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import Any, TypeVar

from harness.system.protocol import Expectation, FaultDescription, Scalar, SystemDescription

FREE = {"bool": bool, "int": int, "float": float, "str": str}  # types of an option that has no choices
MOST_ENTRIES, MOST_CHARACTERS, MOST_INTEGER = 10_000, 10_000, 2**63
T = TypeVar("T")


class NotADescription(ValueError):  # noqa: N818 - its message is a finding, which an error will quote
    """The field that is not as `SystemDescription` says, and what was found there."""


def to_plain(description: object) -> dict[str, Any]:
    """Return JSON values that hold all of it. Raises `NotADescription`; its mappings' own exceptions pass through."""
    _exactly(description, SystemDescription, "what describe() returns")
    assert isinstance(description, SystemDescription)  # noqa: S101 - for the type checker
    return {
        "name": _text(description.name, "name"),
        "summary": _text(description.summary, "summary"),
        "models": _sequence(description.models, "models", _text),
        "arm_options": _mapping(description.arm_options, "arm_options", _option),
        "workload_options": _mapping(description.workload_options, "workload_options", _option),
        "capabilities": _set(description.capabilities, "capabilities"),
        "captures": _set(description.captures, "captures"),
        "faults": _mapping(description.faults, "faults", _fault),
    }


def from_plain(plain: Mapping[str, Any]) -> SystemDescription:
    """Return the description that `to_plain` was given; sequences become tuples. Raises `NotADescription`."""
    try:
        described = SystemDescription(
            name=plain["name"],
            summary=plain["summary"],
            models=tuple(plain["models"]),
            arm_options=_options(plain["arm_options"]),
            workload_options=_options(plain["workload_options"]),
            capabilities=frozenset(plain["capabilities"]),
            captures=frozenset(plain["captures"]),
            faults={name: _fault_of(fault) for name, fault in plain["faults"].items()},
        )
        same = to_plain(described) == plain
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise NotADescription(f"an answer that is none: {type(error).__name__}: {error}") from error
    if not same:
        raise NotADescription("an answer that says more, or less, than a description")
    return described


def _exactly(value: object, kind: type, field: str) -> None:
    if type(value) is not kind:
        raise NotADescription(f"{field}: {_a(value)}, not a {kind.__name__}")


def _a(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _text(value: object, field: str) -> str:
    _exactly(value, str, field)
    text = str(value)
    if len(text) > MOST_CHARACTERS:
        raise NotADescription(f"{field}: {len(text)} characters, more than {MOST_CHARACTERS}")
    if text.encode("utf-8", "replace").decode("utf-8") != text:
        raise NotADescription(f"{field}: a text that is not Unicode: {text[:80]!a}")
    return text


def _scalar(value: object, field: str) -> Scalar:
    if type(value) is str:
        return _text(value, field)
    if type(value) not in (bool, int, float):
        raise NotADescription(f"{field}: {_a(value)}, not a bool, int, float or str")
    assert isinstance(value, int | float)  # noqa: S101 - for the type checker
    if isinstance(value, float) and not math.isfinite(value):
        raise NotADescription(f"{field}: {value}, not a finite number")
    if abs(value) >= MOST_INTEGER and isinstance(value, int):
        raise NotADescription(f"{field}: an integer of more than 64 bits")
    return value


def _sequence(value: object, field: str, entry: Callable[[Any, str], T]) -> list[T]:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray):
        raise NotADescription(f"{field}: {_a(value)}, not a tuple or list")
    return [entry(each, f"{field}[{index}]") for index, each in enumerate(_few(value, field))]


def _set(value: object, field: str) -> list[str]:
    if not isinstance(value, AbstractSet):
        raise NotADescription(f"{field}: {_a(value)}, not a frozenset")
    return sorted(_text(each, field) for each in _few(value, field))


def _mapping(value: object, field: str, entry: Callable[[Any, str], T]) -> dict[str, T]:
    if not isinstance(value, Mapping):
        raise NotADescription(f"{field}: {_a(value)}, not a mapping")
    items = _few(value.items(), field)
    return {_text(key, f"a key of {field}"): entry(each, f"{field}.{key}") for key, each in items}


def _few(values: Any, field: str) -> list[Any]:
    entries = list(islice(iter(values), MOST_ENTRIES + 1))
    if len(entries) > MOST_ENTRIES:
        raise NotADescription(f"{field}: more than {MOST_ENTRIES} entries")
    return entries


def _option(value: object, field: str) -> dict[str, Any]:
    """Return a type as its name, and choices as a list, for JSON. Raises `NotADescription` for other types."""
    if isinstance(value, type):
        if FREE.get(value.__name__) is not value:
            raise NotADescription(f"{field}: the type {value.__name__}, not one of {', '.join(FREE)}")
        return {"type": value.__name__}
    return {"choices": _sequence(value, field, _scalar)}


def _options(plain: Mapping[str, Any]) -> dict[str, tuple[Scalar, ...] | type]:
    return {name: FREE[it["type"]] if "type" in it else tuple(it["choices"]) for name, it in plain.items()}


def _one_of(value: object, field: str, choices: Sequence[str]) -> str:
    text = _text(value, field)
    if text not in choices:
        raise NotADescription(f"{field}: {text[:80]!r}, not one of {', '.join(choices)}")
    return text


def _fault(value: object, field: str) -> dict[str, Any]:
    _exactly(value, FaultDescription, field)
    assert isinstance(value, FaultDescription)  # noqa: S101 - for the type checker
    return {
        "name": _text(value.name, f"{field}.name"),
        "summary": _text(value.summary, f"{field}.summary"),
        "plant": _one_of(value.plant, f"{field}.plant", ("candidate", "baseline", "both")),
        "breaks": _mapping(value.breaks, f"{field}.breaks", _expectation),
        "needs": _one_of(value.needs, f"{field}.needs", ("any", "cuda")),
    }


def _fault_of(plain: Mapping[str, Any]) -> FaultDescription:
    breaks = {claim: Expectation(**expected) for claim, expected in plain["breaks"].items()}
    return FaultDescription(**{**plain, "breaks": breaks})


def _expectation(value: object, field: str) -> dict[str, Any]:
    _exactly(value, Expectation, field)
    assert isinstance(value, Expectation)  # noqa: S101 - for the type checker
    return {
        "status": _one_of(value.status, f"{field}.status", ("FAIL", "INCONCLUSIVE", "ERROR")),
        "reason": _text(value.reason, f"{field}.reason"),
        "figures": _mapping(value.figures, f"{field}.figures", _scalar),
    }

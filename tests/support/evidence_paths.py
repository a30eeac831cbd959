"""Find paths into evidence, and change evidence at one path."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple, get_args

import evidence_builders
import numpy as np
import pytest
from judge_cases import Case
from pydantic import BaseModel

from harness.judging.registry import judge_unit
from harness.judging.verdict import Verdict

Path = tuple[Any, ...]


class Judged(NamedTuple):
    """The arguments with which a case called `judge_unit`."""

    contract: Any
    claim: Any
    workload: str
    evidence: list[Any]
    rest: tuple[Any, ...]

    def verdict(self) -> Verdict:
        """Return the verdict on the evidence as it is now."""
        return judge_unit(self.contract, self.claim, self.workload, self.evidence, *self.rest)


def recorded(case: Case, monkeypatch: pytest.MonkeyPatch) -> Judged | None:
    """Return the unit that a case judged; None if the case has not exactly one unit."""
    seen: list[Judged] = []

    def record(contract: Any, claim: Any, workload: str, evidence: Any, *rest: Any) -> Verdict:
        seen.append(Judged(contract, claim, workload, list(evidence), rest))
        return seen[-1].verdict()

    with monkeypatch.context() as patched:
        patched.setattr(evidence_builders, "judge_unit", record)
        case.judged()
    return seen[0] if len(seen) == 1 else None


def leaves(value: Any, path: Path = ()) -> Iterator[Path]:
    """Yield paths to the floats; of a list only those in the first two entries and the last: entries are alike."""
    if isinstance(value, float):
        yield path
    for key, entry in inside(value):
        yield from leaves(entry, (*path, key))


def inside(value: Any) -> list[tuple[Any, Any]]:
    """Return the parts of a value by attribute, key or index."""
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.dtype.kind == "f"):
        return [(index, value[index]) for index in few(len(value))]
    if isinstance(value, BaseModel):
        return [(name, getattr(value, name)) for name in type(value).model_fields]
    if is_dataclass(value):
        return [(field.name, getattr(value, field.name)) for field in fields(value)]
    return []


def few(length: int) -> list[int]:
    return sorted({*range(min(2, length)), *range(max(0, length - 1), length)})


def step_into(value: Any, key: Any) -> Any:
    return value[key] if isinstance(value, dict | list | tuple | np.ndarray) else getattr(value, str(key))


@contextmanager
def changed(evidence: list[Any], path: Path, other: object) -> Iterator[None]:
    """Replace the value at a path inside the `with`, and restore it afterwards."""
    parent: Any = evidence
    for key in path[:-1]:
        parent = step_into(parent, key)
    before = step_into(parent, path[-1])
    _put(parent, path[-1], other)
    try:
        yield
    finally:
        _put(parent, path[-1], before)


def _put(parent: Any, key: Any, value: object) -> None:
    if isinstance(parent, dict | list | np.ndarray):
        parent[key] = value
    else:
        object.__setattr__(parent, str(key), value)


def name_of(path: Path) -> str:
    return ".".join(key for key in path if isinstance(key, str))


def things(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield paths to values that could be absent, with a substitute: an empty list or dictionary, or None."""
    for key, entry in inside(value):
        if isinstance(entry, dict | list | tuple) and entry:
            yield (*path, key), type(entry)()
        if isinstance(value, BaseModel) and entry is not None:
            annotation = type(value).model_fields[key].annotation
            if type(None) in get_args(annotation):
                yield (*path, key), None
        yield from things(entry, (*path, key))

"""Record which evidence a judge reads. What a judge does not read cannot change its verdict."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from evidence_paths import Path, step_into

from harness.evidence.base import Record
from harness.evidence.run_evidence import ArmEvidence, RunEvidence, Series

EVIDENCE = (Record, Series, ArmEvidence, RunEvidence)
_OF_THE_CLASS = frozenset({"__class__", "__dataclass_fields__"})  # say nothing of the instance


class Reads:
    """The names of the attributes that were read, for each piece of evidence by its identity."""

    def __init__(self) -> None:
        self._names: dict[int, set[str]] = defaultdict(set)
        self._wholly: set[int] = set()

    def note(self, thing: object, name: str) -> None:
        self._names[id(thing)].add(name)

    def found_in(self, evidence: list[Any]) -> None:
        """Count a piece as completely read if something other than a field of it was read, such as its `__dict__`."""
        for thing in _pieces(evidence):
            if self._names[id(thing)] - _fields(thing) - _OF_THE_CLASS:
                self._wholly |= {id(piece) for piece in _pieces([thing])}

    def of(self, evidence: list[Any], path: Path) -> bool:
        """Return True if the value at the path may have been read, because an attribute on its path was read."""
        thing, holder = evidence, None
        for key in path:
            holder = (thing, key) if isinstance(thing, EVIDENCE) else holder
            thing = step_into(thing, key)
        if holder is None:  # a whole run
            return True
        return id(holder[0]) in self._wholly or holder[1] in self._names[id(holder[0])]


@contextmanager
def reads_noted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reads]:
    """Record reads of evidence inside the `with`."""
    reads = Reads()

    def read(thing: object, name: str, note: Callable[[object, str], None] = reads.note) -> Any:
        note(thing, name)
        return object.__getattribute__(thing, name)

    with monkeypatch.context() as patched:
        for each in EVIDENCE:
            patched.setattr(each, "__getattribute__", read, raising=False)
        yield reads


def _fields(thing: object) -> set[str]:
    return set(type(thing).model_fields if isinstance(thing, Record) else type(thing).__dataclass_fields__)  # type: ignore[attr-defined]


def _pieces(value: Any) -> Iterator[Any]:
    """Yield every piece of evidence in a value, and the value itself if it is one."""
    if isinstance(value, EVIDENCE):
        yield value
        value = {name: getattr(value, name) for name in _fields(value)}
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for each in value:
            yield from _pieces(each)

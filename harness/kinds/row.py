"""Define a row of a table of the harness: every field is given and follows its rule. A row names objects of other
layers as `module:attribute`, which is imported at its use."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from harness.errors import KindError

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
Rules = Mapping[str, tuple[str, Callable[[Any], bool]]]  # field -> what it must be, and whether a value is


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a table; no field may be left out (`KindError`)."""

    called: ClassVar[str]
    rules: ClassVar[Rules]
    name: str

    # The dataclass's own error for a field that is missing names neither the row nor what belongs there.
    def __new__(cls, **given: Any) -> Self:
        for field in fields(cls):
            if field.name not in given:
                raise cls._error(given.get("name", "?"), field.name, "must be given", "nothing")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for field in fields(self):
            rule, holds = self.rules[field.name]  # a field without a rule is refused, too
            value = getattr(self, field.name)
            if not holds(value):
                raise self._error(self.name, field.name, rule, repr(value))

    @classmethod
    def _error(cls, name: object, field: str, rule: str, got: str) -> KindError:
        where, remedy = f"{cls.called} '{name}'", "see docs/adding-a-claim-kind.md"
        return KindError(f"the field `{field}` {rule}", where=where, got=got, remedy=remedy)


def resolve(reference: str) -> Any:
    """Return what `module:attribute` names. Raises KindError when it cannot be imported, or has no such attribute."""
    try:
        return imported(reference)
    except (Exception, SystemExit) as error:  # a package from elsewhere may raise anything
        raise KindError(
            "what the table of claim kinds names must be importable",
            where=reference,
            got=f"{type(error).__name__}: {error}",
            remedy="correct the reference, or install what it needs",
        ) from error


def imported(reference: str) -> Any:
    """Return what `module:attribute` names, or raise what its import raises."""
    module, _, attribute = reference.partition(":")
    return getattr(importlib.import_module(module), attribute)


def is_reference(value: object) -> bool:
    return isinstance(value, str) and _REFERENCE.fullmatch(value) is not None


def is_flag(value: object) -> bool:
    return isinstance(value, bool)


def are_names(value: object, kind: type[tuple[Any, ...] | frozenset[Any]] = tuple) -> bool:
    return isinstance(value, kind) and all(isinstance(each, str) and _NAME.fullmatch(each) for each in value)


NAME: Rules = {"name": ("is a name in lower case", lambda value: are_names((value,)))}

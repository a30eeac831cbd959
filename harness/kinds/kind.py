"""A row of the table of claim kinds. What it names in other layers is a `module:attribute`, imported at its use."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from harness.errors import KindError
from harness.kinds.deciding import Deciding

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_STATUSES = ("FAIL", "INCONCLUSIVE", "NOT_RUN", "ERROR")  # a PASS is not for a kind to word


@dataclass(frozen=True, kw_only=True)
class Kind:
    """All that the harness has to know of one kind of claim; no field may be left out (`KindError`)."""

    name: str
    """What a contract writes as `kind`."""
    model: str
    """`module:attribute` of the model, a subclass of `harness.contract.base.Judged`."""
    judge: str
    """`module:attribute` of the judge: a function of the part, the context and the sheet."""
    probes: Mapping[str, tuple[str, ...]]
    """The probes it is judged from (modules of `harness.runners`), each with the model's fields that it is given.
    Where there are several the model's `chosen_probe` picks one."""
    capabilities: frozenset[str]
    """Capabilities that the systems of all its arms must have; may be empty."""
    judges_unreadable_device: bool
    """Whether a device that is there and cannot be read is evidence for it, and no obstacle."""
    card: tuple[str, ...]
    """Anchors of the report's sections that show what it is judged from."""
    deciding: tuple[Deciding, ...]
    """The figures that decide it, each with its demand; the first that there is stands for a claim that holds."""
    evidence_faults: tuple[str, ...]
    """`module:attribute` of each `harness.drill.evidence_faults.EvidenceFault` that it must notice."""
    reasons: Mapping[str, tuple[str, str]]
    """Reason codes of its own beside those of `harness.judge.reasons`: code to status and sentence; may be empty."""

    # The dataclass's own error for a field that is missing names neither the row nor what belongs there.
    def __new__(cls, **given: Any) -> Self:
        for field in fields(cls):
            if field.name not in given:
                raise _error(given.get("name", "?"), field.name, "must be given", "nothing")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for field, (rule, holds) in _RULES.items():
            value = getattr(self, field)
            if not holds(value):
                raise _error(self.name, field, rule, repr(value))


def resolve(reference: str) -> Any:
    """What `module:attribute` names. Raises KindError when it cannot be imported, or has no such attribute."""
    module, _, attribute = reference.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # a package from elsewhere may raise anything
        raise KindError(
            "what the table of claim kinds names must be importable",
            where=reference,
            got=f"{type(error).__name__}: {error}",
            remedy="correct the reference, or install what it needs",
        ) from error


def _error(name: object, field: str, rule: str, got: str) -> KindError:
    return KindError(
        f"the field `{field}` {rule}", where=f"claim kind '{name}'", got=got, remedy="see docs/adding-a-claim-kind.md"
    )


def _is_reference(value: object) -> bool:
    return isinstance(value, str) and _REFERENCE.fullmatch(value) is not None


def _are_names(value: object, kind: type[tuple[Any, ...] | frozenset[Any]]) -> bool:
    return isinstance(value, kind) and all(isinstance(each, str) and _NAME.fullmatch(each) for each in value)


def _are_probes(value: object) -> bool:
    return (
        isinstance(value, Mapping)
        and len(value) > 0
        and _are_names(tuple(value), tuple)
        and all(_are_names(settings, tuple) for settings in value.values())
        and not value.get("paired")  # many kinds share its runs, so they take no settings
    )


def _are_reasons(value: object) -> bool:
    return (
        isinstance(value, Mapping)
        and _are_names(tuple(value), tuple)
        and all(
            isinstance(reason, tuple) and len(reason) == 2 and reason[0] in _STATUSES and str(reason[1]).endswith(".")
            for reason in value.values()
        )
    )


_RULES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "name": ("is a name in lower case", lambda value: _are_names((value,), tuple)),
    "model": ("names a model as `module:attribute`", _is_reference),
    "judge": ("names a function as `module:attribute`", _is_reference),
    "probes": ("maps at least one probe to a tuple of fields", _are_probes),
    "capabilities": ("is a frozenset of names", lambda value: _are_names(value, frozenset)),
    "judges_unreadable_device": ("is True or False", lambda value: isinstance(value, bool)),
    "card": ("is a tuple of at least one section", lambda value: bool(value) and _are_names(value, tuple)),
    "deciding": (
        "is a tuple of at least one `harness.kinds.Deciding`",
        lambda value: isinstance(value, tuple) and bool(value) and all(isinstance(one, Deciding) for one in value),
    ),
    "evidence_faults": (
        "is a tuple of at least one `module:attribute`",
        lambda value: isinstance(value, tuple) and bool(value) and all(map(_is_reference, value)),
    ),
    "reasons": (
        f"maps codes to a status ({', '.join(_STATUSES)}) and a sentence that ends with a full stop",
        _are_reasons,
    ),
}

"""Define a row of the table of claim kinds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from harness.kinds.checks import are_left_out
from harness.kinds.probes import BUILT_IN
from harness.kinds.row import NAME, Row, are_names, is_flag, is_reference

_STATUSES = ("FAIL", "INCONCLUSIVE", "NOT_RUN", "ERROR")  # a PASS is not for a kind to word


@dataclass(frozen=True, kw_only=True)
class Kind(Row):
    """All that the harness has to know of one kind of claim; no field may be left out (`KindError`)."""

    called: ClassVar = "claim kind"
    name: str
    """What a contract writes as `kind`."""
    model: str
    """`module:attribute` of the model, a subclass of `harness.contract.base.Judged`."""
    judge: str
    """`module:attribute` of the judge: a function of the part, the context and the sheet."""
    probes: Mapping[str, tuple[str, ...]]
    """The probes it is judged from (`harness.kinds.probes`), each with the model's fields that it is given.
    Where there are several the model's `chosen_probe` picks one."""
    capabilities: frozenset[str]
    """Capabilities that the systems of all its arms must have; may be empty."""
    judges_unreadable_device: bool
    """Whether a device that is there and cannot be read is evidence for it, and no obstacle."""
    compares: str | None
    """`module:attribute` of a function of the part and a run: the series that the judge compares, which charts draw
    (`harness.judging.compared_series`). None: it compares none."""
    card: tuple[str, ...]
    """Anchors of the report's sections that show what it is judged from."""
    evidence_faults: tuple[str, ...]
    """`module:attribute` of each `harness.drill.evidence_faults.EvidenceFault` that it must notice."""
    leaves_out: Mapping[str, str]
    """Shared checks (`harness.kinds.checks`) that it does not ask, with the reason; may be empty."""
    reasons: Mapping[str, tuple[str, str]]
    """Reason codes besides those of `harness.judging.reasons`: code to status and sentence; may be empty."""


def _are_probes(value: object) -> bool:
    return (
        isinstance(value, Mapping)
        and len(value) > 0
        and are_names(tuple(value))
        and all(are_names(settings) for settings in value.values())
        and not any(value[name] for name, probe in BUILT_IN.items() if probe.arm_by_arm and name in value)
    )


def _are_reasons(value: object) -> bool:
    return (
        isinstance(value, Mapping)
        and are_names(tuple(value))
        and all(
            isinstance(reason, tuple) and len(reason) == 2 and reason[0] in _STATUSES and str(reason[1]).endswith(".")
            for reason in value.values()
        )
    )


Kind.rules = {
    **NAME,
    "model": ("names a model as `module:attribute`", is_reference),
    "judge": ("names a function as `module:attribute`", is_reference),
    "probes": ("maps at least one probe to a tuple of fields", _are_probes),
    "capabilities": ("is a frozenset of names", lambda value: are_names(value, frozenset)),
    "judges_unreadable_device": ("is True or False", is_flag),
    "compares": (
        "names a function as `module:attribute`, or is None",
        lambda value: value is None or is_reference(value),
    ),
    "card": ("is a tuple of at least one section", lambda value: bool(value) and are_names(value)),
    "evidence_faults": (
        "is a tuple of at least one `module:attribute`",
        lambda value: isinstance(value, tuple) and bool(value) and all(map(is_reference, value)),
    ),
    "leaves_out": (
        "maps shared checks, roles, or `check.role` to a reason that ends with a full stop",
        are_left_out,
    ),
    "reasons": (
        f"maps codes to a status ({', '.join(_STATUSES)}) and a sentence that ends with a full stop",
        _are_reasons,
    ),
}

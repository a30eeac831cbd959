"""A row of the table of claim kinds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from harness.kinds.checks import are_left_out
from harness.kinds.probes import BUILT_IN
from harness.kinds.row import NAME, Row, are_names, is_flag, is_reference

_STATUSES = ("FAIL", "INCONCLUSIVE", "NOT_RUN", "ERROR")  # a PASS is not for a kind to word
Rule = Literal["none", "exactly", "at least", "at most"]


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
    leaves_out: Mapping[str, str]
    """Shared checks (`harness.kinds.checks`) that it does not ask, with the reason; may be empty."""
    reasons: Mapping[str, tuple[str, str]]
    """Reason codes of its own beside those of `harness.judge.reasons`: code to status and sentence; may be empty."""


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
    "card": ("is a tuple of at least one section", lambda value: bool(value) and are_names(value)),
    "deciding": (
        "is a tuple of at least one `harness.kinds.Deciding`",
        lambda value: isinstance(value, tuple) and bool(value) and all(isinstance(one, Deciding) for one in value),
    ),
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


@dataclass(frozen=True)
class Interval:
    """What a figure was measured to lie between, by its own name for itself.

    low, high: figures. confidence: the model's field that has it, or a number. over: a denominator.
    """

    low: str
    high: str
    confidence: str | float
    called: str
    over: str


@dataclass(frozen=True)
class Deciding:
    """A figure and the demand that it is held against.

    figure: its name in the verdict, or a denominator's; `*` stands for any, of which the worst counts, `{field}` for
    the model's own value. demand: the model's field that demands it, in the words of `broken_by`. Under `none` the
    field has no number: of the denominator `of`, nothing may be what `noun` says.
    """

    figure: str
    rule: Rule
    demand: str
    of: str = ""
    noun: str = ""  # follows the figure in place of its unit
    when: tuple[str, object] | None = None  # a field of the model and its value; elsewhere this figure decides nothing
    bound: float | None = None  # in place of the number at `demand`
    of_demand: str = ""  # follows the demand where it is no plain number of the figure's unit, such as `a layer`
    percent: bool = False  # a share, which people read in percent
    interval: Interval | None = None
    refutes: bool = False  # what decides a violation, and nothing that holds: it is read in the candidate's favour

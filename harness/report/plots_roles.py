"""How an arm is drawn: a colour, a width and a pattern for each role, the same in every plot of every page."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from harness.report.svg import BASELINE, CANDIDATE, CONTROL, REPLICA, SERIES

BROAD = 5.0  # points, of whatever is the baseline's: what lies on it is seen, and so is the band on both sides


class Role(StrEnum):
    """What an arm is to the claim that a plot belongs to."""

    BASELINE = "baseline"
    CANDIDATE = "candidate"
    CONTROL = "control"  # one that must differ, or that does not train
    REPLICA = "again"  # a further run of what is drawn as the baseline
    OTHER = ""  # an arm that no claim compares


COLOURS = {
    Role.BASELINE: BASELINE,
    Role.CANDIDATE: CANDIDATE,
    Role.CONTROL: CONTROL,
    Role.REPLICA: REPLICA,
    Role.OTHER: SERIES[5],
}
_LINES: Mapping[Role, Mapping[str, Any]] = {
    Role.BASELINE: {"lw": BROAD, "zorder": 2.0},
    Role.CANDIDATE: {"lw": 1.4, "zorder": 2.3},
    Role.CONTROL: {"lw": 1.4, "ls": "--", "zorder": 2.1},
    Role.REPLICA: {"lw": 1.4, "ls": ":", "zorder": 2.2},
    Role.OTHER: {"lw": 1.4, "ls": "-.", "zorder": 2.1},
}


def line_of(role: Role) -> dict[str, Any]:
    """The style of a line; the baseline's lies below all others, so that equal arms both show."""
    return {"color": COLOURS[role], **_LINES[role]}


def name_of(arm: str, role: Role) -> str:
    """An arm's name in a legend."""
    return f"{arm} ({role})" if role else arm

"""Which steps of an arm were watched one by one: a look at a few of them says nothing of the others."""

from __future__ import annotations

from typing import NamedTuple

from harness.judge import reasons


class Finding(NamedTuple):
    """A reason code with its sentence."""

    reason: str
    message: str


class JudgedSteps(NamedTuple):
    """The steps that an arm was called for, and how many of them no watcher can be asked to have seen.

    A step that captures waits and does more than a replay does, and the first one, or each first one of a schedule of
    shapes, is recorded under modes of its own.
    """

    called: int
    unseen: int


def unwatched(what: str, watched: int, steps: JudgedSteps) -> Finding | None:
    """What speaks against every step having been watched that can be; `what` was to be seen there. None: nothing."""
    if watched >= steps.called - steps.unseen:
        return None
    return Finding(reasons.STEPS_UNWATCHED, f"{what} were looked for in {watched} of its {steps.called} judged steps")

"""Cases of runs_differ and capture_fallback: evidence that passes, with one thing changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from evidence_builders import BATCHES, LOSSES, STEPS, arm, counted, cuda_graph, graphed, paired, unrecorded, verdict_of
from judge_cases import Case
from judge_cases_end_state import NO_GENERATOR

from harness.judging.verdict import Verdict

DIFFER: dict[str, Any] = {
    "kind": "runs_differ",
    "candidate": "synchronizing",
    "baseline": "ungraphed",
    "steps": STEPS,
    "losses_from": 1,
    "batches": True,
    "start": True,
}
OTHER_LOSSES = LOSSES + 1e-9
OTHER_BATCHES = [f"other {batch}" for batch in BATCHES]


def differing(losses: Any = OTHER_LOSSES, *, claim: dict[str, Any] | None = None, **changes: Any) -> Verdict:
    """Return the verdict on an arm that differs from `ungraphed` in everything, with changes."""
    other = arm("synchronizing", losses, **{"start": "other", "end": "other end", "batches": OTHER_BATCHES, **changes})
    return verdict_of(DIFFER | (claim or {}), paired(arm("ungraphed"), other))


def with_equal(step: int) -> Any:
    """Return losses that differ in every step but one."""
    return np.where(np.arange(STEPS) == step, LOSSES, OTHER_LOSSES)


DIFFER_CASES = [
    Case("another seed", "held", differing),
    Case("equal before any update", "held", lambda: differing(with_equal(0))),
    Case("losses alone", "held", lambda: differing(claim={"batches": False, "start": False}, batches=BATCHES)),
    Case("one loss equal", "losses_equal", lambda: differing(with_equal(7))),
    Case("an ignored seed", "losses_equal", lambda: differing(LOSSES, start="start", batches=BATCHES)),
    Case("one batch equal", "batches_equal", lambda: differing(batches=[*OTHER_BATCHES[:-1], BATCHES[-1]])),
    Case("an equal start", "start_equal", lambda: differing(start="start")),
    Case("fewer steps", "vacuous_steps", lambda: differing(OTHER_LOSSES[:9], batches=OTHER_BATCHES[:9])),
    Case("a single step", "vacuous_steps", lambda: differing(OTHER_LOSSES[:1], batches=["other"], claim={"steps": 1})),
    Case("tensors at the end that were not counted", "evidence_inconsistent", lambda: differing(**NO_GENERATOR)),
    Case("one arm alone", "evidence_missing", lambda: verdict_of(DIFFER, paired(arm("ungraphed")))),
]

FALLBACK: dict[str, Any] = {
    "kind": "capture_fallback",
    "candidate": "graphed",
    "baseline": "ungraphed",
    "steps": STEPS,
}
FAILED: dict[str, Any] = {
    "captured": False,
    "failure": "a sync at clip.py:7",
    "captures": 0,
    "replays": 0,
    "uncaptured_steps": STEPS,
    "nodes": [],
    "device_work": None,
}


def fallen_back(
    losses: Any = LOSSES,
    *,
    attempts: int | None = 1,
    unasked: int | None = 0,
    claim: dict[str, Any] | None = None,
    capture: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Verdict:
    """Return the verdict on an arm whose capture failed, with changes."""
    ours = arm("graphed", losses, capture=cuda_graph(**{**FAILED, **(capture or {})}), **changes)
    run = paired(counted(arm("ungraphed"), unasked), counted(ours, attempts, attempts or 0))
    return verdict_of(FALLBACK | (claim or {}), run)


FALLBACK_CASES = [
    Case("a failed capture", "held", fallen_back),
    Case("two attempts that are demanded", "held", lambda: fallen_back(attempts=2, claim={"attempts": 2})),
    Case(
        "a traced one where another mechanism is demanded",
        "mechanism_missing",
        lambda: fallen_back(claim={"mechanism": "cuda_graph"}, capture={"mechanism": "traced"}),
    ),
    Case("a capture that succeeded", "vacuous_captured", lambda: fallen_back(capture={"captured": True})),
    Case("replays of no capture", "vacuous_captured", lambda: fallen_back(capture={"replays": 3})),
    Case("no reason", "fallback_unsaid", lambda: fallen_back(capture={"failure": None})),
    Case("a blank reason", "fallback_unsaid", lambda: fallen_back(capture={"failure": " "})),
    Case("steps that were not reported", "fallback_unsaid", lambda: fallen_back(capture={"uncaptured_steps": 9})),
    Case("tried again", "capture_attempts", lambda: fallen_back(attempts=STEPS)),
    Case("never tried", "capture_attempts", lambda: fallen_back(attempts=0)),
    Case("a capture that was not requested", "captured_unasked", lambda: fallen_back(unasked=1)),
    Case("attempts not watched", "evidence_missing", lambda: fallen_back(attempts=None)),
    Case("the baseline's attempts not watched", "evidence_missing", lambda: fallen_back(unasked=None)),
    Case(
        "no record", "evidence_missing", lambda: verdict_of(FALLBACK, paired(arm("ungraphed"), unrecorded(graphed())))
    ),
    Case("a loss of its own", "differs", lambda: fallen_back([*LOSSES[:9], 1.0])),
    Case("fewer steps", "vacuous_steps", lambda: fallen_back(LOSSES[:9], capture={"uncaptured_steps": 9})),
    Case("tensors at the end that were not counted", "evidence_inconsistent", lambda: fallen_back(**NO_GENERATOR)),
]

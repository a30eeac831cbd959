"""Plan the run that looks for the first difference between the two trainings that a claim compares."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence

from harness.contract.claims import AnyClaim, AnyPart, parts_of
from harness.evidence.plan_records import PlannedArm, Run, Unit

LIMIT_S = 60.0  # for all executions of both arms
# Of a verdict: the step at which a difference was seen, which is the first one or a later one.
_SEEN_AT = ("first_differing_step", "first_exceeding_step", "first_unequal_step", "first_non_finite_step")
_BLOCK = "first_differing_block"  # its first step
_NOISE = "noise_floor"  # how far two executions of the baseline were apart


def where_run(
    claim: AnyClaim, unit: Unit, runs: Sequence[Run], figures: Mapping[str, object], limit_s: float = LIMIT_S
) -> Run | None:
    """Return the run that looks for the first step in which two executions of a claim differ.

    runs: those that decided the unit. figures: the values of its verdict's, by name. Returns None if its kind does not
    compare trainings, or no run has its arms.
    """
    part = next((part for part in parts_of(claim) if part.must_train_alike), None)
    planned: dict[str, PlannedArm] = {arm: each for run in runs for arm, each in run.arms.items()}
    if part is None or not planned:
        return None
    named, between = part.arms(), part.between_steps()
    arm, baseline = named["candidate"], named.get("baseline", named["candidate"])
    if not {arm, baseline} <= planned.keys() or runs[0].ranks > 1:
        return None
    candidate = f"{arm} with {', '.join(between)}" if between else arm
    arms = {baseline: planned[baseline], candidate: planned[arm]}
    steps, values = runs[0].workload.steps, {name.rpartition(".")[2]: value for name, value in figures.items()}
    settings: dict[str, object] = {
        "candidate": candidate,
        "baseline": baseline,
        "last": min(_last_step(part, values, steps), steps - 1),
        "observed": False,
        "limit_s": limit_s,
        "deterministic": bool(values.get(_NOISE)),  # else the first difference is that of two executions of one arm
        **{setting: {candidate: value} for setting, value in between.items()},
    }
    fields = (
        "contract",
        "workload_name",
        "workload",
        "fault",
        "data",
        "model_directory",
        "wall_limit_s",
        "heartbeat_s",
    )
    return Run(
        id=where_name(unit),
        probe="where",
        arms={name: each.model_copy(update={"replicas": 1, "first_replica": 0}) for name, each in arms.items()},
        settings=settings,
        fault_arms=[candidate if each == arm else each for each in runs[0].fault_arms],
        **{name: getattr(runs[0], name) for name in fields},
    )


def where_name(unit: Unit) -> str:
    """Return the id of a unit's run, which is a folder's name, too."""
    names = (unit.contract, unit.claim, unit.workload)
    digest = hashlib.sha256("+".join(names).encode()).hexdigest()[:8]
    return f"{re.sub(r'[^A-Za-z0-9_.-]+', '_', unit.claim)[:80]}+{digest}"


def _last_step(part: AnyPart, values: Mapping[str, object], steps: int) -> int:
    """Return the last step that may be the first one to differ, by what the verdict saw."""
    seen = [value for name in _SEEN_AT if type(value := values.get(name)) is int]
    if type(block := values.get(_BLOCK)) is int:
        seen.append(block + int(getattr(part, "every", 1)) - 1)
    return min(seen, default=steps - 1)

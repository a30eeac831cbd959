"""Join one run's evidence from that of its lanes, the processes that executed a part of it each.

The whole run stands in `run.json`, and each lane's part in the `run.json` of its folder: together the parts are every
execution of the run, each once. A lane that died or is missing costs the arms that it had, and no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.evidence import layout
from harness.evidence.base import Cause
from harness.evidence.files import Damaged
from harness.evidence.plan_records import Run
from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.evidence.run_records import ArmFailed
from harness.evidence.serving import PART, serves

Execution = tuple[str, int]  # arm and replica


@dataclass(frozen=True)
class Lane:
    """One lane as its folder has it."""

    name: str
    run: Run
    evidence: RunEvidence


def lane_folders(directory: Path) -> list[Path]:
    """Return the folders of a run's lanes, by number; none for a run executed in one process, or not at all."""
    folders = [path for path in directory.glob(f"{layout.LANE}*") if path.is_dir() and not path.is_symlink()]
    numbered = {path: path.name.removeprefix(layout.LANE) for path in folders}
    return sorted(
        (path for path, number in numbered.items() if number.isdecimal()), key=lambda path: int(numbered[path])
    )


def joined(run: Run, lanes: Sequence[Lane], unreadable: Sequence[str]) -> RunEvidence:
    """Return the evidence of `run`, as one process would have left it. `unreadable`: lanes whose part is unknown.

    Raises `Damaged` where the lanes are not parts of this run, or two of them had the same execution.
    """
    executed: dict[Execution, ArmEvidence] = {}
    failed: dict[str, ArmFailed] = {}
    for lane in lanes:
        _require_part(lane, run)
        failed = {**_failures(lane), **failed}
        for arm, executions in lane.evidence.arms.items():
            executed |= dict(zip([(arm, replica) for replica in lane.run.arms[arm].indices], executions, strict=False))
    for arm, replica in missing(run, [lane.run for lane in lanes]):
        lost = f"no lane has replica {replica}; " + "; ".join(unreadable)
        cause: Cause = "garbage" if unreadable else "incomplete"
        failed.setdefault(arm, ArmFailed(arm=arm, cause=cause, detail=lost.rstrip("; "), phase=None, stack=""))
    seen = [lane.evidence for lane in lanes]
    obstacle = next((one.obstacle for one in seen if one.obstacle is not None), None)
    others = [record for one in seen for record in one.of_packages]
    return RunEvidence(run.id, run.probe, _by_arm(executed), failed=failed, obstacle=obstacle, of_packages=others)


def missing(run: Run, lanes: Sequence[Run]) -> list[Execution]:
    """Return the executions of `run` that no lane has. Raises `Damaged` for one in two lanes, or one not planned."""
    held = [execution for lane in lanes for execution in lane.executions()]
    for arm, replica in held:
        if held.count((arm, replica)) > 1:
            raise Damaged(f"two lanes hold arm {arm}, replica {replica}")
        if (arm, replica) not in run.executions():
            raise Damaged(f"a lane holds arm {arm}, replica {replica}, which was not planned")
    return [execution for execution in run.executions() if execution not in held]


def _require_part(lane: Lane, run: Run) -> None:
    """Raise `Damaged` unless a lane is the run itself with fewer executions."""
    if not serves(run, lane.run, PART):
        raise Damaged(f"{lane.name}/{layout.RUN} is no part of this run")
    for arm, executions in lane.evidence.arms.items():
        if len(executions) > lane.run.arms[arm].replicas:
            raise Damaged(f"{lane.name} holds more executions of arm {arm} than were planned")


def _failures(lane: Lane) -> dict[str, ArmFailed]:
    """Return, by arm, what ended the arm, or the lane that the arm was in."""
    death = lane.evidence.death
    if death is None:
        return lane.evidence.failed
    ended = {
        arm: ArmFailed(arm=arm, cause=death.cause, detail=death.detail, phase=death.phase, stack=death.stack)
        for arm in lane.run.arms
    }
    return {**ended, **lane.evidence.failed}


def _by_arm(executed: dict[Execution, ArmEvidence]) -> dict[str, list[ArmEvidence]]:
    """Return replicas in order. One whose predecessor is missing is left out: it would take that one's place."""
    arms: dict[str, list[ArmEvidence]] = {}
    for arm, replica in sorted(executed):
        if replica == len(arms.get(arm, [])):
            arms.setdefault(arm, []).append(executed[arm, replica])
    return arms

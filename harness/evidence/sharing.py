"""Join one run's evidence from that of other processes: of its lanes, or of a run that executed equal arms for both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import eq
from pathlib import Path
from typing import TypeVar

from harness.evidence import layout
from harness.evidence.arm_records import ArmEnd, Gradients, HostSyncEvidence
from harness.evidence.base import Cause, Record, RunRecord
from harness.evidence.files import Damaged
from harness.evidence.plan_records import Run
from harness.evidence.run_evidence import ArmEvidence, RunEvidence, execution_of, recorded_in
from harness.evidence.run_records import ArmFailed
from harness.evidence.serving import PART, SAME, SHARED, differences, reads_gradients, serves
from harness.kinds import probe_named

# Join one run's evidence from that of its lanes, the processes that executed a part of it each.
#
# The whole run stands in `run.json`, and each lane's part in the `run.json` of its folder: together
# the parts are every execution of the run, each once. A lane that died or is missing costs the arms
# that it had, and no others.

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


# The executed run, the host, holds the evidence. Its guest's directory holds `run.json`, with what
# the guest's claims demand, and `shared.json`, which names the host and maps each of the guest's
# arms to one of the host's.

Named = TypeVar("Named", bound=RunRecord)


class Shared(Record):
    """`shared.json`: the run whose process executed this one's arms, and by which names it knows them."""

    run: str
    arms: dict[str, str]


def lacks(host: Run, guest: Run, arms: Mapping[str, str]) -> str | None:
    """Return what the host's run lacks, or has different, of what the guest's demands; None if it serves the guest too.

    arms: the guest's names of arms -> the host's.
    """
    if not probe_named(guest.probe).arm_by_arm:
        return None if serves(host, guest, SAME) and all(map(eq, arms, arms.values())) else "an equal run"
    if set(arms) != set(guest.arms) or len(set(arms.values())) < len(arms) or not set(arms.values()) <= set(host.arms):
        return "one arm of its own for each of the guest's"
    found = next(differences(host, guest, SHARED, arms), None)
    if found is None:
        return None
    for name, there in arms.items():
        if found.field.startswith(f"arms.{there}."):
            what = "repetitions" if found.field.endswith(".replicas") else "settings"
            return f"the {what} of arm {name}, there {there}"
    return f"{found.field} is {found.made}, and {found.demanded} is demanded"


def seen_by(guest: Run, host: RunEvidence, arms: Mapping[str, str]) -> RunEvidence:
    """Return the evidence of `host` as `guest`, a run that it serves, would have left it; one end is that of both."""
    if not probe_named(guest.probe).arm_by_arm:
        return replace(host, run_id=guest.id)
    ours = {there: name for name, there in arms.items()}
    executed = {
        name: [_renamed(one, guest, name, ours) for one in host.arms[there] if one.start.replica in planned.indices]
        for name, planned in sorted(guest.arms.items())  # as they are read from a directory
        if (there := arms[name]) in host.arms
    }
    failed = {name: _named(host.failed[there], name, ours) for name, there in arms.items() if there in host.failed}
    others = tuple(seen_by(guest, one, arms) for one in host.ranks[: guest.ranks - 1])
    named = [(one, getattr(one, "arm", None)) for one in host.of_packages]
    of_packages = [_named(one, ours[arm], ours) if arm else one for one, arm in named if arm is None or arm in ours]
    return replace(host, run_id=guest.id, arms=executed, failed=failed, ranks=others, of_packages=of_packages)


def _renamed(seen: ArmEvidence, guest: Run, name: str, ours: Mapping[str, str]) -> ArmEvidence:
    """Return an execution under the guest's name of its arm, without what the guest did not request."""
    steps = guest.gradient_steps if name in reads_gradients(guest) else []
    asked = [
        record
        for record in recorded_in(seen)
        if not isinstance(record, Gradients) or record.step in steps
        if not isinstance(record, HostSyncEvidence) or guest.arms[name].observe_syncs
    ]
    return execution_of(seen.series, [_named(record, name, ours) for record in asked])


def _named(record: Named, name: str, ours: Mapping[str, str]) -> Named:
    """Return a record under the guest's name of its arm, without its statements about arms that the guest lacks."""
    changes: dict[str, object] = {"arm": name}
    if isinstance(record, ArmEnd):
        for field, seen in (("differences", record.differences), ("moved_apart", record.moved_apart)):
            known = [one.model_copy(update={"arm": ours[one.arm]}) for one in seen or () if one.arm in ours]
            changes[field] = None if seen is None else known
    elif isinstance(record, Gradients):
        changes["baseline"] = ours.get(record.baseline or "")
    return record.model_copy(update=changes)

"""Derive one run's evidence from that of another, whose process executed equal arms for both.

The executed run, the host, holds the evidence. Its guest's directory holds `run.json`, with what the guest's claims
demand, and `shared.json`, which names the host and maps each of the guest's arms to one of the host's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from operator import eq
from typing import TypeVar

from harness.evidence.arm_records import ArmEnd, Gradients, HostSyncEvidence
from harness.evidence.base import Record, RunRecord
from harness.evidence.plan_records import Run
from harness.evidence.records import execution_of, recorded_in
from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.evidence.serving import SAME, SHARED, differences, reads_gradients, serves
from harness.kinds import probe_named

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

"""What several runs demand alike, executed once: one run is the host of others, and its process executes for all.

Several contracts demand the same of one trainer at one workload (the plain arm, its repetition, the untrained
control), and equal arms of one machine are equal in bits. Where that is untrue it shows in the host's own repetition,
which every guest reads too. Units, runs and judges stay as they are (`harness.evidence.sharing`). Paired runs are
joined arm by arm; of any other probe, a timing say, only runs that are wholly equal are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.contract.schema import Needs
from harness.evidence import layout
from harness.evidence.plan_records import PlannedArm, Run
from harness.evidence.sharing import (
    Shared,
    another_field,
    arm_lacks,
    equal_but_for_names,
    equal_work,
    lacks,
    reads_gradients,
)
from harness.kinds import probe_named
from harness.numbers import dump_json
from harness.runners.remaining import write_run
from harness.system.wrappers import SWAPPED_ARMS

SAVED_AT_LEAST = 0.5  # of the guest's executions; with fewer it would only lengthen the host


@dataclass(frozen=True)
class Guest:
    """A run that another one's process executes. arms: its names of arms -> the host's."""

    run: Run
    arms: dict[str, str]


@dataclass
class Hosted:
    """A run to execute, for itself and for its guests."""

    run: Run
    guests: list[Guest] = field(default_factory=list)

    @property
    def runs(self) -> list[Run]:
        """Itself, then its guests."""
        return [self.run, *(guest.run for guest in self.guests)]

    def takes(self, guest: Run) -> bool:
        """Make the guest one of this run's, where that saves enough; whether it is one now."""
        found = _joined(self.run, guest) if probe_named(guest.probe).arm_by_arm else _same(self.run, guest)
        if found is None:
            return False
        run, arms = found
        # what serves the new guest must still serve the earlier ones
        if lacks(run, guest, arms) or any(lacks(run, one.run, one.arms) for one in self.guests):
            return False
        self.run = run
        self.guests.append(Guest(guest, arms))
        return True


def hosted(runs: Iterable[Run]) -> list[Hosted]:
    """What to execute for all the runs, in their order."""
    found: list[Hosted] = []
    for run in runs:
        if not any(host.takes(run) for host in found):
            found.append(Hosted(run))
    return found


def write_guests(host: Hosted, directories: Mapping[str, Path]) -> None:
    """The directories of the guests' evidence, which say where it lies. directories: by the guests' ids."""
    for guest in host.guests:
        directory = directories[guest.run.id]
        directory.mkdir(parents=True)
        write_run(guest.run, directory)
        shared = Shared(run=host.run.id, arms=guest.arms)
        (directory / layout.SHARED).write_text(dump_json(shared.model_dump(), indent=2) + "\n", encoding="utf-8")


def _same(host: Run, guest: Run) -> tuple[Run, dict[str, str]] | None:
    """Of another probe only a run that is equal is executed once: a timing of the same arms at the same workload."""
    if not equal_but_for_names(host, guest):
        return None
    needs = {"workload": host.workload.model_copy(update={"needs": _needs(host, guest)})}
    return host.model_copy(update=needs), {arm: arm for arm in guest.arms}


def _joined(host: Run, guest: Run) -> tuple[Run, dict[str, str]] | None:
    """The host's run with all that the guest asks for, and the guest's arms by the host's names; None: not together."""
    if another_field(host, guest) is not None:
        return None
    if host.fault == SWAPPED_ARMS:  # arms that change places are opened by one another's plan
        return None
    joined = _with_gradients(host, guest)
    arms: dict[str, str] = {}
    saved = 0
    for name, planned in guest.arms.items():
        there = next(
            (other for other in host.arms if other not in arms.values() and _fits(joined, other, guest, name, arms)),
            None,
        )
        saved += 0 if there is None else planned.replicas
        arms[name] = there or _free_name(name, joined)
        joined = _with_arm(joined, arms[name], planned, guest, name, arms)
    if saved < SAVED_AT_LEAST * sum(planned.replicas for planned in guest.arms.values()):
        return None
    return joined.model_copy(update=_together(joined, guest, arms)), arms


def _with_gradients(host: Run, guest: Run) -> Run:
    """The host with the steps of both; of its arms as many are read as before."""
    if not reads_gradients(guest):
        return host
    steps = sorted({*host.gradient_steps, *guest.gradient_steps})
    return host.model_copy(update={"gradient_steps": steps, "gradient_arms": sorted(reads_gradients(host))})


def _fits(host: Run, there: str, guest: Run, name: str, arms: Mapping[str, str]) -> bool:
    """Whether the host's arm can be the guest's as well, once it is repeated, watched and read as often as both ask."""
    if not equal_work(guest.arms[name], host.arms[there]):
        return False
    baseline = guest.baseline_of.get(name)
    if baseline is not None and list(host.arms).index(arms[baseline]) > list(host.arms).index(there):
        return False  # a baseline leaves its gradients before its candidate is executed
    return arm_lacks(_with_arm(host, there, guest.arms[name], guest, name, arms), there, guest, name, arms) is None


def _with_arm(host: Run, there: str, planned: PlannedArm, guest: Run, name: str, arms: Mapping[str, str]) -> Run:
    """The host, with its arm `there` (a new one, if it has none) as the guest's arm `name` demands it too."""
    known = host.arms.get(there)
    arm = (
        planned
        if known is None
        else known.model_copy(
            update={
                "replicas": max(known.replicas, planned.replicas),
                "observe_syncs": known.observe_syncs or planned.observe_syncs,
                "watch_every_step": known.watch_every_step or planned.watch_every_step,
                "watch_ranks": known.watch_ranks or planned.watch_ranks,
                "micro_batches": known.micro_batches or planned.micro_batches,
                "rounded_to": known.rounded_to or planned.rounded_to,
                "sketches": known.sketches or planned.sketches,
            }
        )
    )
    changes: dict[str, object] = {"arms": {**host.arms, there: arm}}
    if known is None and name in guest.fault_arms:
        changes["fault_arms"] = sorted([*host.fault_arms, there])
    if name in reads_gradients(guest):
        baseline = guest.baseline_of.get(name)
        if baseline is not None and there not in reads_gradients(host):
            changes["baseline_of"] = {**host.baseline_of, there: arms[baseline]}
        changes["gradient_arms"] = sorted({*reads_gradients(host), there})
    return host.model_copy(update=changes)


def _free_name(name: str, host: Run) -> str:
    """The guest's own name of an arm that the host does not have; where the host has another one of it, a new name."""
    free, number = name, 2
    while free in host.arms:
        free, number = f"{name}-{number}", number + 1
    return free


def _together(host: Run, guest: Run, arms: Mapping[str, str]) -> dict[str, object]:
    """Which arms depend on each other, and which must share a process, by the demands of both; the longer limits."""
    groups = [*host.groups, *_named(guest.groups, arms)] if host.groups and guest.groups else []
    compared = None
    if host.compared is not None and guest.compared is not None:
        compared = [*host.compared, *_named(guest.compared, arms)]
    return {
        "workload": host.workload.model_copy(update={"needs": _needs(host, guest)}),
        "groups": groups,
        "compared": compared,
        "wall_limit_s": max(host.wall_limit_s, guest.wall_limit_s),
        "heartbeat_s": max(host.heartbeat_s, guest.heartbeat_s),
    }


def _needs(host: Run, guest: Run) -> Needs:
    """The larger memory, none where one of them declares none; the modules of both."""
    ours, theirs = host.workload.needs, guest.workload.needs
    memory = None
    if ours.memory_gib is not None and theirs.memory_gib is not None:
        memory = max(ours.memory_gib, theirs.memory_gib)
    modules = list(dict.fromkeys([*ours.modules, *theirs.modules]))
    return ours.model_copy(update={"memory_gib": memory, "modules": modules})


def _named(groups: Sequence[Sequence[str]], arms: Mapping[str, str]) -> list[list[str]]:
    return [[arms[name] for name in group if name in arms] for group in groups]

"""Divide the work of runs among processes: execute once what several require alike, and split a long run.

Several contracts require the same of one trainer at one workload (the plain arm, its repetition, the untrained
control), and equal arms of one machine are equal in bits. So one run is the host of others. Where that is untrue it
shows in the host's own repetition, which every guest reads too. Paired runs are joined arm by arm; runs of any other
probe, such as a timing, only if they are wholly equal.

The arms of a run are executed one after the other, and launch-bound arms leave a GPU mostly idle. So a long paired run
is split into lanes: parts that need nothing of each other, each for a process of its own. An arm that is judged by
series and digests alone (the untrained control) is executed next to the rest. Without a GPU a long run would be the
last of a session, on one of its processors. Repetitions of an arm always have a process of their own, since what a
process draws once, such as a seed from its number, repeats within it.

Units, runs and judges stay as they are (`harness.evidence.serving`).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING

from harness.devices.environment import usable_cores
from harness.evidence import layout
from harness.evidence.plan_records import Run
from harness.evidence.read_run import read_records
from harness.evidence.run_evidence import Death
from harness.evidence.run_records import ArmFailed
from harness.evidence.serving import ALIKE, SAME, SHARED, Shared, lacks, of_arms, serves, widened
from harness.kinds import probe_named
from harness.numbers import dump_json
from harness.system.wrappers import SWAPPED_ARMS

if TYPE_CHECKING:
    from harness.execution.watched_worker import Progress

# Another process costs 5 to 10 s: imports, opening, and what the first steps compile. Steps times GiB that the workload
# declares: a step of 28 layers (12 GiB) takes longer than one of a tiny model (2 GiB). On an H200 that was shared,
# 100 of the former took 10 to 45 s an arm; 300 of the latter 2 to 3 s, alone.
SPLIT_FROM_STEP_GIB = 1000
# Of all executions of a run, for each lane without a GPU: there a process takes from the others. 250 steps of
# the reference trainer's tiny model take 15 s on one processor, where another process costs 3 to 5 s.
LANE_STEP_GIB = 250

Execution = tuple[str, int]  # arm and replica


def lanes(run: Run) -> list[Run]:
    """Split the run into parts that may be executed side by side, in the order of their first executions.

    A candidate and its baseline stay together, since their gradients and end states are compared on the device. So
    does every repetition whose end state is compared so (`Run.compared`). All other repetitions share one more
    process. Every execution keeps its arm's name and its number. A run that is not worth a split is returned alone.
    """
    if not probe_named(run.probe).arm_by_arm or run.compared is None or run.fault == SWAPPED_ARMS or run.ranks > 1:
        return [run]  # arms that change places are opened by one another's plan; ranks are processes enough
    apart = _repetitions(run)
    rest = [execution for execution in run.executions() if execution not in apart]
    split = _on_gpu if run.workload.needs.device == "cuda" else _on_processors
    parts = _in_order(run, [*(split(run, rest, len(apart) > 0) or [rest]), apart])
    if len(run.commits) > 1:
        parts = _each_of_one_commit(run, parts)
    return [_lane(run, part) for part in parts] if len(parts) > 1 else [run]


def awaits(lane: Run, other: Run) -> bool:
    """Return True if a lane reads tensors that another lane of its run leaves: a baseline's, of another commit."""
    pairs = {*lane.baseline_of.items(), *(pair for arms in lane.compared or [] for pair in permutations(arms, 2))}
    reading = {arm for arm, planned in lane.arms.items() if planned.commit is None}
    leaving = {arm for arm, planned in other.arms.items() if planned.commit is not None and planned.first_replica == 0}
    return lane.id == other.id and any(arm in reading and baseline in leaving for arm, baseline in pairs)


def _each_of_one_commit(run: Run, parts: Iterable[Sequence[Execution]]) -> list[list[Execution]]:
    """Split the parts by commit: modules of two commits have the same names, so no process can hold both."""
    split = [
        [execution for execution in part if run.arms[execution[0]].commit == commit]
        for part in parts
        for commit in run.commits
    ]
    return _in_order(run, split)


def _repetitions(run: Run) -> list[Execution]:
    """Return the executions that repeat another one, if nothing requires that one in their process."""
    parts = _parts(run, run.executions(), _together(run))
    return [each for part in parts if all(replica > 0 for _, replica in part) for each in part]


def _on_gpu(run: Run, executions: Sequence[Execution], _apart: bool) -> list[list[Execution]]:
    worth_it = _step_gib(run) >= SPLIT_FROM_STEP_GIB
    return _parts(run, executions, _together(run)) if worth_it else []


def _on_processors(run: Run, executions: Sequence[Execution], apart: bool) -> list[list[Execution]]:
    """Return as many parts as are worth a process and have a processor, of about equal size. apart: one part less."""
    number = min(int(_step_gib(run) * len(run.executions())) // LANE_STEP_GIB, usable_cores()) - apart
    if number < 2:
        return []
    filled: list[list[Execution]] = [[] for _ in range(number)]
    whole_arms = [_all_of(run, [arm]) for arm in run.arms]
    for part in sorted(_parts(run, executions, [*_together(run), *whole_arms]), key=len, reverse=True):
        min(filled, key=len).extend(part)
    return _in_order(run, filled)


def _step_gib(run: Run) -> float:
    return run.workload.steps * (run.workload.needs.memory_gib or 1.0)


def _parts(run: Run, executions: Iterable[Execution], demands: Iterable[set[Execution]]) -> list[list[Execution]]:
    """Return the executions in groups that must share a process, as the demands require."""
    parts = [{execution} for execution in executions]
    for together in demands:
        touched = [part for part in parts if part & together]
        parts = [part for part in parts if not part & together]
        parts.append(set().union(*touched))
    return _in_order(run, parts)


def _in_order(run: Run, parts: Iterable[Iterable[Execution]]) -> list[list[Execution]]:
    """Return the parts that are not empty, in the run's order within and between them."""
    order = {execution: number for number, execution in enumerate(run.executions())}
    inside = [sorted(part, key=order.__getitem__) for part in parts]
    return sorted((part for part in inside if part), key=lambda part: order[part[0]])


def _together(run: Run) -> Iterable[set[Execution]]:
    for arms in run.compared or []:
        here = [arm for arm in arms if arm in run.arms]
        yield _all_of(run, here) if len(arms) == 1 else {(arm, run.arms[arm].first_replica) for arm in here}
    for candidate, baseline in run.baseline_of.items():
        here = [arm for arm in (candidate, baseline) if arm in run.arms]
        # every execution of the candidate is compared with gradients that the baseline's first one left
        yield _all_of(run, [candidate] if candidate in here else []) | {(arm, 0) for arm in here}


def _all_of(run: Run, arms: Sequence[str]) -> set[Execution]:
    return {execution for execution in run.executions() if execution[0] in arms}


def _lane(run: Run, part: Sequence[Execution]) -> Run:
    """Return the run with these executions alone. Those of one arm are consecutive: a part has all of them, or one."""
    arms = {}
    for arm, planned in run.arms.items():
        replicas = [replica for name, replica in part if name == arm]
        if replicas:
            arms[arm] = planned.model_copy(update={"first_replica": replicas[0], "replicas": len(replicas)})
    return run.model_copy(update={"arms": arms})


def lane_directories(run: Run, directory: Path) -> list[tuple[Run, Path]]:
    """Return what `supervisor.execute` is to execute for `run`: runs, each with the folder of its evidence.

    The folder of a run with several lanes is made here, with the whole run in it. A lane's is made when it is executed.
    """
    parts = lanes(run)
    if len(parts) == 1:
        return [(run, directory)]
    directory.mkdir(parents=True)
    write_run(run, directory)
    return [(lane, directory / layout.lane_name(number)) for number, lane in enumerate(parts)]


def as_one(tell: Callable[[Progress], None], count: int) -> list[Callable[[Progress], None]]:
    """Return a callback for each of `count` lanes. `tell` gets their progress, and the end when the last one ended."""
    ended: set[int] = set()
    lock = threading.Lock()

    def of_lane(number: int) -> Callable[[Progress], None]:
        def hear(progress: Progress) -> None:
            with lock:
                if progress.phase:
                    ended.discard(number)  # a worker without the arm in which the last one died
                else:
                    ended.add(number)
                over = len(ended) == count
            if progress.phase or over:
                tell(progress)

        return hear

    return [of_lane(number) for number in range(count)]


# Repeat a run without the arm in which its worker died, for the claims that do not name that arm.
#
# The arm's end is recorded before the next worker begins. What the dead worker wrote stays in
# `attempt.<n>/`.


def without_the_arm(run: Run, directory: Path, death: Death, failed: dict[str, ArmFailed]) -> Run | None:
    """Prepare `directory` for the run without the arm in which its worker died, and return that run.

    None if the death is the run's own end: the phase names no arm, or every judgement names that arm and no other arm
    failed, whose cause would be lost. failed: how arms failed in earlier workers of the run, whose records this one may
    have removed; the arm is added. This ends after as many workers as the run has arms, since each leaves one out.
    """
    arm = _arm_in(run, death.phase)
    if arm is None:
        return None
    records, _ = read_records(directory)
    failed.update({record.arm: record for record in records if isinstance(record, ArmFailed)})
    failed.setdefault(
        arm, ArmFailed(arm=arm, cause=death.cause, detail=death.detail, phase=death.phase, stack=death.stack)
    )
    if set(failed) == {arm} and not run.needed(failed):
        return None
    rest = run.model_copy(update={"without": list(failed)})
    _set_aside(directory)
    write_run(rest, directory)
    _write(failed.values(), directory)
    return rest


def _write(records: Iterable[ArmFailed], directory: Path) -> None:
    lines = [dump_json(record.model_dump()) + "\n" for record in records]
    (directory / layout.RECORDS).write_text("".join(lines), encoding="utf-8")


def _arm_in(run: Run, phase: str | None) -> str | None:
    """Return the arm that a run's phase names (`arm.replica: what it does`); None if its probe has no such phases."""
    if not probe_named(run.probe).arm_by_arm or phase is None:
        return None
    return next((arm for arm in run.arms if re.match(rf"{re.escape(arm)}\.\d+: ", phase)), None)


def _set_aside(directory: Path) -> None:
    number = sum(path.name.startswith(layout.ATTEMPT) for path in directory.iterdir())
    kept = [path for path in directory.iterdir() if not path.name.startswith(layout.ATTEMPT)]
    aside = directory / f"{layout.ATTEMPT}{number}"
    aside.mkdir()
    for path in kept:
        path.rename(aside / path.name)


def write_run(run: Run, directory: Path) -> None:
    """Write `run.json`: what the worker reads, and what the evidence says was executed."""
    (directory / layout.RUN).write_text(run_text(run), encoding="utf-8")


def run_text(run: Run) -> str:
    """Return `run.json` as it is written. The order of the arms is the order of their execution."""
    return dump_json(run.model_dump(), indent=2, sort_keys=False) + "\n"


_WHERE_AND_HOW_LONG = ("workload", "wall_limit_s", "heartbeat_s")  # equal runs may need more or less of a machine
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
        """Return the host's run, then its guests' runs."""
        return [self.run, *(guest.run for guest in self.guests)]

    def takes(self, guest: Run) -> bool:
        """Make the guest one of this run's if that saves enough. Return True if it is one now."""
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
    """Return what to execute for all the runs, in their order."""
    found: list[Hosted] = []
    for run in runs:
        if not any(host.takes(run) for host in found):
            found.append(Hosted(run))
    return found


def write_guests(host: Hosted, directories: Mapping[str, Path]) -> None:
    """Write the directories of the guests' evidence, which say where it lies. directories: by the guests' ids."""
    for guest in host.guests:
        directory = directories[guest.run.id]
        directory.mkdir(parents=True)
        write_run(guest.run, directory)
        shared = Shared(run=host.run.id, arms=guest.arms)
        (directory / layout.SHARED).write_text(dump_json(shared.model_dump(), indent=2) + "\n", encoding="utf-8")


def _same(host: Run, guest: Run) -> tuple[Run, dict[str, str]] | None:
    """Return the host's run for an equal guest of another probe, such as a timing, and its arms; None if unequal."""
    if not serves(host, guest, SAME):
        return None
    joined = {name: SHARED[name].joined(getattr(host, name), getattr(guest, name)) for name in _WHERE_AND_HOW_LONG}
    return host.model_copy(update=joined), {arm: arm for arm in guest.arms}


def _joined(host: Run, guest: Run) -> tuple[Run, dict[str, str]] | None:
    """Return the host's run with all that the guest asks for, and guest's arms -> host's; None: not together."""
    # arms that change places are opened by one another's plan
    if not serves(host, guest, ALIKE) or host.fault == SWAPPED_ARMS:
        return None
    arms: dict[str, str] = {}
    saved = 0
    for name, planned in guest.arms.items():
        free = (other for other in host.arms if other not in arms.values())
        there = next((other for other in free if _fits(host, guest, {**arms, name: other}, name)), None)
        saved += 0 if there is None else planned.replicas
        arms[name] = there or _free_name(name, {*host.arms, *arms.values()})
    if saved < SAVED_AT_LEAST * sum(planned.replicas for planned in guest.arms.values()):
        return None
    return widened(host, of_arms(guest, arms)), arms


def _fits(host: Run, guest: Run, arms: Mapping[str, str], name: str) -> bool:
    """Return True if the host's arms can be the guest's as well, once they are repeated, watched and read as often as
    both ask. name: the last of `arms`, whose baseline leaves its gradients before its candidate is executed."""
    joined = widened(host, of_arms(guest, arms))
    order, baseline = list(joined.arms), guest.baseline_of.get(name)
    if baseline is not None and order.index(arms[baseline]) > order.index(arms[name]):
        return False
    return serves(joined, guest, SHARED, arms)


def _free_name(name: str, taken: Collection[str]) -> str:
    """Return a name for a guest's arm that the host lacks: its own or, if another arm has that, a new one."""
    free, number = name, 2
    while free in taken:
        free, number = f"{name}-{number}", number + 1
    return free

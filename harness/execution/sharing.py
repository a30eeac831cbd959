"""Divide the work of runs among processes: execute arms that several runs have in common only once, and split long
runs.

Several contracts often require the same arms of one trainer on one workload, such as the plain arm. Equal arms on one
machine give equal bits. Therefore one run, the host, also executes the arms of other runs, its guests. If equal arms
give different bits after all, a repetition of an arm by the host shows this, and every guest uses this evidence, too.
Runs that compare arms are joined arm by arm. Other runs, such as timings, are joined only if they are completely equal.

A run executes its arms one after the other. An arm of many small kernels leaves a GPU idle for most of the time. A long
run that compares arms is therefore split into lanes. A lane is a part of a run with a separate process. Only lanes of
different commits depend on each other. Without a GPU a long run is split, too. Otherwise this run would still execute
on one processor when all other runs have ended. Repetitions of an arm that need not share a process with a first
execution have a separate process. User code may draw a value only once in each process, such as a seed made from the
process id. In the same process, a repetition would get the same value, and a difference between executions would not
show.

Units, runs and judges do not depend on this division (see `harness.evidence.serving`).
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

# A run on a GPU is split into several processes (lanes) if its number of steps, multiplied by the GiB of memory that
# the workload declares, reaches this number. The declared GiB stand for the time of a step: a step of 28 layers (12
# GiB) takes longer than a step of a tiny model (2 GiB). Each additional process costs 5 to 10 s for imports, opening
# and first compilations. On a shared H200, 100 steps of 28 layers took 10 to 45 s for each arm, and 300 steps of the
# tiny model took 2 to 3 s.
SPLIT_FROM_STEP_GIB = 1000
# A run without a GPU is split into several processes (lanes) if the number of steps, multiplied by the GiB of memory
# that the workload declares, is at least this number for each process. The steps of all executions of the run are added
# up. Each additional process costs 3 to 5 s. In comparison, 250 steps of the reference trainer's tiny model take 15 s
# on one processor.
LANE_STEP_GIB = 250

Execution = tuple[str, int]  # the name of an arm, and the number of its execution (replica), from 0


def lanes(run: Run) -> list[Run]:
    """Split the run into lanes: parts that may execute at the same time. Return the lanes, ordered by their first
    execution.

    A candidate and its baseline stay in one lane, because their gradients and end states are compared on the device.
    Other executions whose end states are compared with each other stay in one lane, too (`Run.compared`). If an arm is
    executed several times, its executions after the first are repetitions. Repetitions that need not be in one lane
    with a first execution form one additional lane. A short run is not split further. Every execution keeps its number
    and the name of its arm.
    """
    if not probe_named(run.probe).arm_by_arm or run.compared is None or run.fault == SWAPPED_ARMS or run.ranks > 1:
        # Do not split the run. If its fault exchanges two arms, a lane would need arms of other lanes. A run with
        # several ranks already has several processes.
        return [run]
    apart = _repetitions(run)
    rest = [execution for execution in run.executions() if execution not in apart]
    split = _on_gpu if run.workload.needs.device == "cuda" else _on_processors
    parts = _in_order(run, [*(split(run, rest, len(apart) > 0) or [rest]), apart])
    if len(run.commits) > 1:
        parts = _each_of_one_commit(run, parts)
    return [_lane(run, part) for part in parts] if len(parts) > 1 else [run]


def awaits(lane: Run, other: Run) -> bool:
    """Return True if `lane` reads tensors that `other` writes: both are lanes (parts) of one run, and an arm in `lane`
    that uses the working tree is compared with the first execution of an arm in `other` that uses a commit."""
    pairs = {*lane.baseline_of.items(), *(pair for arms in lane.compared or [] for pair in permutations(arms, 2))}
    reading = {arm for arm, planned in lane.arms.items() if planned.commit is None}
    leaving = {arm for arm, planned in other.arms.items() if planned.commit is not None and planned.first_replica == 0}
    return lane.id == other.id and any(arm in reading and baseline in leaving for arm, baseline in pairs)


def _each_of_one_commit(run: Run, parts: Iterable[Sequence[Execution]]) -> list[list[Execution]]:
    """Split the parts by commit. The modules of both commits have the same names, so one process can import only the
    modules of one commit."""
    split = [
        [execution for execution in part if run.arms[execution[0]].commit == commit]
        for part in parts
        for commit in run.commits
    ]
    return _in_order(run, split)


def _repetitions(run: Run) -> list[Execution]:
    """Return the repetitions (replica > 0) that need not be in one process with a first execution of an arm."""
    parts = _parts(run, run.executions(), _together(run))
    return [each for part in parts if all(replica > 0 for _, replica in part) for each in part]


def _on_gpu(run: Run, executions: Sequence[Execution], _apart: bool) -> list[list[Execution]]:
    worth_it = _step_gib(run) >= SPLIT_FROM_STEP_GIB
    return _parts(run, executions, _together(run)) if worth_it else []


def _on_processors(run: Run, executions: Sequence[Execution], apart: bool) -> list[list[Execution]]:
    """Return parts of about equal size: at most one for each processor, and each large enough for a separate process.

    Return an empty list if there would be fewer than two parts. apart: True if the repetitions already have a separate
    process; then there is one part fewer.
    """
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
    """Return the executions in groups. Two executions are in one group if one of the sets in `demands` contains both,
    or if a chain of such sets connects them."""
    parts = [{execution} for execution in executions]
    for together in demands:
        touched = [part for part in parts if part & together]
        parts = [part for part in parts if not part & together]
        parts.append(set().union(*touched))
    return _in_order(run, parts)


def _in_order(run: Run, parts: Iterable[Iterable[Execution]]) -> list[list[Execution]]:
    """Sort the executions in each part, and then sort the parts. Executions have the run's order, and parts the order
    of their first executions. Empty parts are left out."""
    order = {execution: number for number, execution in enumerate(run.executions())}
    inside = [sorted(part, key=order.__getitem__) for part in parts]
    return sorted((part for part in inside if part), key=lambda part: order[part[0]])


def _together(run: Run) -> Iterable[set[Execution]]:
    for arms in run.compared or []:
        here = [arm for arm in arms if arm in run.arms]
        yield _all_of(run, here) if len(arms) == 1 else {(arm, run.arms[arm].first_replica) for arm in here}
    for candidate, baseline in run.baseline_of.items():
        here = [arm for arm in (candidate, baseline) if arm in run.arms]
        # The gradients of every execution of the candidate are compared with those of the baseline's first execution,
        # so all these executions must be in one process.
        yield _all_of(run, [candidate] if candidate in here else []) | {(arm, 0) for arm in here}


def _all_of(run: Run, arms: Sequence[str]) -> set[Execution]:
    return {execution for execution in run.executions() if execution[0] in arms}


def _lane(run: Run, part: Sequence[Execution]) -> Run:
    """Return the run with only the executions in `part`. The numbers of each arm's executions must be consecutive."""
    arms = {}
    for arm, planned in run.arms.items():
        replicas = [replica for name, replica in part if name == arm]
        if replicas:
            arms[arm] = planned.model_copy(update={"first_replica": replicas[0], "replicas": len(replicas)})
    return run.model_copy(update={"arms": arms})


def lane_directories(run: Run, directory: Path) -> list[tuple[Run, Path]]:
    """Return the lanes of `run` (its parts), each with the folder for its evidence. Each lane is executed separately.

    A run that is not split is its only lane. If there are several lanes, the run's folder is created, with a `run.json`
    about the whole run. The folders of the lanes are not created here.
    """
    parts = lanes(run)
    if len(parts) == 1:
        return [(run, directory)]
    directory.mkdir(parents=True)
    write_run(run, directory)
    return [(lane, directory / layout.lane_name(number)) for number, lane in enumerate(parts)]


def as_one(tell: Callable[[Progress], None], count: int) -> list[Callable[[Progress], None]]:
    """Return one callback for each of `count` lanes (parts of a run). Each callback calls `tell` with the progress of
    its lane. The end of a lane (an empty phase) is passed on to `tell` only when all lanes have ended."""
    ended: set[int] = set()
    lock = threading.Lock()

    def of_lane(number: int) -> Callable[[Progress], None]:
        def hear(progress: Progress) -> None:
            with lock:
                if progress.phase:
                    # A lane may continue after its end was reported: if its worker died, a new worker executes the lane
                    # without the arm in which the worker died.
                    ended.discard(number)
                else:
                    ended.add(number)
                over = len(ended) == count
            if progress.phase or over:
                tell(progress)

        return hear

    return [of_lane(number) for number in range(count)]


# The code below repeats a run without an arm if the run's worker died in this arm. Claims that do not need the arm can
# then be judged. The arm's failure is recorded before the next worker begins. The files of the dead worker are kept in
# `attempt.<n>/`.


def without_the_arm(run: Run, directory: Path, death: Death, failed: dict[str, ArmFailed]) -> Run | None:
    """Return the run without the arm in which its worker died, and prepare `directory` for another worker.

    Return None if the phase in `death` names no arm. Also return None if every judgement needs the arm and no other arm
    has failed. If another arm has failed, the run continues, so that the causes of all failures are recorded.

    failed: the failures so far, by arm; the failure of this arm is added. Each call adds at least one failure, so the
    number of workers of a run is limited.
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
    """Return the arm with whose name the phase begins, as in `captured.0: steps`, or None if there is no such arm."""
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
    """Write the `run.json` of a run. The worker reads this file, and it is part of the evidence."""
    (directory / layout.RUN).write_text(run_text(run), encoding="utf-8")


def run_text(run: Run) -> str:
    """Return the text of `run.json`. The arms keep their order, because they are executed in this order."""
    return dump_json(run.model_dump(), indent=2, sort_keys=False) + "\n"


# Fields that may differ between a host (a run that is executed) and a guest (a run that uses the host's evidence). The
# joined run gets a value that is large enough for both.
_WHERE_AND_HOW_LONG = ("workload", "wall_limit_s", "heartbeat_s")
# A guest is a run that uses the evidence of another run, its host. A run becomes a guest only if the host makes at
# least this share of the guest's executions anyway. With a smaller share, a separate process for the run is faster.
SAVED_AT_LEAST = 0.5


@dataclass(frozen=True)
class Guest:
    """A run (the guest) whose arms are executed by the process of another run (the host). arms: the name of an arm in
    the guest -> the name of the same arm in the host."""

    run: Run
    arms: dict[str, str]


@dataclass
class Hosted:
    """A run to execute (the host), and the other runs that use its evidence (its guests)."""

    run: Run
    guests: list[Guest] = field(default_factory=list)

    @property
    def runs(self) -> list[Run]:
        """Return the executed run, and then the runs that use its evidence."""
        return [self.run, *(guest.run for guest in self.guests)]

    def takes(self, guest: Run) -> bool:
        """Add the run `guest` to the guests if it can be joined with the executed run, and if joining saves enough
        executions. Return True if `guest` was added."""
        found = _joined(self.run, guest) if probe_named(guest.probe).arm_by_arm else _same(self.run, guest)
        if found is None:
            return False
        run, arms = found
        # `run` is the executed run, changed for the new guest. Check that it still contains what all earlier guests
        # require.
        if lacks(run, guest, arms) or any(lacks(run, one.run, one.arms) for one in self.guests):
            return False
        self.run = run
        self.guests.append(Guest(guest, arms))
        return True


def hosted(runs: Iterable[Run]) -> list[Hosted]:
    """Decide which runs are executed, and which runs use the evidence of an executed run. Return the executed runs in
    their order, each with the runs that use its evidence."""
    found: list[Hosted] = []
    for run in runs:
        if not any(host.takes(run) for host in found):
            found.append(Hosted(run))
    return found


def write_guests(host: Hosted, directories: Mapping[str, Path]) -> None:
    """Write a directory for each guest (a run that is not executed). It contains a reference to the host's evidence.
    directories: run id -> directory."""
    for guest in host.guests:
        directory = directories[guest.run.id]
        directory.mkdir(parents=True)
        write_run(guest.run, directory)
        shared = Shared(run=host.run.id, arms=guest.arms)
        (directory / layout.SHARED).write_text(dump_json(shared.model_dump(), indent=2) + "\n", encoding="utf-8")


def _same(host: Run, guest: Run) -> tuple[Run, dict[str, str]] | None:
    """Return a run that serves both `host` and `guest`, and the name of each of the guest's arms in this run. Return
    None if the runs `host` and `guest` are not equal."""
    if not serves(host, guest, SAME):
        return None
    joined = {name: SHARED[name].joined(getattr(host, name), getattr(guest, name)) for name in _WHERE_AND_HOW_LONG}
    return host.model_copy(update=joined), {arm: arm for arm in guest.arms}


def _joined(host: Run, guest: Run) -> tuple[Run, dict[str, str]] | None:
    """Return the run `host` with the arms of the run `guest` added, and a mapping from the names of the guest's arms to
    their names in this run. Return None if the two runs cannot be joined, or if joining them would save too few
    executions."""
    # if the host's fault exchanges two arms, the host cannot execute arms for a guest without this fault
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
    """Return True if the executions of the run `host`, extended for the run `guest`, contain all that the arms of
    `guest` require.

    arms: an arm's name in `guest` -> its name in `host`. name: the arm of `guest` that was added to `arms` last. If
    this arm has a baseline, `host` must execute the baseline earlier, because gradients are compared with those of the
    baseline.
    """
    joined = widened(host, of_arms(guest, arms))
    order, baseline = list(joined.arms), guest.baseline_of.get(name)
    if baseline is not None and order.index(arms[baseline]) > order.index(arms[name]):
        return False
    return serves(joined, guest, SHARED, arms)


def _free_name(name: str, taken: Collection[str]) -> str:
    """Return a name for an arm that is added to a run: `name` or, if `taken` contains it, `name` with a number."""
    free, number = name, 2
    while free in taken:
        free, number = f"{name}-{number}", number + 1
    return free

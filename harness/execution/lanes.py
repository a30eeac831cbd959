"""Split one long paired run into lanes: parts that need nothing of each other, each for a process of its own.

The arms of a run are executed one after the other, and launch-bound arms leave a GPU mostly idle. So an arm
that is judged by series and digests alone (the untrained control) is executed next to the rest. Without a
GPU a long run would be the last of a session, on one of its processors. Repetitions of an arm always have a
process of their own, since what a process draws once, such as a seed from its number, repeats within it.
Run, unit and judges stay as they are: `harness.evidence.serving` makes one run's evidence of all lanes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING

from harness.devices.environment import usable_cores
from harness.evidence import layout
from harness.evidence.plan_records import Run
from harness.execution.sharing import write_run
from harness.kinds import probe_named
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

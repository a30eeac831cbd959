"""Lanes: the parts of one long paired run that need nothing of each other, each for a process of its own.

Launch-bound arms leave a GPU mostly idle, and the arms of a run are executed one after the other. What is judged by
series and digests alone (a baseline's repetition, the untrained control) is executed beside the rest. Run, unit and
judges stay as they are: `harness.evidence.lanes` makes one run's evidence of all lanes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.evidence import layout
from harness.evidence.plan_records import Run
from harness.runners.remaining import write_run
from harness.system.wrappers import SWAPPED_ARMS

if TYPE_CHECKING:
    from harness.runners.watched_worker import Progress

# Another process costs 5 to 10 s: imports, opening, and what the first steps compile. Steps times GiB that the workload
# declares: a step of 28 layers (12 GiB) takes longer than one of a tiny model (2 GiB). On an H200 that was shared,
# 100 of the former took 10 to 45 s an arm; 300 of the latter 2 to 3 s, alone.
SPLIT_FROM_STEP_GIB = 1000

Execution = tuple[str, int]  # arm and replica


def lanes(run: Run) -> list[Run]:
    """The run in parts that may be executed side by side, in the order of their first executions; or the run alone.

    Together stay a candidate and its baseline, whose gradients and end states are compared on the device, and every
    repetition whose end state is read so (`Run.compared`). Every execution keeps its arm's name and its number.
    """
    if not _is_worth_it(run):
        return [run]
    parts = _parts(run)
    return [_lane(run, part) for part in parts] if len(parts) > 1 else [run]


def _is_worth_it(run: Run) -> bool:
    return (
        run.probe == "paired"
        and run.compared is not None
        and run.workload.needs.device == "cuda"  # a processor has no idle quarters: its cores are what arms wait for
        and run.workload.steps * (run.workload.needs.memory_gib or 1.0) >= SPLIT_FROM_STEP_GIB
        and run.fault != SWAPPED_ARMS  # arms that change places are opened by one another's plan
    )


def _parts(run: Run) -> list[list[Execution]]:
    """The executions, each with all that must share its process; in the run's order within and between parts."""
    parts = [{execution} for execution in run.executions()]
    for together in _together(run):
        touched = [part for part in parts if part & together]
        parts = [part for part in parts if not part & together]
        parts.append(set().union(*touched))
    order = {execution: number for number, execution in enumerate(run.executions())}
    return sorted((sorted(part, key=order.__getitem__) for part in parts if part), key=lambda part: order[part[0]])


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
    """The run with these executions alone; of one arm they are consecutive, since all or one of them are in a part."""
    arms = {}
    for arm, planned in run.arms.items():
        replicas = [replica for name, replica in part if name == arm]
        if replicas:
            arms[arm] = planned.model_copy(update={"first_replica": replicas[0], "replicas": len(replicas)})
    return run.model_copy(update={"arms": arms})


def lane_directories(run: Run, directory: Path) -> list[tuple[Run, Path]]:
    """What to execute for `run`, each with where its evidence goes, for `supervisor.execute`.

    A run with several lanes gets its directory, with the whole run in it, here; a lane's is made when it is executed.
    """
    parts = lanes(run)
    if len(parts) == 1:
        return [(run, directory)]
    directory.mkdir(parents=True)
    write_run(run, directory)
    return [(lane, directory / layout.lane_name(number)) for number, lane in enumerate(parts)]


def as_one(tell: Callable[[Progress], None], count: int) -> list[Callable[[Progress], None]]:
    """For each of `count` lanes whom to tell of its progress; `tell` hears of the run's end when the last one ended."""
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

"""Open one arm of a run, with a fault planted where the run asks for one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from harness.commits.import_path import in_use
from harness.devices.torch_settings import deterministic_algorithms
from harness.errors import UsageError
from harness.evidence.plan_records import PlannedArm, Run
from harness.execution import rank_seat
from harness.execution.announced import AnnouncedSteps, announced_steps
from harness.execution.probes.nudge import nudge
from harness.system.adapter_checks import AdapterError, describe_value, names
from harness.system.protocol import TrainingRun, TrainingSystem
from harness.system.ranks import rank
from harness.system.resolve import resolve
from harness.system.users_code import return_place
from harness.system.wrappers import DECOY_GRAPH, HARNESS_FAULTS, SWAPPED_ARMS, wrap

if TYPE_CHECKING:
    from harness.execution.watchers.capture_attempts import CaptureAttempts


@contextmanager
def opened(run: Run, arm: str) -> Iterator[TrainingRun]:
    """Open and enter the training run of `arm`. On exit release it, and return its memory to the device.

    In every arm the process's generators start from the workload's seed, so that no arm depends on where another left
    them, or on what an import drew, which happens in the first arm only. Each rank adds its number: what a system does
    not seed differs by rank, as in processes without a seed. Captures that begin meanwhile are counted
    (`attempts_of`). The system plants a fault that it describes; any other must be one of the harness's own.

    Raises `UsageError` for a fault that neither knows, and for an arm of another commit than this process's;
    `NotAvailable` as the system does.
    """
    planned = _planned(run, arm)
    at_commit = in_use()
    here = at_commit.commit if at_commit is not None else None
    if planned.commit != here:
        rule = f"a process opens arms of its own commit, {here[:12] if here else 'the working tree'}"
        raise UsageError(rule, where=arm, got=planned.commit or "the working tree's")
    system = resolve(planned.system)
    fault = run.fault if arm in run.fault_arms else None
    from harness.execution.watchers.capture_attempts import CaptureAttempts  # torch

    settings = deterministic_algorithms() if planned.arm.deterministic else nullcontext()
    with rank_seat.together(run, arm), settings, CaptureAttempts() as attempts:
        yield from _opened_here(run, planned, system, fault, attempts)


def _opened_here(
    run: Run, planned: PlannedArm, system: TrainingSystem, fault: str | None, attempts: CaptureAttempts
) -> Iterator[TrainingRun]:
    from harness.system.replay.generators import seed_all  # torch
    from harness.system.replay.imports import keep_imports_undrawn

    keep_imports_undrawn()
    seed_all(run.workload.seed + rank())
    own = fault is not None and _planted_by_harness(system, fault, planned.system)
    announced = announced_steps(run)
    training = system.open(
        run.workload if announced is None else run.workload.model_copy(update={"steps": announced}),
        planned.arm,
        fault=None if own else fault,
        data=run.data,
        model_directory=run.model_directory,
    )
    _require_run(training, system)
    if own and fault is not None and fault != SWAPPED_ARMS:
        training = wrap(training, fault, steps=run.workload.steps)
    with AnnouncedSteps(training, announced) as entered:
        attempts.training = entered
        if planned.nudged:
            nudge(entered)
        yield entered
        if (at_commit := in_use()) is not None:
            at_commit.require(planned.system)  # what was imported meanwhile, too
    attempts.training = None
    del training, entered
    release_memory()


def _require_run(opened: object, system: TrainingSystem) -> None:
    missing = [name for name in ("step", "facts", "__enter__", "__exit__") if not hasattr(opened, name)]
    if missing:
        raise AdapterError(
            "open() returns a training run: a context manager with the methods step(index) and facts()",
            where=return_place(system.open),
            got=f"{describe_value(opened)} without {names(missing)}",
            remedy="see `TrainingRun` in harness/system/protocol.py",
        )


def _planned(run: Run, arm: str) -> PlannedArm:
    if run.fault == DECOY_GRAPH and arm in run.fault_arms:
        planned = run.arms[arm]
        return planned.model_copy(update={"arm": planned.arm.model_copy(update={"capture": "none", "warm_steps": 0})})
    if run.fault != SWAPPED_ARMS or arm not in run.fault_arms:
        return run.arms[arm]
    others = [other for other in run.fault_arms if other != arm]
    # a claim about one arm alone: change places with an arm that is captured otherwise
    others += [name for name, planned in run.arms.items() if planned.arm.capture != run.arms[arm].arm.capture]
    return run.arms[others[0]] if others else run.arms[arm]


def _planted_by_harness(system: TrainingSystem, fault: str, name: str) -> bool:
    offered = system.describe().faults
    if fault in offered:
        return False
    if fault not in HARNESS_FAULTS:
        raise UsageError(
            "a fault must be one that the system or the harness offers",
            where=name,
            got=fault,
            remedy=f"one of {', '.join(sorted({*offered, *HARNESS_FAULTS}))}",
        )
    return True


def release_memory() -> None:
    """Return unused memory to the device. Raises torch's error if the device cannot be used any more."""
    import gc

    from harness.devices.allocator import empty_cache
    from harness.devices.device import synchronize

    gc.collect()
    synchronize()
    empty_cache()

"""Execute all arms of a run on the same batches, one arm after the other, and record their steps (probe `paired`).

Results are copied from the device once for each block of steps (`SeriesBlock`). At the steps that the claim chooses,
norms and differences of gradients are computed on the device. A baseline's gradients stay on the device, so that the
candidates' gradients can be compared with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from torch import Tensor

from harness.devices.device_memory import memory_sample
from harness.errors import UsageError
from harness.evidence.arm_records import DetectorReading, MemoryEvidence, MemorySample
from harness.evidence.plan_records import Run
from harness.evidence.run_records import ArmFailed
from harness.execution.arm import ArmLife
from harness.execution.opening import opened, release_memory, shapes_of
from harness.execution.rank_seat import is_here
from harness.execution.recorder import Recorder
from harness.execution.watchers.capture_watch import Watcher
from harness.execution.watchers.gradient_reader import Exchange, GradientReader, KeptGradients, MicroBatchWatch
from harness.execution.watchers.host_sync import OBSERVED_STEPS, observe_syncs
from harness.execution.watchers.made_gradients import MadeGradients
from harness.execution.watchers.rank_watch import RankWatch
from harness.execution.watchers.state_watch import MOVES, Ends, Moves
from harness.system.protocol import HasGradients, HasParameters, NotAvailable
from harness.system.replay.found_state import plain_name
from harness.system.replay.operations import LossTerms
from harness.system.users_code import message_of, obstacle_of, stack_of

END = "end"  # the name under which an arm stores its final parameters for arms of another commit


def execute(run: Run, recorder: Recorder) -> None:
    """Execute the run's arms in order, each `replicas` times.

    The failure of an arm is recorded, and no claim that needs this arm can be judged. The execution continues with the
    arms that other claims need. Raises torch's error if the device cannot be used any more.
    """
    kept: KeptGradients = {}
    ends = Ends(
        _left_elsewhere(run, Exchange(recorder.exchange), END),
        Moves(_left_elsewhere(run, Exchange(recorder.exchange), MOVES)),
    )
    failed = set(run.without)
    for arm in run.arms:
        if arm not in run.needed(failed) or not is_here(run.arms[arm].arm.ranks):
            continue
        failure = failure_of(arm, recorder, partial(_execute_arm, run, arm, recorder, kept, ends))
        if failure is not None:
            for key in [key for key in kept if key[0] == arm]:
                del kept[key]
            ends.forget(arm)
            recorder.write(failure)
            failed.add(arm)
            # A CUDA error persists in the process. If the arm failed with a CUDA error, the call below raises it again,
            # and the worker ends.
            release_memory()


def _left_elsewhere(run: Run, exchange: Exchange, what: str) -> dict[str, dict[str, Tensor]]:
    """Return, by name of the arm, the tensors that processes of another commit have stored under the name `what`.
    Include only arms that are compared with arms of this process."""
    compared = {arm for arms in run.compared or [] if set(arms) & run.arms.keys() for arm in arms}
    taken = {arm: exchange.take(arm, what) for arm in sorted(compared - run.arms.keys())}
    return {arm: tensors for arm, tensors in taken.items() if tensors is not None}


def failure_of(arm: str, recorder: Recorder, execute_arm: Callable[[], None]) -> ArmFailed | None:
    """Execute an arm by calling `execute_arm`. Return its failure, or None. Afterwards nothing refers to the arm's
    memory."""
    recorder.failed_after = None
    try:
        execute_arm()
    except UsageError:  # the error means that the plan of the run is wrong, and not that the arm failed
        raise
    except BaseException as error:  # user code may raise anything, also SystemExit
        return ArmFailed(
            arm=arm,
            cause="exception",
            detail=message_of(error),
            phase=recorder.current_phase,
            stack=stack_of(error),
            obstacle=obstacle_of(error) if isinstance(error, NotAvailable) else None,
            steps=recorder.failed_after,
        )
    return None


def _execute_arm(run: Run, arm: str, recorder: Recorder, kept: KeptGradients, ends: Ends) -> None:
    planned = run.arms[arm]
    for replica in planned.indices:
        with ArmLife(run, arm, recorder, replica, ends=ends) as life:
            every_step = train(life, kept, keep=arm in run.baseline_of.values() and replica == 0)
            parts = life.parts
        del life
        if planned.observe_syncs and replica == 0:
            recorder.phase(f"{arm}.{replica}: host syncs")
            parts.ask(partial(_observe_syncs, run, arm, replica, recorder, every_step), "syncs")
        if planned.commit is not None and replica == 0:
            Exchange(recorder.exchange).leave(arm, END, ends.kept(arm))
            Exchange(recorder.exchange).leave(arm, MOVES, ends.moves.kept(arm))


def _observe_syncs(run: Run, arm: str, replica: int, recorder: Recorder, every_step: list[DetectorReading]) -> None:
    planned, steps = run.arms[arm], run.workload.steps
    # If a claim judges every step, but the steps were not observed during the training, execute all steps again while
    # detectors observe them.
    recorder.write(
        observe_syncs(
            partial(opened, run, arm),
            arm,
            replica,
            announced=steps,
            unwatched=shapes_of(run) + planned.arm.warm_steps,
            steps=steps if planned.watch_every_step and not every_step else OBSERVED_STEPS,
            every_step=every_step,
        )
    )


def train(life: ArmLife, kept: KeptGradients, *, keep: bool) -> list[DetectorReading]:
    """Train the arm with all watchers that its plan requires. Return each detector's count of host syncs, or an empty
    list if not every step was observed.

    kept: the gradients of earlier executions. keep: True to keep this execution's gradients in `kept`, because later
    executions are compared with them.
    """
    life.start()
    memory, reader = list[MemorySample](), GradientReader(life, kept, keep=keep)
    life.watchers = [
        Watcher(("memory",), after=partial(_sample_memory, memory)),
        Watcher(("gradients",), after=reader.read),
        *_watchers_of_claims(life),
        *_watchers_of_terms(life),
        *_watchers_of_clips(life, reader),
    ]
    every_step = life.train_on(range(life.run.workload.steps)).every_step
    if memory and "memory" not in life.parts.failed:
        life.recorder.write(MemoryEvidence(arm=life.arm, replica=life.replica, per="replay", samples=memory))
    if life.planned.observe_syncs and life.replica == 0 and every_step is not None:
        return life.parts.ask(every_step.readings, "syncs") or []
    return []


def _watchers_of_terms(life: ArmLife) -> Iterator[Watcher]:
    """Yield a watcher that adds up the absolute values of the loss's terms, in the second and in the last step. Yield
    no watcher if the arm is captured, or if this execution repeats an earlier execution of the arm."""
    last = life.run.workload.steps - 1
    if life.replica == 0 and life.planned.arm.capture == "none":
        watches, seen = {index: LossTerms() for index in (min(1, last), last)}, list[Tensor]()

        def note(index: int) -> None:
            if index in watches and life.last_loss is not None:
                seen.append(watches.pop(index).size_of(life.last_loss))

        def write() -> None:
            terms = max((float(each) for each in seen), default=0.0)
            life.loss_terms = terms if math.isfinite(terms) else None

        yield Watcher(around=lambda index: watches.get(index, nullcontext()), after=note, at_end=write)


def _watchers_of_clips(life: ArmLife, reader: GradientReader) -> Iterator[Watcher]:
    """Yield a watcher that looks for gradient clipping in a few steps. Yield no watcher if the arm is captured, or if
    this execution repeats an earlier execution of the arm.

    The watched steps are the first step (its gradients are large), two later ones, and all steps whose gradients are
    recorded.
    """
    steps = life.run.workload.steps
    if life.replica == 0 and life.planned.arm.capture == "none" and isinstance(life.training, HasParameters):
        watch = MadeGradients({plain_name(name): each for name, each in life.training.parameters().items()})
        watched = {0, 1, 2, steps // 2, steps - 1, *reader.steps}
        reader.watch = watch

        def around(index: int) -> AbstractContextManager[object]:
            watch.copying = index in reader.steps and isinstance(life.training, HasGradients)
            return watch if index in watched else nullcontext()

        def write() -> None:
            life.clip = watch.record()

        yield Watcher(around=around, at_end=write)


def _watchers_of_claims(life: ArmLife) -> Iterator[Watcher]:
    """Yield the watcher of this rank's steps and the watcher of micro-batches, each only if the plan requests it."""
    if life.planned.watch_ranks and (ranks := life.parts.ask(partial(RankWatch, life), "rank_steps")):
        yield Watcher(("rank_steps",), before=ranks.before_step, after=ranks.add, at_end=ranks.write)
    number = life.planned.micro_batches
    if number is not None and (batches := life.parts.ask(partial(MicroBatchWatch, life, number), "micro_batches")):
        yield Watcher(("micro_batches",), after=batches.add, at_end=batches.write)


def _sample_memory(samples: list[MemorySample], index: int) -> None:
    if (sample := memory_sample(index)) is not None:
        samples.append(sample)

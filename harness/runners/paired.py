"""The paired probe: execute every arm on the same batches, in order, and write what its steps gave.

Nothing is read from the device inside the series but in blocks (`series_block`). Gradients at the chosen steps are
reduced on the device; a baseline's are kept there for its candidates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial

import torch
from torch import Tensor

from harness.errors import UsageError
from harness.evidence.arm_records import (
    DetectorReading,
    Gradients,
    GroupNorm,
    MemoryEvidence,
    MemorySample,
)
from harness.evidence.plan_records import Run
from harness.evidence.run_records import ArmFailed
from harness.runners.announced import shapes_of
from harness.runners.arm_life import ArmLife
from harness.runners.capture_watch import Watcher
from harness.runners.clip_watch import ClipWatch
from harness.runners.exchange import Exchange
from harness.runners.host_sync import OBSERVED_STEPS, observe_syncs
from harness.runners.micro_batches import MicroBatchWatch
from harness.runners.moves import MOVES, Moves
from harness.runners.opening import opened, release_memory
from harness.runners.raised import message_of, obstacle_of, stack_of
from harness.runners.rank_seat import is_here
from harness.runners.rank_watch import RankWatch
from harness.runners.recorder import Recorder
from harness.runners.reductions import reduce_gradients, reduce_groups
from harness.runners.state_watch import Ends
from harness.system.protocol import (
    HasGradientNorms,
    HasGradients,
    HasParameters,
    NotAvailable,
    TrainingRun,
)
from harness.system.replay.found_state import plain_name
from harness.system.replay.loss_terms import LossTerms
from harness.system.shards import whole

END = "end"  # the name of parameters at the end among what an arm leaves for another commit's

KeptGradients = dict[tuple[str, int], dict[str, Tensor]]


def execute(run: Run, recorder: Recorder) -> None:
    """Execute the run's arms in order, each as often as its replicas say.

    An arm that fails is recorded, and costs the judgements that name it: the other arms go on, as far as some
    judgement still needs them. Raises what the device says once it cannot be used any more.
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
            release_memory()  # a CUDA error is sticky: it is raised again here, and the worker ends


def _left_elsewhere(run: Run, exchange: Exchange, what: str) -> dict[str, dict[str, Tensor]]:
    """What arms of another commit left under a name, with which this process's are compared."""
    compared = {arm for arms in run.compared or [] if set(arms) & run.arms.keys() for arm in arms}
    taken = {arm: exchange.take(arm, what) for arm in sorted(compared - run.arms.keys())}
    return {arm: tensors for arm, tensors in taken.items() if tensors is not None}


def failure_of(arm: str, recorder: Recorder, execute_arm: Callable[[], None]) -> ArmFailed | None:
    """Execute one arm; how it failed, None when it came to its end. Nothing of it is held when this returns."""
    recorder.failed_after = None
    try:
        execute_arm()
    except UsageError:  # the plan is wrong, and no arm
        raise
    except BaseException as error:  # a system may raise anything, SystemExit included
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
    # what could not be watched as it was judged is executed once more, under a detector, for as many steps
    recorder.write(
        observe_syncs(
            partial(opened, run, arm),
            arm,
            replica,
            announced=steps,
            unwatched=shapes_of(run),
            steps=steps if planned.watch_every_step and not every_step else OBSERVED_STEPS,
            every_step=every_step,
        )
    )


def train(life: ArmLife, kept: KeptGradients, *, keep: bool) -> list[DetectorReading]:
    """Live one execution under every watcher that its plan asks for; return the host syncs of its judged steps.

    keep: whether its gradients are kept for those that are compared with them.
    """
    life.start()
    memory = list[MemorySample]()
    life.watchers = [
        Watcher(("memory",), after=partial(_sample_memory, memory)),
        Watcher(("gradients",), after=_GradientReader(life, kept, keep=keep).read),
        *_watchers_of_claims(life),
        *_watchers_of_terms(life),
        *_watchers_of_clips(life),
    ]
    every_step = life.train_on(range(life.run.workload.steps)).every_step
    if memory and "memory" not in life.parts.failed:
        life.recorder.write(MemoryEvidence(arm=life.arm, replica=life.replica, per="replay", samples=memory))
    if life.planned.observe_syncs and life.replica == 0 and every_step is not None:
        return life.parts.ask(every_step.readings, "syncs") or []
    return []


def _watchers_of_terms(life: ArmLife) -> Iterator[Watcher]:
    """Watch two steps of an uncaptured arm that others may be compared with for what its losses are sums of."""
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


def _watchers_of_clips(life: ArmLife) -> Iterator[Watcher]:
    """Watch a few steps of an uncaptured arm for a clip: the first ones, whose gradients are large, and later ones."""
    steps = life.run.workload.steps
    if life.replica == 0 and life.planned.arm.capture == "none" and isinstance(life.training, HasParameters):
        watch, watched = ClipWatch(life.training.parameters()), {0, 1, 2, steps // 2, steps - 1}

        def write() -> None:
            life.clip = watch.record()

        yield Watcher(around=lambda index: watch if index in watched else nullcontext(), at_end=write)


def _watchers_of_claims(life: ArmLife) -> Iterator[Watcher]:
    """Watch ranks and micro-batches, each as the part that it is evidence for."""
    if life.planned.watch_ranks and (ranks := life.parts.ask(partial(RankWatch, life), "rank_steps")):
        yield Watcher(("rank_steps",), before=ranks.before_step, after=ranks.add, at_end=ranks.write)
    number = life.planned.micro_batches
    if number is not None and (batches := life.parts.ask(partial(MicroBatchWatch, life, number), "micro_batches")):
        yield Watcher(("micro_batches",), after=batches.add, at_end=batches.write)


class _GradientReader:
    """Reduces the gradients of chosen steps, and keeps a baseline's for its candidates."""

    def __init__(self, life: ArmLife, kept: KeptGradients, *, keep: bool) -> None:
        self._life, self._run, self._kept, self._keep = life, life.run, kept, keep

    def read(self, index: int) -> None:
        """Write the gradients of the step that was made last, if a claim reads them."""
        training = self._life.training
        if index not in self._run.gradient_steps or not self._are_read() or not isinstance(training, HasGradients):
            return
        # gathered by every rank, also by those that compare none: the baseline may be known to the first one alone
        gradients = {plain_name(name): whole(tensor) for name, tensor in training.gradients().items()}
        trained = training.parameters() if isinstance(training, HasParameters) else {}
        without = sorted({plain_name(name) for name in trained} - set(gradients))
        arm, planned, exchange = self._life.arm, self._life.planned, Exchange(self._life.recorder.exchange)
        baseline = self._run.baseline_of.get(arm)
        other = None if baseline is None else self._kept.get((baseline, index))
        if baseline is not None and baseline not in self._run.arms and gradients:  # it is of another commit
            other = exchange.take(baseline, str(index), next(iter(gradients.values())).device)
        self._life.recorder.write(
            Gradients(
                arm=arm,
                replica=self._life.replica,
                step=index,
                baseline=baseline if other is not None else None,
                tensors=reduce_gradients(gradients, other, sketched=planned.sketches),
                groups=_groups(training, gradients, without),
                without=without,
            )
        )
        if self._keep:
            self._kept[arm, index] = {name: tensor.detach().clone() for name, tensor in gradients.items()}
            if planned.commit is not None:
                exchange.leave(arm, str(index), self._kept.pop((arm, index)))

    def _are_read(self) -> bool:
        """Whether a claim reads this execution's gradients; a baseline's repetition only shows the losses' noise."""
        arms, life = self._run.gradient_arms, self._life
        if arms is None or life.planned.sketches:
            return True
        return life.arm in arms and (life.replica == 0 or life.arm not in self._run.baseline_of.values())


def _groups(training: TrainingRun, gradients: Mapping[str, Tensor], without: Sequence[str]) -> list[GroupNorm]:
    if not isinstance(training, HasGradientNorms):
        return []
    before = training.gradient_norms()["before"]
    groups = {group: [plain_name(name) for name in names] for group, names in training.gradient_groups().items()}
    return reduce_groups(gradients, groups, before, without)


def _sample_memory(samples: list[MemorySample], index: int) -> None:
    if torch.cuda.is_available():
        samples.append(memory_sample(index))


def memory_sample(step: int) -> MemorySample:
    """Torch's own count of CUDA memory now, of which one call builds all that it counts; no host sync."""
    counted = torch.cuda.memory_stats_as_nested_dict()
    allocated, reserved = (
        counted[name]["all"]["current"] if name in counted else 0 for name in ("allocated_bytes", "reserved_bytes")
    )
    return MemorySample(step=step, allocated_bytes=allocated, reserved_bytes=reserved)

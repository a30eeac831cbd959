"""The paired probe: execute every arm on the same batches, in order, and write what its steps gave.

Nothing is read from the device inside the series but in blocks (`series_block`). Gradients at the chosen steps are
reduced on the device; a baseline's are kept there for its candidates.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor

from harness.errors import UsageError
from harness.evidence.arm_records import (
    ArmEnd,
    ArmStart,
    DetectorReading,
    Gradients,
    GroupNorm,
    MemoryEvidence,
    MemorySample,
)
from harness.evidence.plan_records import PlannedArm, Run
from harness.evidence.run_records import ArmFailed, Part
from harness.runners.announced import shapes_of
from harness.runners.capture import capture_evidence, capture_record
from harness.runners.capture_attempts import attempts_of
from harness.runners.exchange import Exchange
from harness.runners.host_sync import OBSERVED_STEPS, device_of, observe_syncs
from harness.runners.micro_batches import MicroBatchWatch
from harness.runners.moves import MOVES, Moves
from harness.runners.opening import opened, release_memory
from harness.runners.parts import Parts
from harness.runners.profiling import Watched, graph_launches, in_step
from harness.runners.raised import message_of, obstacle_of, stack_of
from harness.runners.rank_seat import is_here
from harness.runners.rank_watch import RankWatch
from harness.runners.recorder import Recorder
from harness.runners.reductions import digest_of_all, digest_of_rounded, reduce_gradients, reduce_groups
from harness.runners.series_block import SeriesBlock
from harness.runners.state_watch import Ends, StateWatch, named_parameters
from harness.runners.step_watch import SeriesWatch
from harness.system.protocol import (
    CountsSkippedSteps,
    HasGradientNorms,
    HasGradients,
    HasParameters,
    NotAvailable,
    Scalar,
    TrainingRun,
)
from harness.system.replay.found_state import plain_name
from harness.system.replay.operators import OperatorWatch
from harness.system.shards import whole

WATCHED_STEPS = 3  # on CUDA the first ones, capture included, and the last; of traced replays the last
END = "end"  # the name of parameters at the end among what an arm leaves for another commit's

Watches = Mapping[Part, MicroBatchWatch | RankWatch]
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
        )
    return None


def _execute_arm(run: Run, arm: str, recorder: Recorder, kept: KeptGradients, ends: Ends) -> None:
    planned = run.arms[arm]
    for replica in planned.indices:
        with opened_execution(run, arm, replica, recorder, ends) as execution:
            execution.execute(kept, keep=arm in run.baseline_of.values() and replica == 0)
            parts, every_step = execution.parts, execution.sync_readings
        del execution
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


@contextmanager
def opened_execution(
    run: Run, arm: str, replica: int, recorder: Recorder, ends: Ends, facts: Mapping[str, Scalar] = MappingProxyType({})
) -> Iterator[ArmExecution]:
    """One execution of an arm, opened; its memory is returned on exit. `facts` stand beside those of the system."""
    recorder.phase(f"{arm}.{replica}: open")
    with opened(run, arm) as training:
        planned = run.arms[arm]
        watch = StateWatch(training, moves=planned.moves and replica == 0, sketched=planned.sketches)
        execution = ArmExecution(run, arm, planned, replica, training, recorder, ends, watch, facts)
        yield execution
        del execution, training, watch


@dataclass
class ArmExecution:
    """One execution of one arm."""

    run: Run
    arm: str
    planned: PlannedArm
    replica: int
    training: TrainingRun
    recorder: Recorder
    ends: Ends
    watch: StateWatch
    facts: Mapping[str, Scalar] = field(default_factory=dict)
    memory: list[MemorySample] = field(default_factory=list)
    steps_called: int = 0
    input_names: list[str] | None = None
    input_shapes: int | None = None
    updates: list[int] | None = None
    operators: OperatorWatch = field(default_factory=OperatorWatch)
    sync_readings: list[DetectorReading] = field(default_factory=list)  # of the judged steps, where they were watched
    parts: Parts = field(init=False)

    def __post_init__(self) -> None:
        self.parts = Parts(self.arm, self.replica, self.recorder)

    def execute(self, kept: KeptGradients, *, keep: bool) -> None:
        """Start record, series, end record, then what was watched beside the series."""
        self._phase("start")
        start = arm_start(self.training, self.arm, self.replica, self.watch, self.planned.rounded_to)
        self.recorder.write(start.model_copy(update={"facts": {**start.facts, **self.facts}}))
        every_step = self.parts.ask(self._watch_of_every_step, *self._watched_parts())
        watched = self._series(kept, every_step, keep=keep)
        self._phase("end")
        end = arm_end(self.training, self.arm, self.replica, self.steps_called, self.watch, self.ends)
        changes = {
            "input_names": self.input_names,
            "input_shapes": self.input_shapes,
            "updates": self.updates,
            "operators": sorted(attempts_of(self.training).operators | self.operators.names) or None,
        }
        self.recorder.write(end.model_copy(update=changes))
        self._observe(watched, every_step)

    def _watch_of_every_step(self) -> SeriesWatch | None:
        """For a captured arm; and for one whose host syncs are judged, where its steps can be watched as they are."""
        device, captured = device_of(self.training), self.planned.arm.capture != "none"
        if not captured and not (self.planned.watch_every_step and device == "cuda"):
            return None
        attempts = attempts_of(self.training)
        return SeriesWatch(
            device,
            captured=captured,
            unwatched=shapes_of(self.run),
            captures=lambda: capture_record(self.training, self.planned).captures,
            attempts=lambda: attempts.count,
        )

    def _watched_parts(self) -> tuple[Part, ...]:
        """The parts that the watch of every step is evidence for."""
        captured: tuple[Part, ...] = ("capture",) if self.planned.arm.capture != "none" else ()
        return (*captured, "syncs") if self.planned.observe_syncs else captured

    @contextmanager
    def _watching(self, every_step: SeriesWatch | None, index: int) -> Iterator[None]:
        """Watch what runs in the block as a step. An error of the watch is its parts'; one of the step is raised on."""
        if every_step is None or not self.parts.failed.isdisjoint(self._watched_parts()):
            yield
            return

        def begun() -> AbstractContextManager[None]:
            watch = every_step.step(index)
            watch.__enter__()
            return watch

        watch = self.parts.ask(begun, *self._watched_parts())
        if watch is None:
            yield
            return
        try:
            yield
        except BaseException:
            with suppress(BaseException):  # it comes out again, whatever the watch makes of it
                watch.__exit__(*sys.exc_info())
            raise
        self.parts.ask(partial(watch.__exit__, None, None, None), *self._watched_parts())

    def _series(self, kept: KeptGradients, every_step: SeriesWatch | None, *, keep: bool) -> Watched:
        block = SeriesBlock(self.run, self.recorder, self.recorder.series(self.arm, self.replica), self.training)
        watches = self._watches()
        watched = Watched()
        self._phase("steps")
        profiled = self._profiled_steps()
        with ExitStack() as window, ExitStack() as solitude:
            for index in range(self.run.workload.steps):
                if index in profiled:
                    steps, replays = profiled[index]
                    if replays:  # a neighbour on the GPU would lengthen what is judged as a share of time
                        solitude.enter_context(self.recorder.alone())
                    profile = graph_launches(watched, steps, replays=replays, over=solitude.close)
                    self.parts.ask(partial(window.enter_context, profile), "capture")
                    last = index + steps - 1
                self._ask(watches, lambda watch: watch.before_step())
                with self._watching(every_step, index), in_step(profiled), self._watch_of_operators(index):
                    loss = self.training.step(index)
                self.steps_called += 1
                block.add(index, loss)
                self._ask(watches, lambda watch: watch.add(index, self.recorder))  # noqa: B023 - called here
                if index in self.run.gradient_steps and self._gradients_are_read():
                    self.parts.ask(partial(self._gradients, index, kept, keep=keep), "gradients")
                self.parts.ask(partial(self._sample_memory, index), "memory")
                if index == 0 < self.run.workload.steps - 1:
                    self.watch.after_first_step()
                if profiled and index == last:
                    self.parts.ask(window.close, "capture")
        block.write()
        self._ask(watches, self._write)
        self.input_names, self.input_shapes = block.input_names, block.input_shapes
        return watched

    def _watch_of_operators(self, index: int) -> AbstractContextManager[object]:
        """Watch one step of an uncaptured arm with which a captured one is compared: the second, built to the end."""
        captured = {arm for arm, planned in self.run.arms.items() if planned.arm.capture != "none"}
        compared = self.arm not in captured and captured and self.replica == 0
        return self.operators if compared and index == min(1, self.run.workload.steps - 1) else nullcontext()

    def _watches(self) -> Watches:
        """What a claim asks to see of every step, by the part that it is evidence for."""
        parts, steps = self.planned.micro_batches, self.run.workload.steps
        makers: dict[Part, Callable[[], MicroBatchWatch | RankWatch]] = {}
        if parts is not None:
            of_execution = (self.training, self.arm, self.replica)
            makers["micro_batches"] = partial(MicroBatchWatch, *of_execution, parts=parts, steps=steps)
        if self.planned.watch_ranks:
            makers["rank_steps"] = partial(RankWatch, self.training, self.run, self.arm, self.replica)
        made = {part: self.parts.ask(make, part) for part, make in makers.items()}
        return {part: watch for part, watch in made.items() if watch is not None}

    def _ask(self, watches: Watches, question: Callable[[MicroBatchWatch | RankWatch], object]) -> None:
        for part, watch in watches.items():
            self.parts.ask(partial(question, watch), part)

    def _write(self, watch: MicroBatchWatch | RankWatch) -> None:
        watch.write(self.recorder)
        if isinstance(watch, MicroBatchWatch):
            self.updates = watch.updates()

    def _profiled_steps(self) -> dict[int, tuple[int, bool]]:
        """First step of each profiled window -> its length, and whether its steps are to be replays.

        On CUDA the first steps, in which a capture that is recorded and not launched loses an update; and the last.
        """
        if not torch.cuda.is_available() or self.planned.arm.capture == "none":
            return {}
        steps = self.run.workload.steps
        first = min(WATCHED_STEPS, steps)
        last = min(WATCHED_STEPS, steps - first)
        return {0: (first, False)} | ({steps - last: (last, True)} if last else {})

    def _gradients_are_read(self) -> bool:
        """Whether a claim reads this execution's gradients; a baseline's repetition only shows the losses' noise."""
        arms = self.run.gradient_arms
        if arms is None or self.planned.sketches:
            return True
        return self.arm in arms and (self.replica == 0 or self.arm not in self._baselines())

    def _baselines(self) -> set[str]:
        return set(self.run.baseline_of.values())

    def _gradients(self, index: int, kept: KeptGradients, *, keep: bool) -> None:
        if not isinstance(self.training, HasGradients):
            return
        # gathered by every rank, also by those that compare none: the baseline may be known to the first one alone
        gradients = {plain_name(name): whole(tensor) for name, tensor in self.training.gradients().items()}
        trained = self.training.parameters() if isinstance(self.training, HasParameters) else {}
        without = sorted({plain_name(name) for name in trained} - set(gradients))
        baseline = self.run.baseline_of.get(self.arm)
        other = None if baseline is None else kept.get((baseline, index), self._left(baseline, index, gradients))
        self.recorder.write(
            Gradients(
                arm=self.arm,
                replica=self.replica,
                step=index,
                baseline=baseline if other is not None else None,
                tensors=reduce_gradients(gradients, other, sketched=self.planned.sketches),
                groups=self._groups(gradients, without),
                without=without,
            )
        )
        if keep:
            kept[self.arm, index] = {name: tensor.detach().clone() for name, tensor in gradients.items()}
            if self.planned.commit is not None:
                Exchange(self.recorder.exchange).leave(self.arm, str(index), kept.pop((self.arm, index)))

    def _left(self, baseline: str, index: int, gradients: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """What a baseline of another commit left; none of one that is of this process's own."""
        if baseline in self.run.arms or not gradients:
            return None
        return Exchange(self.recorder.exchange).take(baseline, str(index), next(iter(gradients.values())).device)

    def _groups(self, gradients: Mapping[str, Tensor], without: Sequence[str]) -> list[GroupNorm]:
        if not isinstance(self.training, HasGradientNorms):
            return []
        before = self.training.gradient_norms()["before"]
        groups = {
            group: [plain_name(name) for name in names] for group, names in self.training.gradient_groups().items()
        }
        return reduce_groups(gradients, groups, before, without)

    def _sample_memory(self, index: int) -> None:
        if torch.cuda.is_available():
            self.memory.append(memory_sample(index))

    def _observe(self, watched: Watched, every_step: SeriesWatch | None) -> None:
        if self.planned.arm.capture != "none":
            self._phase("census")
            self.parts.ask(partial(self._capture, watched, every_step), "capture")
        if self.memory and "memory" not in self.parts.failed:
            self.recorder.write(MemoryEvidence(arm=self.arm, replica=self.replica, per="replay", samples=self.memory))
        if self.planned.observe_syncs and self.replica == 0 and every_step is not None:
            self.sync_readings = self.parts.ask(every_step.readings, "syncs") or []

    def _capture(self, watched: Watched, every_step: SeriesWatch | None) -> None:
        record = capture_record(self.training, self.planned)
        if record.mechanism == "traced" and every_step is not None:
            # captures of several shapes have unequal numbers of operations: whole rounds of them are compared
            watched = every_step.last(WATCHED_STEPS * max(record.captures, 1))
        operations = every_step.operations() if every_step is not None else None
        self.recorder.write(capture_evidence(self.training, self.arm, self.replica, record, watched, operations))

    def _phase(self, name: str) -> None:
        self.recorder.phase(f"{self.arm}.{self.replica}: {name}")


def memory_sample(step: int) -> MemorySample:
    """Torch's own count of CUDA memory now, of which one call builds all that it counts; no host sync."""
    counted = torch.cuda.memory_stats_as_nested_dict()
    allocated, reserved = (
        counted[name]["all"]["current"] if name in counted else 0 for name in ("allocated_bytes", "reserved_bytes")
    )
    return MemorySample(step=step, allocated_bytes=allocated, reserved_bytes=reserved)


def arm_start(
    training: TrainingRun, arm: str, replica: int, watch: StateWatch, rounded_to: str | None = None
) -> ArmStart:
    """Digests of what the arm starts from, one more of its parameters rounded to a data type, the system's facts."""
    trainable, frozen = digests_of(training)
    parameters = named_parameters(training)
    return ArmStart(
        arm=arm,
        replica=replica,
        trainable_digest=trainable,
        frozen_digest=frozen,
        trainable_tensors=len(training.parameters()) if isinstance(training, HasParameters) else 0,
        facts=dict(training.facts()),
        state=watch.at_start(),
        sketches=watch.start_sketches,
        trainable_names=sorted(parameters),
        trainable_dtypes=sorted({str(tensor.dtype).removeprefix("torch.") for tensor in parameters.values()}),
        rounded_digest=None if rounded_to is None else digest_of_rounded(parameters, rounded_to),
    )


def arm_end(training: TrainingRun, arm: str, replica: int, steps: int, watch: StateWatch, ends: Ends) -> ArmEnd:
    """Return what the arm has become, how far from other arms of this run, and how many captures began in it."""
    state = watch.at_end()
    trainable, frozen = digests_of(training)
    ended = {**named_parameters(training), **watch.end_buffers}
    differences = ends.differences(ended)
    ends.keep(ended, arm, replica)
    apart = None
    if watch.moved is not None:
        apart = ends.moves.apart(watch.moved, watch.watched)
        ends.moves.keep(watch.moved, arm)
    attempts = attempts_of(training)
    return ArmEnd(
        arm=arm,
        replica=replica,
        trainable_digest=trainable,
        frozen_digest=frozen,
        skipped_steps=training.skipped_steps() if isinstance(training, CountsSkippedSteps) else 0,
        steps_called=steps,
        capture_attempts=attempts.count,
        capture_errors=list(attempts.errors),
        state=state,
        differences=differences,
        moved_apart=apart,
        still=watch.still,
        spoiled=watch.spoiled,
        sketches=watch.end_sketches,
    )


def digests_of(training: TrainingRun) -> tuple[str, str]:
    """Digests of trainable and frozen tensors now; empty where the system does not show them."""
    if not isinstance(training, HasParameters):
        return "", ""
    frozen = {plain_name(name): tensor for name, tensor in training.frozen().items()}
    return digest_of_all(named_parameters(training)), digest_of_all(frozen)

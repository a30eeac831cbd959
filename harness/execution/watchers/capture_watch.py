"""Observe the steps of a captured arm: the host's work in each step, and the GPU's work in a few profiled steps.

In every arm, captured or not, one step is searched for operators that draw random numbers. The result lets a judge find
arms that draw different random numbers, for example because their dropout kernels drop different elements.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from types import TracebackType
from typing import NamedTuple, Self

from harness.devices.device import has_cuda
from harness.devices.graphs import census
from harness.devices.profiler import Watched, device_work, graph_launches, in_step
from harness.evidence.arm_records import CaptureEvidence, Draws, HostNumber, StepWatch
from harness.evidence.plan_records import PlannedArm, Run
from harness.evidence.run_records import Part
from harness.execution import rank_seat
from harness.execution.opening import shapes_of
from harness.execution.recorder import Recorder
from harness.execution.series_block import Parts
from harness.execution.watchers.capture_attempts import attempts_of
from harness.execution.watchers.host_sync import SeriesWatch, device_of
from harness.system.protocol import CaptureRecord, CountsClippedTensors, HasCapture, TrainingRun
from harness.system.replay import generators
from harness.system.replay.operations import OperatorWatch


class DrawWatch:
    """Computes digests of the random generators' states before and after its `with` block. `watch` collects the
    operators of a step.

    Enter `watch` within this object's `with` block. The two are separate because reading the generators' states
    executes operators, which `watch` must not collect.
    """

    def __init__(self, step: int) -> None:
        self._step = step
        self.watch = OperatorWatch()
        self._before: dict[str, str] = {}
        self._after: dict[str, str] = {}

    def __enter__(self) -> Self:
        self._before = state_digests(generators.global_generators())
        return self

    def __exit__(self, *_raised: object) -> None:
        self._after = state_digests(generators.global_generators())

    @property
    def operators(self) -> set[str]:
        """Return the names of those operators of the step that compute something."""
        return self.watch.names

    @property
    def form(self) -> str:
        """Return one digest of the names of the step's operators, in their order."""
        return self.watch.form

    def record(self, captured: Sequence[Sequence[str]]) -> Draws:
        """Return the record about random numbers. captured: for each capture, the names of its operators that draw
        random numbers."""
        moved = {name: state for name, state in self._after.items() if state != self._before.get(name)}
        return Draws(
            step=self._step, operators=self.watch.draws, captured=[list(each) for each in captured], generators=moved
        )


def state_digests(accessors: Mapping[str, generators.Accessors]) -> dict[str, str]:
    """Return a digest of each generator's current state."""
    return {
        name: hashlib.sha256(generators.as_tensor(each).numpy().tobytes()).hexdigest()[:16]
        for name, each in generators.states(accessors).items()
    }


NAMED = 20  # largest number of names in `host_changes` and similar lists of the evidence


def capture_evidence(
    training: TrainingRun,
    arm: str,
    replica: int,
    record: CaptureRecord,
    watched: Watched,
    every_step: StepWatch | None = None,
) -> CaptureEvidence:
    """Return the evidence about a capture, with the nodes of every graph in `record`. The graphs must still exist."""
    clip_kernels = training.clip_kernels() if isinstance(training, CountsClippedTensors) else None
    nodes = [census(label, graph, clip_kernels) for label, graph in record.graphs.items()]
    return CaptureEvidence(
        arm=arm,
        replica=replica,
        mechanism=record.mechanism,
        requested=record.requested,
        captured=record.captured,
        failure=record.failure,
        captures=record.captures,
        warmup_steps=record.warmup_steps,
        replays=record.replays,
        uncaptured_steps=record.uncaptured_steps,
        nodes=nodes,
        recorded_operations=record.recorded_operations,
        fake_pass_clean=record.fake_pass_clean,
        moved_buffers=_moved(record.captured_addresses, record.static_buffers),
        static_buffers=len(record.captured_addresses),
        observed_steps=watched.steps,
        observed_graph_launches=watched.graph_launches,
        observed_replayed_operations=watched.operations,
        device_work=device_work(watched.replays, watched.replayed_steps, nodes) if watched.replayed_steps else None,
        every_step=every_step,
        profiler_sees_planted=watched.sees_planted,
        host_changes=[*record.host_changes][:NAMED],
        host_numbers=None
        if record.host_numbers is None
        else [HostNumber(name=name, read=read) for name, read in record.host_numbers],
        asked_whether_captured=[*record.asked_whether_captured][:NAMED],
        unseen_operators=[*record.unseen_operators][:NAMED],
        as_written=[*record.as_written][:NAMED],
        warm_steps=record.warm_steps,
    )


def capture_record(training: TrainingRun, planned: PlannedArm) -> CaptureRecord:
    """Return the system's present report about its capture. A system without a report counts as not captured."""
    if isinstance(training, HasCapture):
        return training.capture_record()
    return CaptureRecord(
        mechanism=None,
        requested=planned.arm.capture != "none",
        captured=False,
        failure="the system reports no capture",
        captures=0,
        warmup_steps=0,
        replays=0,
        uncaptured_steps=0,
    )


def _moved(captured: Mapping[str, int], now: Mapping[str, int]) -> list[str]:
    """Return the names of buffers that existed at the capture and now no longer exist, or now have another address.
    captured, now: name of a buffer -> its address, at the capture and now."""
    return sorted(name for name, address in captured.items() if now.get(name) != address)


# Number of steps that are observed at the start and at the end of a run on CUDA. If a step was recorded without a GPU,
# only its last replays are observed: this number for each capture.
WATCHED_STEPS = 3

# index of the first step of a profile -> number of profiled steps, and True if all these steps must be replays
Windows = dict[int, tuple[int, bool]]


class Watcher(NamedTuple):
    """Functions that are called with the index of a step before, around and after each step, and at the end.

    parts: the parts of the evidence that are marked as failed if the watcher raises an error. The watcher is then not
    called again. If `parts` is empty, such an error fails the arm.
    """

    parts: tuple[Part, ...] = ()
    before: Callable[[int], object] | None = None
    around: Callable[[int], AbstractContextManager[object]] | None = None
    after: Callable[[int], object] | None = None
    at_end: Callable[[], object] | None = None


class CaptureWatch:
    """A context manager that observes the steps of one execution of an arm. If torch's profiler still records steps at
    the end of the `with` block, for example after an error, the profiler is stopped.

    captured: a function that returns the system's present report about its capture. watches: False to observe nothing.
    The attribute `every_step` is the `SeriesWatch` that observes the host's work in each step. It is None if nothing
    needs these observations, or if creating the `SeriesWatch` failed.
    """

    def __init__(
        self,
        run: Run,
        planned: PlannedArm,
        training: TrainingRun,
        recorder: Recorder,
        parts: Parts,
        steps: range,
        captured: Callable[[], CaptureRecord],
        *,
        watches: bool,
    ) -> None:
        self._recorder = recorder
        self._parts = _watched_parts(planned)
        self._windows = profiled_steps(planned, steps) if watches else {}
        self._profiled = Watched()
        self._window, self._solitude = ExitStack(), ExitStack()
        ask = partial(_watch_of_every_step, run, planned, training, captured)
        self.every_step = parts.ask(ask, *self._parts) if watches else None

    def around(self, watchers: Sequence[Watcher]) -> list[Watcher]:
        """Return `watchers` together with the watchers of this object, in the order of nesting, the outermost first."""
        found = [*watchers]
        if self.every_step is not None:
            found.append(Watcher(self._parts, around=self.every_step.step))
        if self._windows:
            profile = Watcher(("capture",), before=self._begin, after=self._end)
            found = [profile, *found, Watcher(around=lambda _index: in_step(self._windows))]
        return found

    def _begin(self, index: int) -> None:
        if index in self._windows:
            steps, replays = self._windows[index]
            # Stop all other runs during these steps. Their work on the GPU would make the kernels slower, and a judge
            # compares the seconds of kernels inside and outside of graphs.
            if replays:
                self._solitude.enter_context(self._recorder.alone())
            self._window.enter_context(
                graph_launches(
                    self._profiled, steps, ranks=rank_seat.ranks(), replays=replays, over=self._solitude.close
                )
            )

    def _end(self, index: int) -> None:
        if index in {first + steps - 1 for first, (steps, _) in self._windows.items()}:
            self._window.close()

    def seen(self, record: CaptureRecord) -> tuple[Watched, StepWatch | None]:
        """Return the observations of a few steps, and the observations of every step (None if not every step was
        observed).

        record: what the system reported about its capture. If the system replays CUDA graphs, the few steps are the
        profiled steps. If the system replays a traced step, the few steps are the last steps.
        """
        if self.every_step is None:
            return self._profiled, None
        profiled = self._profiled
        if record.mechanism == "traced":
            # Captures for different shapes have different numbers of operations, so observe each shape equally often.
            profiled = self.every_step.last(WATCHED_STEPS * max(record.captures, 1))
        return profiled, self.every_step.operations()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._solitude.__exit__(kind, error, trace)
        finally:
            self._window.__exit__(kind, error, trace)  # after an error, the profiler's events are not read


def profiled_steps(planned: PlannedArm, steps: range) -> Windows:
    """Return which steps of a captured arm are profiled on CUDA: the first steps after the warm-up, and the last steps.

    The first steps reveal a capture that records a step without executing it, so that an update of the parameters is
    missing.
    """
    steps = steps[planned.arm.warm_steps :]
    if planned.arm.capture == "none" or not has_cuda() or not steps:
        return {}
    first = min(WATCHED_STEPS, len(steps))
    last = min(WATCHED_STEPS, len(steps) - first)
    return {steps.start: (first, False)} | ({steps.stop - last: (last, True)} if last else {})


def _watch_of_every_step(
    run: Run, planned: PlannedArm, training: TrainingRun, captured: Callable[[], CaptureRecord]
) -> SeriesWatch | None:
    """Return an observer of every step if the arm is captured, or if the host syncs of an arm on CUDA are judged.
    Otherwise return None."""
    device, is_captured = device_of(training), planned.arm.capture != "none"
    if not is_captured and not (planned.watch_every_step and device == "cuda"):
        return None
    attempts = attempts_of(training)
    return SeriesWatch(
        device,
        captured=is_captured,
        unwatched=shapes_of(run) + planned.arm.warm_steps,
        captures=lambda: captured().captures,
        attempts=lambda: attempts.count,
        replaying=lambda: attempts.replaying,
    )


def _watched_parts(planned: PlannedArm) -> tuple[Part, ...]:
    """Return the parts of the evidence that are missing if an error ends the observation of the steps."""
    captured: tuple[Part, ...] = ("capture",) if planned.arm.capture != "none" else ()
    return (*captured, "syncs") if planned.observe_syncs else captured

"""Observe how often a step makes the host wait, by two independent detectors that are each shown a planted sync."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from typing import Literal, NamedTuple, Self, cast

from harness.devices.profiler import planted_sync
from harness.evidence.arm_records import DetectorReading, HostSyncEvidence, OnAGpu
from harness.execution.watchers.step_watch import places_of
from harness.execution.watchers.sync_detectors import (
    Execute,
    FakePassError,
    Syncs,
    by_dispatch_mode,
    by_fake_pass,
    by_profiler,
    by_sync_debug_mode,
    counted_by_profiler,
)
from harness.system.protocol import HasCapture, HasParameters, HasStateRoots, HasStepBody, TrainingRun
from harness.system.raised import message_of
from harness.system.replay.fake_leftovers import no_fake_tensors_left
from harness.system.replay.placement import Placement
from harness.system.replay.stand_ins import as_captured, as_written
from harness.system.replay.state import StateError, StateGuard

OBSERVED_STEPS = 2
Opens = Callable[[], AbstractContextManager[TrainingRun]]


class _Detector(NamedTuple):
    name: Literal["dispatch_mode", "fake_pass", "sync_debug_mode"]
    detect: Callable[[Execute], Syncs]


class Looks:
    """An arm that is opened anew for detectors, and once more where a look would go beyond its announced steps.

    Nothing of the judged execution is at stake, and a look sees steps as they were judged: from the first ones on.
    """

    def __init__(self, opens: Opens, announced: int, unwatched: int) -> None:
        """Open nothing yet. unwatched: first steps that no detector is to see, since they record or build tables."""
        self._opens, self._announced = opens, announced
        self.first = min(unwatched, announced - 1)
        self._stack, self._training, self._next = ExitStack(), cast("TrainingRun | None", None), 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self._training = None  # or its memory would not be given back
        self._stack.close()

    def training(self, steps: int) -> TrainingRun:
        """Return the opened arm, with room for `steps` more steps. Open it anew where there is no room."""
        if self._training is None or self._next + steps > self._announced:
            self._training = None
            self._stack.close()
            self._training = self._stack.enter_context(self._opens())
            for index in range(self.first):
                self._training.step(index)
            self._next = self.first
        return self._training

    def next_steps(self, steps: int) -> Execute:
        """Return a function that executes the next `steps` steps."""
        training, first = self.training(steps), self._next
        self._next += steps

        def execute() -> None:
            for index in range(first, first + steps):
                training.step(index)

        return execute


def observe_syncs(
    opens: Opens,
    arm: str,
    replica: int,
    *,
    announced: int,
    unwatched: int = 1,
    steps: int = OBSERVED_STEPS,
    every_step: Sequence[DetectorReading] = (),
) -> HostSyncEvidence:
    """Execute `steps` steps of the arm, opened anew, under each detector that this machine has, each its own steps.

    announced: how many steps the arm expects. unwatched: how many first steps are left out; fewer
    steps are watched if no more are there. every_step: what was seen of the judged steps
    themselves. With CUDA: dispatch mode and profiler; for a replay, which the dispatch mode cannot
    see into, profiler and sync-debug mode. Without: dispatch mode, and a fake pass of the step's
    body if the system offers it.
    """
    with Looks(opens, announced, unwatched) as looks:
        steps = min(steps, announced - looks.first)
        training = looks.training(steps)
        device = device_of(training)
        capture = training.capture_record() if isinstance(training, HasCapture) else None
        replayed = capture is not None and capture.captured
        layers = int(training.facts().get("layers", 0))
        del training
        readings = [_read_profile(steps, looks)] if device == "cuda" else []
        detector = _beside_the_profiler(device, replayed=replayed)
        readings.append(_read(detector, device, steps, lambda: looks.next_steps(steps)))
        failed = None
        if device == "cpu" and isinstance(with_body := looks.training(1), HasStepBody):
            try:
                with as_captured() if replayed else nullcontext():
                    readings.append(_read_fake_pass(with_body, device))
            except FakePassError as error:
                failed = str(error)
    return HostSyncEvidence(
        arm=arm,
        replica=replica,
        layers=layers,
        replayed=replayed,
        readings=readings,
        every_step=list(every_step),
        fake_tensors_error=failed,
        on_a_gpu=foreseen_on_a_gpu(opens) if device == "cpu" and capture is not None and capture.requested else None,
    )


def device_of(training: TrainingRun) -> str:
    """Return the device that the system states: `cuda` or `cpu`."""
    return str(training.facts().get("device", "cpu")).partition(":")[0]


def _beside_the_profiler(device: str, *, replayed: bool) -> _Detector:
    """Return the detector that goes with the profiler on a GPU, or comes first on a CPU."""
    if device == "cuda" and replayed:
        return _Detector("sync_debug_mode", by_sync_debug_mode)
    return _Detector("dispatch_mode", partial(by_dispatch_mode, device=device))


def _read_profile(steps: int, looks: Looks) -> DetectorReading:
    """Count syncs without stacks. If there are any, find their places in more steps, watched with stacks."""
    with _named("profiler"):
        seen, sees_planted = counted_by_profiler(looks.next_steps(steps))
        places: Syncs = by_profiler(looks.next_steps(steps)) if seen else Counter()
    return DetectorReading(
        detector="profiler", steps=steps, count=seen, places=places_of(places), sees_planted=sees_planted
    )


def _read(detector: _Detector, device: str, steps: int, execution: Callable[[], Execute]) -> DetectorReading:
    with _named(detector.name):
        sees_planted = sum(detector.detect(partial(planted_sync, device)).values()) >= 1
        syncs = detector.detect(execution())
    return DetectorReading(
        detector=detector.name,
        steps=steps,
        count=sum(syncs.values()),
        places=places_of(syncs),
        sees_planted=sees_planted,
    )


@contextmanager
def _named(detector: str) -> Iterator[None]:
    """Add the detector's name to an error of the block."""
    try:
        yield
    except Exception as error:
        error.add_note(f"under the detector {detector}")
        raise


@no_fake_tensors_left()
def _read_fake_pass(training: HasStepBody, device: str) -> DetectorReading:
    roots = training.state_roots() if isinstance(training, HasStateRoots) else [training]
    with StateGuard(training.state_tensors, roots):
        detector = _Detector("fake_pass", partial(by_fake_pass, device=device))
        return _read(detector, device, 1, training.step_body)


def foreseen_on_a_gpu(opens: Callable[[], AbstractContextManager[TrainingRun]]) -> OnAGpu:
    """Open an arm once more, warm up its step as a capture does, and return what its next execution would do there."""
    placement = Placement()
    try:
        with as_written(), placement, opens() as training:
            if not isinstance(training, HasStepBody) or not isinstance(training, HasParameters):
                return _unforeseen("the system has no `step_body`")
            body = training.step_body()
            _warm_up(training, body)
            with placement.watching():
                body()
            sides = {placement.side_of(parameter) for parameter in training.parameters().values()}
    except Exception as error:  # a step that only the watching breaks: nothing that is judged depends on it
        return _unforeseen(message_of(error))
    if "device" not in sides:
        return _unforeseen("no line puts its parameters on a device")
    return OnAGpu(
        copies=placement.copies,
        changes=placement.changes,
        unknown=placement.unknown,
        unrepeated=placement.unrepeated,
        of_cpu=placement.of_cpu,
    )


def _warm_up(training: HasStepBody, body: Callable[[], object]) -> None:
    """Execute the step and undo it, except for state that it makes lazily. What it puts elsewhere is put back, too."""
    roots = training.state_roots() if isinstance(training, HasStateRoots) else [training]
    with StateGuard(training.state_tensors, roots) as guard:
        with guard.first_execution():
            body()
        body()
        with suppress(StateError):
            guard.restore(keep_created=True)


def _unforeseen(failure: str) -> OnAGpu:
    return OnAGpu(copies=[], changes=[], unknown=[], unrepeated=[], of_cpu=[], failure=failure)

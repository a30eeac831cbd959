"""Observe how often a step makes the host wait for the device (host syncs), with two independent detectors. Each
detector is tested: it must also find a host sync that the harness plants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple, Self, cast

from harness.devices.device import synchronize
from harness.devices.host_waits import SyncWarnings, WaitingCalls
from harness.devices.profiler import Watched, planted_sync
from harness.evidence.arm_records import DetectorReading, HostSyncEvidence, OnAGpu, StepWatch, SyncPlace
from harness.execution.watchers.sync_detectors import (
    DispatchWatch,
    Execute,
    FakePassError,
    Syncs,
    by_dispatch_mode,
    by_fake_pass,
    by_profiler,
    by_sync_debug_mode,
    counted_by_profiler,
    sync_here,
)
from harness.system.protocol import HasCapture, HasParameters, HasStateRoots, HasStepBody, TrainingRun
from harness.system.replay.fake_step import no_fake_tensors_left
from harness.system.replay.launches import as_captured, as_written
from harness.system.replay.placement import Placement
from harness.system.replay.state import StateError, StateGuard
from harness.system.users_code import message_of

# `SeriesWatch` observes every step of an execution: the step's work outside of the capture, and its waits for the
# device. A profile of a few steps shows the device's work, but it misses a fault that occurs only in every tenth step.
# Therefore detectors observe the host's work in every judged step. They take little time if a step is a replay, and are
# created once for all steps.

_NOTHING: AbstractContextManager[None] = nullcontext()
Detector = Literal["dispatch_mode", "sync_debug_mode", "waiting_calls"]


@dataclass
class _Seen:
    """The observations of one step.

    operations: how many operations reached torch's dispatcher; None if they are not counted. replayed: how many of
    these operations ran within a replay. after: how many more operations ran after the step had returned. syncs: name
    of a detector -> the host syncs that it found.
    """

    operations: int | None
    replayed: int
    after: int
    syncs: dict[Detector, Syncs]


@dataclass
class SeriesWatch:
    """Observes the steps of one execution of an arm.

    captures: a function that returns the number of captures so far. A step in which a capture was made is left out,
    because it may wait for the device and does more than a replay. The first `unwatched` steps are not observed either,
    because the captures in these steps need other dispatch modes. attempts: a quick function that returns how often
    torch has begun a capture. replaying: a function that returns True while a replay runs.
    """

    device: str
    captured: bool
    unwatched: int
    captures: Callable[[], int]
    attempts: Callable[[], int] = lambda: 0
    replaying: Callable[[], bool] = lambda: False
    _begun: int = 0
    _known_captures: int = 0
    _known_attempts: int = field(init=False)
    _fewest: int | None = None  # smallest number of operations in an observed step so far
    _steps: dict[int, _Seen] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._known_attempts = self.attempts()
        on_cuda = self.device == "cuda"
        self._warnings = SyncWarnings(sync_here) if on_cuda else None
        self._waits = WaitingCalls(sync_here) if on_cuda else None
        # do not use a dispatch mode for an uncaptured step, because the mode would change how compiled code behaves
        self._mode = DispatchWatch(self.device, replaying=self.replaying) if self.captured else None

    @contextmanager
    def step(self, index: int) -> Iterator[None]:
        """Observe the code in the `with` block as step `index`."""
        self._begun += 1
        if self._begun <= self.unwatched:
            yield
            self._known_captures, self._known_attempts = self.captures(), self.attempts()
            return
        mode = self._mode
        if mode is not None:
            mode.restart()
        with self._warnings or _NOTHING as warned, self._waits or _NOTHING as waited, mode or _NOTHING:
            yield
        syncs: dict[Detector, Syncs] = {}
        if warned is not None and waited is not None:
            syncs |= {"sync_debug_mode": warned, "waiting_calls": waited}
        if mode is not None:
            syncs["dispatch_mode"] = mode.seen
        operations = None if mode is None else mode.operations - mode.after
        replayed, after = (0, 0) if mode is None else (mode.replayed, mode.after)
        self._keep(index, _Seen(operations, replayed, after, syncs))

    def _keep(self, index: int, seen: _Seen) -> None:
        operations = seen.operations or 0
        fewest = operations if self._fewest is None else self._fewest
        before, self._known_attempts = self._known_attempts, self.attempts()
        # Ask for the number of captures only if a capture may have been made in this step. The first observed step may
        # capture a second shape of batches. A later step may have made a capture if the host waits in it, if it has
        # more operations than earlier steps, or if torch began a capture.
        busier = self._fewest is None or any(seen.syncs.values()) or operations > fewest
        if busier or self._known_attempts > before:
            earlier, self._known_captures = self._known_captures, self.captures()
            if self._known_captures > earlier:
                return
        self._fewest = min(operations, fewest)
        self._steps[index] = seen

    def operations(self) -> StepWatch | None:
        """Return how many operations torch's dispatcher called in a step: the smallest and the largest number. Return
        None if operations are not counted."""
        if self._mode is None:
            return None
        counts = {index: seen.operations for index, seen in self._steps.items() if seen.operations is not None}
        if not counts:
            return StepWatch(steps=0, fewest_operations=0, most_operations=0, busiest_step=0)
        busiest = max(counts, key=lambda index: (counts[index], -index))
        return StepWatch(
            steps=len(counts),
            fewest_operations=min(counts.values()),
            most_operations=counts[busiest],
            busiest_step=busiest,
            fewest_replayed=min(seen.replayed for seen in self._steps.values()),
            most_after=max(seen.after for seen in self._steps.values()),
        )

    def last(self, steps: int) -> Watched:
        """Return how many operations ran within replays, as the sum over the last `steps` observed steps."""
        counts = [seen.replayed for _, seen in sorted(self._steps.items()) if seen.operations is not None][-steps:]
        return Watched(steps=len(counts), operations=sum(counts)) if counts else Watched()

    def readings(self) -> list[DetectorReading]:
        """Return the results of each detector: its count of host syncs in all observed steps, and whether it also finds
        a host sync that the harness plants."""
        detectors = dict.fromkeys(name for seen in self._steps.values() for name in seen.syncs)
        return [self._reading(name) for name in detectors]

    def _reading(self, detector: Detector) -> DetectorReading:
        by_step = {index: seen.syncs[detector] for index, seen in self._steps.items()}
        total: Syncs = sum(by_step.values(), Counter())
        busiest = max(by_step, key=lambda index: (by_step[index].total(), -index))
        return DetectorReading(
            detector=detector,
            steps=len(by_step),
            count=sum(total.values()),
            places=places_of(total),
            sees_planted=_sees_planted(detector, self.device),
            first_step=next((index for index, syncs in by_step.items() if syncs), None),
            most=by_step[busiest].total(),
            busiest_step=busiest,
        )


def places_of(syncs: Syncs) -> list[SyncPlace]:
    """Return records of the places in the code where the host waited, with the operation and the number of waits."""
    return [
        SyncPlace(file=sync.place.file, line=sync.place.line, operation=sync.operation, count=count)
        for sync, count in sorted(syncs.items())
    ]


def _sees_planted(detector: Detector, device: str) -> bool:
    if detector == "waiting_calls":
        with WaitingCalls(sync_here) as calls:
            synchronize()
        return calls.total() == 1
    if detector == "sync_debug_mode":
        with SyncWarnings(sync_here) as warned:
            planted_sync(device)
        return warned.total() >= 1
    mode = DispatchWatch(device)
    with mode:
        planted_sync(device)
    return mode.seen.total() >= 1


OBSERVED_STEPS = 2
Opens = Callable[[], AbstractContextManager[TrainingRun]]


class _Detector(NamedTuple):
    name: Literal["dispatch_mode", "fake_pass", "sync_debug_mode"]
    detect: Callable[[Execute], Syncs]


class Looks:
    """Opens an arm once more, so that detectors do not disturb the execution that is judged.

    The detectors observe early steps of this arm, one detector after the other. If the arm may not make enough further
    steps for the next detector, it is opened again.
    """

    def __init__(self, opens: Opens, announced: int, unwatched: int) -> None:
        """Prepare this object without opening the arm. opens: opens the arm. announced: number of steps that an opened
        arm can make. unwatched: number of steps at the start in which captures are made."""
        self._opens, self._announced = opens, announced
        self.first = min(unwatched, announced - 1)
        self._stack, self._training, self._next = ExitStack(), cast("TrainingRun | None", None), 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self._training = None  # drop this reference, so that the memory of the training can be freed
        self._stack.close()

    def training(self, steps: int) -> TrainingRun:
        """Return the opened arm if it can make `steps` more steps. Otherwise open the arm again and return it."""
        if self._training is None or self._next + steps > self._announced:
            self._training = None
            self._stack.close()
            self._training = self._stack.enter_context(self._opens())
            for index in range(self.first):
                self._training.step(index)
            self._next = self.first
        return self._training

    def next_steps(self, steps: int) -> Execute:
        """Return a function that executes the next `steps` steps of the opened arm."""
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
    """Open the arm again, and execute `steps` steps for each detector of this machine, one detector after the other.

    announced: number of steps that the opened arm can make; if it is too small, fewer steps are observed. unwatched:
    number of steps at the start that are not observed. every_step: counts of detectors that have observed every step of
    the judged execution.

    With CUDA, the detectors are the profiler and the dispatch mode. A replay hides its operators from the dispatch
    mode, so for a replay torch's sync-debug mode is used instead. Without CUDA, the detectors are the dispatch mode and
    a fake pass: an execution of the step's body on fake tensors, which have no data. If the system does not offer the
    body of its step, there is no fake pass.
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
    """Return the type of the device, `cuda` or `cpu`, that the opened arm reports in its facts."""
    return str(training.facts().get("device", "cpu")).partition(":")[0]


def _beside_the_profiler(device: str, *, replayed: bool) -> _Detector:
    """Return the detector that is used together with the profiler on a GPU, or as the first detector on a CPU."""
    if device == "cuda" and replayed:
        return _Detector("sync_debug_mode", by_sync_debug_mode)
    return _Detector("dispatch_mode", partial(by_dispatch_mode, device=device))


def _read_profile(steps: int, looks: Looks) -> DetectorReading:
    """Count host syncs with the profiler. If there are any, profile again with stacks, to find the lines that wait."""
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
    """Add a note that names the detector to any error that the `with` block raises."""
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
    """Open an arm again on the CPU, warm up its step as before a capture, and predict its behavior on a GPU."""
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
    except Exception as error:
        # Observing the step may make it fail. No verdict depends on the predicted host syncs.
        return _unforeseen(message_of(error))
    if "device" not in sides:
        return _unforeseen("no line puts its parameters on a device", placement.uncapturable)
    return OnAGpu(
        copies=placement.copies,
        changes=placement.changes,
        unknown=placement.unknown,
        unrepeated=placement.unrepeated,
        of_cpu=placement.uncapturable,
    )


def _warm_up(training: HasStepBody, body: Callable[[], object]) -> None:
    """Execute the step twice, and undo its changes of state. Keep state that the first execution creates."""
    roots = training.state_roots() if isinstance(training, HasStateRoots) else [training]
    with StateGuard(training.state_tensors, roots) as guard:
        with guard.first_execution():
            body()
        body()
        with suppress(StateError):
            guard.restore(keep_created=True)


def _unforeseen(failure: str, uncapturable: list[str] | None = None) -> OnAGpu:
    return OnAGpu(copies=[], changes=[], unknown=[], unrepeated=[], of_cpu=uncapturable or [], failure=failure)

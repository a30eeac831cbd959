"""Watch every step of a series: what it does outside its capture, and whether it waits for the device.

A few steps under a profiler show what the device did, but a fault in every tenth step passes them by. Here each judged
step runs under detectors that are cheap around a replay and see the host's part of it. They are made once for a series.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Literal

from harness.devices.device import synchronize
from harness.devices.host_waits import SyncWarnings, WaitingCalls
from harness.devices.profiler import Watched, planted_sync
from harness.evidence.arm_records import DetectorReading, StepWatch, SyncPlace
from harness.execution.watchers.sync_detectors import DispatchWatch, Syncs, sync_here

_NOTHING: AbstractContextManager[None] = nullcontext()
Detector = Literal["dispatch_mode", "sync_debug_mode", "waiting_calls"]


@dataclass
class _Seen:
    """Of one step: operations that reached the dispatcher (None: it was not watched), syncs by detector.

    replayed: how many of the operations ran within a replay.
    """

    operations: int | None
    replayed: int
    syncs: dict[Detector, Syncs]


@dataclass
class SeriesWatch:
    """The watch over one execution of an arm.

    captures: how often the arm has captured so far. A step that captures may wait and does more than a replay, so it is
    left out; so are the first `unwatched` steps, because a step is recorded under modes of its own.
    attempts: how often torch began a capture, which costs nothing to ask; replaying: whether a replay runs now.
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
    _fewest: int | None = None  # operations of a step so far
    _steps: dict[int, _Seen] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._known_attempts = self.attempts()
        on_cuda = self.device == "cuda"
        self._warnings = SyncWarnings(sync_here) if on_cuda else None
        self._waits = WaitingCalls(sync_here) if on_cuda else None
        # an uncaptured step may be a compiled one, which a dispatch mode would turn into another program
        self._mode = DispatchWatch(self.device, replaying=self.replaying) if self.captured else None

    @contextmanager
    def step(self, index: int) -> Iterator[None]:
        """Watch what runs in the block as step `index`."""
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
        operations, replayed = (None, 0) if mode is None else (mode.operations, mode.replayed)
        self._keep(index, _Seen(operations, replayed, syncs))

    def _keep(self, index: int, seen: _Seen) -> None:
        operations = seen.operations or 0
        fewest = operations if self._fewest is None else self._fewest
        before, self._known_attempts = self._known_attempts, self.attempts()
        # The first that is watched may capture the second shape; of later ones those that do more than a replay. A step
        # that is captured after plain ones does no more than they do.
        busier = self._fewest is None or any(seen.syncs.values()) or operations > fewest
        if busier or self._known_attempts > before:
            earlier, self._known_captures = self._known_captures, self.captures()
            if self._known_captures > earlier:
                return
        self._fewest = min(operations, fewest)
        self._steps[index] = seen

    def operations(self) -> StepWatch | None:
        """Return the fewest and most operations of a watched step at the dispatcher; None if they are not counted."""
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
        )

    def last(self, steps: int) -> Watched:
        """Return how many operations the last so many watched steps replayed."""
        counts = [seen.replayed for _, seen in sorted(self._steps.items()) if seen.operations is not None][-steps:]
        return Watched(steps=len(counts), operations=sum(counts)) if counts else Watched()

    def readings(self) -> list[DetectorReading]:
        """Return host syncs of all watched steps, by each detector that watched them and was shown to see one."""
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
    """Return where the host waited, by what, and how often, for evidence."""
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

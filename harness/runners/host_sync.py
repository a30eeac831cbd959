"""Observe how often a step makes the host wait: two independent detectors, each shown a planted sync."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count, islice
from typing import Literal, NamedTuple

from harness.evidence.arm_records import DetectorReading, HostSyncEvidence
from harness.runners.profiling import planted_sync
from harness.runners.step_watch import places_of
from harness.runners.sync_detectors import (
    Execute,
    FakePassError,
    Syncs,
    by_dispatch_mode,
    by_fake_pass,
    by_profiler,
    by_sync_debug_mode,
    counted_by_profiler,
)
from harness.system.protocol import HasCapture, HasStepBody, TrainingRun
from harness.system.replay.state import StateGuard

OBSERVED_STEPS = 2


class _Detector(NamedTuple):
    name: Literal["dispatch_mode", "fake_pass", "sync_debug_mode"]
    detect: Callable[[Execute], Syncs]


def observe_syncs(
    training: TrainingRun,
    arm: str,
    replica: int,
    *,
    first_index: int,
    steps: int = OBSERVED_STEPS,
    every_step: Sequence[DetectorReading] = (),
) -> HostSyncEvidence:
    """Execute `steps` steps from `first_index` on under each detector that this machine has, each its own steps.

    `every_step`: what was seen of the judged steps themselves.

    With CUDA: dispatch mode and profiler; for a replay, which the dispatch mode cannot see into, profiler and
    sync-debug mode. Without: dispatch mode, and a fake pass of the step's body if the system offers it.
    """
    device = device_of(training)
    replayed = isinstance(training, HasCapture) and training.capture_record().captured
    indices = count(first_index)

    def execute() -> None:
        for index in islice(indices, steps):
            training.step(index)

    readings = [_read_profile(steps, execute)] if device == "cuda" else []
    readings.append(_read(_beside_the_profiler(device, replayed=replayed), device, steps, execute))
    failed = None
    if device == "cpu" and isinstance(training, HasStepBody):
        try:
            readings.append(_read_fake_pass(training, device))
        except FakePassError as error:
            failed = str(error)
    return HostSyncEvidence(
        arm=arm,
        replica=replica,
        layers=int(training.facts().get("layers", 0)),
        replayed=replayed,
        readings=readings,
        every_step=list(every_step),
        fake_tensors_error=failed,
    )


def device_of(training: TrainingRun) -> str:
    """`cuda` or `cpu`, as the system states it."""
    return str(training.facts().get("device", "cpu")).partition(":")[0]


def _beside_the_profiler(device: str, *, replayed: bool) -> _Detector:
    """The other detector of a GPU, the first of a CPU."""
    if device == "cuda" and replayed:
        return _Detector("sync_debug_mode", by_sync_debug_mode)
    return _Detector("dispatch_mode", partial(by_dispatch_mode, device=device))


def _read_profile(steps: int, execute: Execute) -> DetectorReading:
    """The count from a look without stacks; only where there is one, its places from a second look, with stacks."""
    seen, sees_planted = counted_by_profiler(execute)
    places: Syncs = by_profiler(execute) if seen else Counter()
    return DetectorReading(
        detector="profiler", steps=steps, count=seen, places=places_of(places), sees_planted=sees_planted
    )


def _read(detector: _Detector, device: str, steps: int, execute: Execute) -> DetectorReading:
    sees_planted = sum(detector.detect(partial(planted_sync, device)).values()) >= 1
    syncs = detector.detect(execute)
    return DetectorReading(
        detector=detector.name,
        steps=steps,
        count=sum(syncs.values()),
        places=places_of(syncs),
        sees_planted=sees_planted,
    )


def _read_fake_pass(training: HasStepBody, device: str) -> DetectorReading:
    with StateGuard(training.state_tensors) as guard:
        try:
            detector = _Detector("fake_pass", partial(by_fake_pass, device=device))
            return _read(detector, device, 1, training.step_body())
        finally:
            guard.restore()

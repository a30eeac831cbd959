"""Measure the memory of an arm: its peak (probe `peak_memory`), or its growth when captures are repeated (`recapture`).

peak_memory: one arm is opened and trained, and this process opens no other arm. The harness keeps the batches of a
block of steps on the device. These batches take at most 16 MiB and count as part of the peak. The memory that the
harness needs for digests before the first step does not count.

recapture: all captures are dropped, and a capture is made again for each shape of the workload's batches. The memory is
read after each capture and its first replay, while the device is idle. At this time the old graphs are freed, so they
are not counted as growth.
"""

from __future__ import annotations

from contextlib import ExitStack

from harness.devices.device import has_cuda, synchronize
from harness.devices.device_memory import memory_sample
from harness.devices.peak_watch import CudaMemory, PeakWatch
from harness.evidence.arm_records import MemoryEvidence, MemoryPeak, MemorySample
from harness.evidence.plan_records import Run
from harness.execution import rank_seat
from harness.execution.arm import ArmLife
from harness.execution.opening import captures_of, shapes_of
from harness.execution.recorder import Recorder
from harness.execution.watchers.capture_watch import Watcher
from harness.system.protocol import CanRecapture, NotAvailable


def execute_peak_memory(run: Run, recorder: Recorder) -> None:
    """Measure the peak memory while the run's arm is opened, and while it makes its steps. The measurement begins
    before this process uses the device."""
    if not has_cuda():
        raise NotAvailable("needs CUDA, because the peak of device memory is measured on a CUDA device")
    (arm,) = run.arms
    peaks: list[MemoryPeak] = []
    with ExitStack() as stack:
        watch = stack.enter_context(PeakWatch(CudaMemory(rank_seat.number())))
        with watch.measuring(peaks.append):
            life = stack.enter_context(ArmLife(run, arm, recorder))
        with watch.apart():
            life.start()
        life.watchers.append(Watcher(after=lambda _index: watch.look()))
        with watch.measuring(peaks.append):
            life.steps(range(run.workload.steps))
        life.end()
        recorder.write(watch.evidence(arm, *peaks))
        life.census()


def execute_recapture(run: Run, recorder: Recorder) -> None:
    """Drop the captures of every arm of the run, and make as many captures as `captures_of` returns."""
    for arm in run.arms:
        with ArmLife(run, arm, recorder) as life:
            _recapture(life)


def _recapture(life: ArmLife) -> None:
    training = life.training
    if not isinstance(training, CanRecapture):
        raise NotAvailable("re-capturing needs the system's capability `forget_captures`")
    life.start()
    life.phase("re-capture")
    shapes = shapes_of(life.run)
    captures = captures_of(life.run, shapes)
    block = life.begin(captures)
    samples: list[MemorySample] = []
    for index in range(captures):
        if index % shapes == 0:
            training.forget_captures()
        life.step(index)
        block.write()
        synchronize()
        if (sample := memory_sample(index)) is not None:
            samples.append(sample)
    life.end()
    life.census(asked=True)
    life.recorder.write(MemoryEvidence(arm=life.arm, replica=life.replica, per="recapture", samples=samples))

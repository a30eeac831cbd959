"""The probe of peak memory: open one arm and train it, alone in this process, and keep the most memory that it held.

The harness keeps the batches of a block of steps on the device, 16 MiB at most, and counts them.
What its digests take before the first step is not counted.
"""

from __future__ import annotations

from contextlib import ExitStack

from harness.devices.device import has_cuda
from harness.devices.peak_watch import CudaMemory, PeakWatch
from harness.evidence.arm_records import MemoryPeak
from harness.evidence.plan_records import Run
from harness.execution import rank_seat
from harness.execution.arm import ArmLife
from harness.execution.recorder import Recorder
from harness.execution.watchers.capture_watch import Watcher
from harness.system.protocol import NotAvailable


def execute(run: Run, recorder: Recorder) -> None:
    """Measure the run's arm: its opening, then its steps. The watch begins before anything uses the device."""
    if not has_cuda():
        raise NotAvailable("needs CUDA: the peak of device memory is measured on a device")
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

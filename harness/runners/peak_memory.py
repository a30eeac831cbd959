"""The probe of peak memory: open one arm and train it, alone in this process, and keep the most that it held.

The harness keeps the batches of a block of steps on the device, 16 MiB at most, and counts them; what its digests take
before the first step is counted nowhere.
"""

from __future__ import annotations

from contextlib import ExitStack

from harness.evidence.arm_records import MemoryPeak
from harness.evidence.plan_records import Run
from harness.runners.capture import capture_evidence, capture_record
from harness.runners.cuda_memory import CudaMemory
from harness.runners.opening import opened
from harness.runners.paired import arm_end, arm_start
from harness.runners.peak_watch import PeakWatch
from harness.runners.profiling import Watched
from harness.runners.recorder import Recorder
from harness.runners.series_block import SeriesBlock
from harness.runners.state_watch import Ends, StateWatch
from harness.system.protocol import TrainingRun


def execute(run: Run, recorder: Recorder) -> None:
    """Measure the run's arm: its opening, then its steps. The watch begins before anything uses the device."""
    (arm,) = run.arms
    peaks: list[MemoryPeak] = []
    with ExitStack() as stack:
        watch = stack.enter_context(PeakWatch(CudaMemory()))
        recorder.phase(f"{arm}: open")
        with watch.measuring(peaks.append):
            training = stack.enter_context(opened(run, arm))
        recorder.phase(f"{arm}: start")
        with watch.apart():
            state = StateWatch(training)
            recorder.write(arm_start(training, arm, 0, state))
        recorder.phase(f"{arm}: steps")
        with watch.measuring(peaks.append):
            _train(run, arm, training, recorder, state, watch)
        recorder.phase(f"{arm}: end")
        recorder.write(arm_end(training, arm, 0, run.workload.steps, state, Ends()))
        recorder.write(watch.evidence(arm, *peaks))
        planned = run.arms[arm]
        if planned.arm.capture != "none":
            recorder.phase(f"{arm}: census")
            recorder.write(capture_evidence(training, arm, 0, capture_record(training, planned), Watched()))


def _train(run: Run, arm: str, training: TrainingRun, recorder: Recorder, state: StateWatch, watch: PeakWatch) -> None:
    block = SeriesBlock(run, recorder, recorder.series(arm, 0), training)
    for index in range(run.workload.steps):
        block.add(index, training.step(index))
        watch.look()
        if index == 0 < run.workload.steps - 1:
            state.after_first_step()
    block.write()

"""The re-capture probe: forget every capture and capture again, over the workload's shapes, and watch the memory.

A sample is taken after each capture and its first replay, with the device idle: the old graphs are gone by then,
so what has grown is what a re-capture leaves behind.
"""

from __future__ import annotations

import torch

from harness.evidence.arm_records import MemoryEvidence, MemorySample
from harness.evidence.plan_records import PlannedArm, Run
from harness.runners.announced import captures_of, shapes_of
from harness.runners.capture import capture_evidence, capture_record
from harness.runners.opening import opened
from harness.runners.paired import arm_end, arm_start, memory_sample
from harness.runners.profiling import Watched
from harness.runners.recorder import Recorder
from harness.runners.series_block import SeriesBlock
from harness.runners.state_watch import Ends, StateWatch
from harness.system.protocol import CanRecapture, NotAvailable, TrainingRun


def execute(run: Run, recorder: Recorder) -> None:
    """Re-capture in every arm of the run; the number of captures follows from the setting `after`."""
    for arm, planned in run.arms.items():
        recorder.phase(f"{arm}: open")
        with opened(run, arm) as training:
            _execute_arm(run, arm, planned, training, recorder)


def _execute_arm(run: Run, arm: str, planned: PlannedArm, training: TrainingRun, recorder: Recorder) -> None:
    if not isinstance(training, CanRecapture):
        raise NotAvailable("re-capturing needs the system's capability `forget_captures`")
    watch = StateWatch(training)
    recorder.write(arm_start(training, arm, 0, watch))
    recorder.phase(f"{arm}: re-capture")
    shapes = shapes_of(run)
    block = SeriesBlock(run, recorder, recorder.series(arm, 0), training)
    samples: list[MemorySample] = []
    captures = captures_of(run, shapes)
    for index in range(captures):
        if index % shapes == 0:
            training.forget_captures()
        block.add(index, training.step(index))
        block.write()
        if index == 0:
            watch.after_first_step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            samples.append(memory_sample(index))
    recorder.write(arm_end(training, arm, 0, captures, watch, Ends()))
    recorder.write(capture_evidence(training, arm, 0, capture_record(training, planned), Watched()))
    recorder.write(MemoryEvidence(arm=arm, replica=0, per="recapture", samples=samples))

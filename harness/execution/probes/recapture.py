"""The re-capture probe: forget every capture and capture again, over the workload's shapes, and watch the memory.

A sample is taken after each capture and its first replay, with the device idle: the old graphs are gone by then,
so what has grown is what a re-capture leaves behind.
"""

from __future__ import annotations

from harness.devices.device import synchronize
from harness.devices.device_memory import memory_sample
from harness.evidence.arm_records import MemoryEvidence, MemorySample
from harness.evidence.plan_records import Run
from harness.execution.arm import ArmLife
from harness.execution.opening import captures_of, shapes_of
from harness.execution.recorder import Recorder
from harness.system.protocol import CanRecapture, NotAvailable


def execute(run: Run, recorder: Recorder) -> None:
    """Re-capture in every arm of the run; the number of captures follows from the setting `after`."""
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

"""Keep a GPU busy with both arms of a timing, in turns, while the process that started this worker samples the GPU's SM
clock.

No step is timed. A user who chooses a GPU with the help of this probe therefore chooses by the clock, and not by the
ratio of the arms' speeds.
"""

from __future__ import annotations

import time
from contextlib import ExitStack

from harness.devices.device import synchronize
from harness.evidence.plan_records import Run
from harness.evidence.run_records import TIMED_PHASE
from harness.execution.opening import WARMUP_STEPS, count_setting, opened
from harness.execution.probes.timed_arm import raise_clocks
from harness.execution.recorder import Recorder
from harness.system.protocol import TrainingRun


def execute(run: Run, recorder: Recorder) -> None:
    """Train in rounds of candidate, baseline, baseline, candidate, for the number of seconds in
    `settings["seconds"]`."""
    candidate, baseline = str(run.settings["candidate"]), str(run.settings["baseline"])
    with ExitStack() as stack:
        arms: dict[str, TrainingRun] = {}
        for name in (baseline, candidate):
            recorder.phase(f"{name}: open")
            arms[name] = stack.enter_context(opened(run, name))
            _steps(arms[name], 0, WARMUP_STEPS)
        raise_clocks()
        recorder.phase(TIMED_PHASE)
        step, until = WARMUP_STEPS, time.monotonic() + count_setting(run, "seconds")
        while time.monotonic() < until:
            for name in (candidate, baseline, baseline, candidate):
                _steps(arms[name], step, count_setting(run, "block_steps"))
            step += count_setting(run, "block_steps")
            recorder.heartbeat()


def _steps(training: TrainingRun, first: int, count: int) -> None:
    for index in range(first, first + count):
        training.step(index)
    synchronize()

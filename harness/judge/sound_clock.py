"""Whether the seconds of a timing can be true: a process that reports less time than its device worked is not fast.

The timed process could have replaced its clock. Its device, its processors and its supervisor kept clocks of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from harness.evidence.run_records import Telemetry, TimingEvidence
from harness.judge import reasons
from harness.judge.sheet import number, settle
from harness.judge.timing import device_seconds

# Over 208 processes timed on H200s a block's device time, which is read in another block, was at most 0.978 of its
# seconds, its processor time 1.014 of them; the timed phase was 0.79 s shorter to 0.25 s longer than its blocks.
DEVICE_MARGIN = 1.25
PROCESSOR_MARGIN = 1.25  # of all processors
UNACCOUNTED_S = 1.0
UNACCOUNTED_SHARE = 0.5  # steps of a fraction of a millisecond take as long to write as to run


def require_sound_clock(timed: Sequence[tuple[TimingEvidence, Telemetry | None]]) -> None:
    """Settle INCONCLUSIVE when a process's timed seconds cannot be true."""
    timings = [timing for timing, _ in timed]
    for timing, telemetry in timed:
        _require_time_for_the_work(timing, timings)
        _require_seconds_that_passed(timing, telemetry)


def _require_time_for_the_work(timing: TimingEvidence, timings: Sequence[TimingEvidence]) -> None:
    a_step = {arm: device_seconds(timing, timings, arm) for arm in {block.arm for block in timing.blocks}}
    for block in timing.blocks:
        device = a_step[block.arm] * block.steps
        if math.isfinite(device) and device > DEVICE_MARGIN * block.seconds:
            settle(
                reasons.CLOCK_CONTRADICTED,
                f"process {timing.process} timed {number(block.seconds)} s for a block of {block.arm} "
                f"in which the device works for {number(device)} s",
            )
        worked, processors = block.processor_seconds, timing.processors
        if worked is not None and processors and worked > PROCESSOR_MARGIN * processors * block.seconds:
            settle(
                reasons.CLOCK_CONTRADICTED,
                f"process {timing.process} timed {number(block.seconds)} s for a block of {block.arm} "
                f"in which {processors} processors worked for {number(worked)} s",
            )


def _require_seconds_that_passed(timing: TimingEvidence, telemetry: Telemetry | None) -> None:
    """Most of what the supervisor's clock saw of the timed phase is in the blocks."""
    if telemetry is None or telemetry.timed_seconds is None:
        return
    reported, passed = sum(block.seconds for block in timing.blocks), telemetry.timed_seconds
    sound = abs(passed - reported) <= UNACCOUNTED_S + UNACCOUNTED_SHARE * passed < math.inf
    if not sound:
        settle(
            reasons.CLOCK_CONTRADICTED,
            f"process {timing.process} reports {number(reported)} s of timed blocks, "
            f"and by its supervisor's clock they took {number(passed)} s",
        )

"""Whether the clock favoured the arm that won.

Under a power cap each arm sets its own clock: the denser one draws more and runs slower. That is no disturbance while
it works against the arm that wins; when it works for it, the speed may be the clock's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from harness.evidence.run_records import Telemetry, TimingEvidence
from harness.judge import reasons
from harness.judge.sheet import Sheet, number, settle
from harness.judge.timing import device_seconds

Timed = tuple[TimingEvidence, Telemetry]
"""One process: its blocks, and what was sampled meanwhile."""

# Over 208 processes timed on H200s a block's device time, which is read in another block, was at most 0.978 of its
# seconds, its processor time 1.014 of them; the timed phase was 0.79 s shorter to 0.25 s longer than its blocks.
DEVICE_MARGIN = 1.25
PROCESSOR_MARGIN = 1.25  # of all processors
UNACCOUNTED_S = 1.0
UNACCOUNTED_SHARE = 0.5  # steps of a fraction of a millisecond take as long to write as to run


def require_no_clock_advantage(winner: str, loser: str, limit: float, timed: Sequence[Timed], sheet: Sheet) -> None:
    """Settle INCONCLUSIVE when the winner's mean SM clock was above the loser's by more than the share `limit`.

    An arm's mean is that over processes of the samples that fall into its timed blocks. Where an arm was not sampled in
    some process, nothing can be said of it: INCONCLUSIVE, too.
    """
    means = {arm: fmean(_mean_clock(arm, *each) for each in timed) for arm in (winner, loser)}
    for arm, clock in means.items():
        sheet.figure(f"sm_clock.{arm}", clock, "MHz")
    advantage = means[winner] / means[loser] - 1
    sheet.figure("clock_advantage", advantage)
    if not advantage <= limit:
        settle(
            reasons.LIMITS_EXCEEDED,
            f"the ratio speaks for {winner}, and the GPU's clock favoured it by {number(advantage)} "
            f"(limit {number(limit)}): {means[winner]:.0f} against {means[loser]:.0f} MHz for {loser}",
        )


def _mean_clock(arm: str, timing: TimingEvidence, telemetry: Telemetry) -> float:
    """MHz, over the samples taken while `arm` was timed."""
    spans = [
        (block.began, block.began + block.seconds)
        for block in timing.blocks
        if block.arm == arm and block.began is not None
    ]
    clocks = [
        sample.sm_clock_mhz
        for sample in telemetry.samples
        if sample.sm_clock_mhz
        and telemetry.began is not None
        and any(begin <= telemetry.began + sample.seconds <= end for begin, end in spans)
    ]
    if not clocks:
        settle(
            reasons.TELEMETRY_MISSING,
            f"no SM clock was sampled while {arm} was timed in process {timing.process}: whom it favoured is unknown",
        )
    return fmean(clocks)


# Whether the seconds of a timing can be true: the timed process could have replaced its clock. Its device, its
# processors and its supervisor kept clocks of their own.


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

"""Whether the baseline was slowed: time in which neither the host nor the device worked is no training.

A launch-bound step keeps the host busy, a compute-bound one the device. A baseline that sleeps does neither, and a
speed-up over it means nothing. (One that is slowed by useless work cannot be told from an honest slow one.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from harness.evidence.run_records import TimingEvidence
from harness.judge import reasons
from harness.judge.sheet import Sheet, number, settle
from harness.judge.timing import device_seconds


def require_busy_baseline(timings: Sequence[TimingEvidence], baseline: str, limit: float, sheet: Sheet) -> None:
    """Settle INCONCLUSIVE when in any process the baseline's median block was idle for more than `limit` of it."""
    worst = 0.0
    for timing in timings:
        device = timing.observed_device_seconds.get(baseline)
        if device is not None and not math.isfinite(device):
            settle(
                reasons.TELEMETRY_MISSING,
                f"process {timing.process} saw the device work for {device} s in a step of {baseline}",
            )
        share = idle_share(timing, baseline, device_seconds(timing, timings, baseline))
        if share is None:
            settle(
                reasons.TELEMETRY_MISSING,
                f"process {timing.process} did not record the processor time of every block of {baseline}",
            )
        worst = max(worst, share)
    sheet.figure("baseline_idle_share", worst)
    if worst > limit:
        settle(
            reasons.BASELINE_IDLE,
            f"{baseline} was idle for {number(worst)} of its time, with neither host nor device at work "
            f"(limit {number(limit)}): something slowed it",
        )


def require_unhindered_host(
    timings: Sequence[TimingEvidence], baseline: str, enqueue_seconds: float, sheet: Sheet
) -> None:
    """Settle INCONCLUSIVE when the device works longer in a step of the baseline than the host takes to enqueue it.

    Its queue may have been full then, so that the host waited: a long time to enqueue would be none of launching.
    """
    device = max(device_seconds(timing, timings, baseline) for timing in timings)
    sheet.figure("baseline_device_ms", 1000 * device, "ms")
    if not device <= enqueue_seconds:
        settle(
            reasons.HOST_WAITED,
            f"the device works for {number(1000 * device)} ms in a step of {baseline}, which the host enqueues in "
            f"{number(1000 * enqueue_seconds)} ms: it may have waited for a full queue",
        )


def idle_share(timing: TimingEvidence, arm: str, device: float) -> float | None:
    """Median over an arm's blocks of the share of a block that is neither processor nor device time; at least 0.

    device: its seconds in a step. None when a block's processor time is unknown.
    """
    shares = []
    for block in timing.blocks:
        if block.arm != arm:
            continue
        if block.processor_seconds is None:
            return None
        shares.append(1 - max(block.processor_seconds, device * block.steps) / block.seconds)
    return max(0.0, float(np.median(shares))) if shares else None

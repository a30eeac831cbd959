"""Whether the machine was quiet while it was timed: telemetry against a claim's limits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median

from harness.contract.kinds.throughput import Limits
from harness.evidence.run_evidence import RunEvidence
from harness.evidence.run_records import Block, TelemetrySample, TimingEvidence
from harness.judge import reasons
from harness.judge.sheet import Sheet, number, settle

POWER_CAP = "sw_power_cap"
# The sampler looks every half second; over 224 processes timed on H200s it left at most 0.61 s unseen.
LONGEST_UNSEEN_S = 2.0


def require_quiet_machine(limits: Limits, timed: Sequence[tuple[RunEvidence, TimingEvidence]], sheet: Sheet) -> float:
    """Settle INCONCLUSIVE when a limit was exceeded in any process, or one was not watched all along.

    The largest spread of the SM clock within a process.
    """
    device = (seconds for _, timing in timed for seconds in timing.observed_device_seconds.values())
    clocked = sheet.mechanism == "cuda_graph" or any(seconds > 0 for seconds in device)
    sampled = [_watched(run, timing, clocked=clocked) for run, timing in timed]
    seen = {
        "foreign_gpu_processes": max(float(max(each.foreign_processes for each in samples)) for samples in sampled),
        "throttled_share": max(_throttled_share(samples) for samples in sampled),
        "sm_clock_spread": _highest(clock_spread(samples) for samples in sampled),
        "host_load_per_core": _highest(each.host_load_per_core for samples in sampled for each in samples),
    }
    sheet.figure("power_capped_share", max(_power_capped_share(samples) for samples in sampled))
    sheet.count("telemetry_samples", sum(len(samples) for samples in sampled))
    exceeded = []
    for name, value in seen.items():
        limit = float(getattr(limits, name))
        sheet.figure(name, value)
        if not value <= limit:
            exceeded.append(f"{name.replace('_', ' ')} {number(value)} (limit {number(limit)})")
    if exceeded:
        settle(reasons.LIMITS_EXCEEDED, f"the machine was not quiet while it was timed: {', '.join(exceeded)}")
    return seen["sm_clock_spread"]


def _watched(run: RunEvidence, timing: TimingEvidence, *, clocked: bool) -> list[TelemetrySample]:
    """What was sampled in a process; settles when that was not all along, or not all that is to be seen.

    clocked: whether a GPU worked in what was timed, captured or not, so that its clock belongs to that.
    """
    telemetry = run.telemetry
    if telemetry is None or not telemetry.samples:
        settle(reasons.TELEMETRY_MISSING, f"nothing was recorded of the machine during run {run.run_id}")
    samples = telemetry.samples
    # a negative count: the driver did not say which processes use the GPU
    if any(each.foreign_processes < 0 for each in samples):
        settle(reasons.TELEMETRY_MISSING, f"other processes on the GPU could not be seen during run {run.run_id}")
    clocks = [each for each in samples if each.sm_clock_mhz]  # a GPU at work has no clock of 0 MHz: it was not read
    if clocked and not clocks:
        settle(reasons.TELEMETRY_MISSING, f"the GPU's SM clock could not be seen during run {run.run_id}")
    what, looks = ("the GPU's SM clock", clocks) if clocked else ("the machine", samples)
    unseen = _longest_unseen(timing.blocks, looks, telemetry.began)
    if not unseen <= LONGEST_UNSEEN_S:
        settle(
            reasons.TELEMETRY_MISSING,
            f"for {number(unseen)} s of what run {run.run_id} timed, {what} was not sampled; "
            f"{number(LONGEST_UNSEEN_S)} s may pass between two samples",
        )
    return samples


def _longest_unseen(blocks: list[Block], samples: list[TelemetrySample], began: float | None) -> float:
    """Seconds: the longest stretch of the timed blocks without a sample. `began`: the sampler's start, if known.

    All of them where blocks and samples have no common clock: how many samples there were is known then, not when. What
    evidence does not say never counts for it.
    """
    begins = [math.nan if block.began is None else block.began for block in blocks]
    if began is None or not all(math.isfinite(moment) for moment in (began, *begins)):
        return sum(block.seconds for block in blocks)
    begin = min(begins)
    end = max(first + block.seconds for first, block in zip(begins, blocks, strict=True))
    sampled = sorted(sample.seconds for sample in samples if math.isfinite(sample.seconds))
    within = [min(max(began + second, begin), end) for second in sampled]
    return max(later - earlier for earlier, later in pairwise([begin, *within, end]))


def _throttled_share(samples: list[TelemetrySample]) -> float:
    """Share of samples with a throttle reason other than the power cap.

    A dense step draws what the card may draw, so the cap is part of the workload; what it does to the clock is bounded
    by `sm_clock_spread`, and how often it was there is a figure of its own.
    """
    return sum(bool(set(sample.throttle_reasons) - {POWER_CAP}) for sample in samples) / len(samples)


def _power_capped_share(samples: list[TelemetrySample]) -> float:
    return sum(POWER_CAP in sample.throttle_reasons for sample in samples) / len(samples)


def clock_spread(samples: list[TelemetrySample]) -> float:
    """(highest - lowest) / median SM clock under load; 0 where there is no such clock, NaN when one cannot be."""
    clocks = [sample.sm_clock_mhz for sample in samples if sample.sm_clock_mhz is not None]
    if not all(math.isfinite(clock) for clock in clocks):
        return math.nan
    if not clocks:
        return 0.0
    middle = median(clocks)
    return (max(clocks) - min(clocks)) / middle if middle > 0 else math.nan


def _highest(values: Iterable[float]) -> float:
    """The largest; NaN when one is not finite. `max` alone keeps a number that stands before a NaN."""
    found = list(values)
    return max(found) if all(math.isfinite(value) for value in found) else math.nan

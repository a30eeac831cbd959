"""Check whether something else than the speed of the arms decided a timing: a clock, an idle baseline, a busy machine.

Under a power cap, the arm that needs more power runs at a lower clock. Such a difference matters only if the faster arm
had the higher clock, because its speed may then come from the clock. If neither host nor device works for much of the
baseline's time, something slowed the baseline. The telemetry of host and GPU is compared with the limits of the claim.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import fmean, median

import numpy as np

from harness.evidence.run_evidence import RunEvidence
from harness.evidence.run_records import Block, Telemetry, TelemetrySample, TimingEvidence
from harness.judging import reasons
from harness.judging.sheet import Sheet, number, settle
from harness.kinds.speed.model import Limits
from harness.kinds.speed.timing import device_seconds

Timed = tuple[TimingEvidence, Telemetry]
"""The timed blocks of one process, and the telemetry that was sampled during them."""

# The two margins limit the time for which the device, or the processors, worked in a block, as a multiple of the
# block's measured seconds. The timed phase may differ from the sum of its blocks by `UNACCOUNTED_S` plus a share of the
# phase. In 208 processes on H200s, the device worked for at most 0.978 times the block's seconds (measured in another
# block), the processors for at most 1.014 times. The phase was 0.79 s shorter to 0.25 s longer than its blocks' sum.
DEVICE_MARGIN = 1.25
PROCESSOR_MARGIN = 1.25  # multiplied by the number of processors, and compared with the time of all processors together
UNACCOUNTED_S = 1.0
# The share of the timed phase by which the phase may differ in addition to `UNACCOUNTED_S`. If a step is shorter than a
# millisecond, recording the step can take as long as the step itself.
UNACCOUNTED_SHARE = 0.5


def require_no_clock_advantage(winner: str, loser: str, limit: float, timed: Sequence[Timed], sheet: Sheet) -> None:
    """End the judgement with INCONCLUSIVE if the winner's mean SM clock exceeded the loser's by a share above `limit`.

    An arm's mean clock is the mean over all processes. In a process, it is the mean of the samples during the arm's
    timed blocks. The judgement also ends with INCONCLUSIVE if there is no such sample for an arm in a process.
    """
    means = {arm: fmean(_mean_clock(arm, *each) for each in timed) for arm in (winner, loser)}
    for arm, clock in means.items():
        sheet.figure(f"sm_clock.{arm}", clock, "MHz")
    advantage = means[winner] / means[loser] - 1
    sheet.figure("clock_advantage", advantage)
    if not advantage <= limit:
        settle(
            reasons.LIMITS_EXCEEDED,
            f"the ratio is in favour of {winner}, and the GPU's clock favoured it by {number(advantage)} (limit "
            f"{number(limit)}): {means[winner]:.0f} MHz against {means[loser]:.0f} MHz for {loser}",
        )


def _mean_clock(arm: str, timing: TimingEvidence, telemetry: Telemetry) -> float:
    """Return the mean SM clock in MHz, over the samples that were taken while blocks of `arm` were timed."""
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
            f"no SM clock was sampled while {arm} was timed in process {timing.process}, so it is unknown which arm "
            "the clock favoured",
        )
    return fmean(clocks)


# Code in the timed process could replace its clock by a wrong clock. It cannot replace the clocks of the device, of the
# processors and of the supervisor. The following functions compare the timed seconds with these clocks.


def require_sound_clock(timed: Sequence[tuple[TimingEvidence, Telemetry | None]]) -> None:
    """End the judgement with INCONCLUSIVE if the seconds that a process measured contradict another clock. Neither the
    GPU nor the processors may have worked longer in a block than these seconds allow. The seconds must also agree with
    the supervisor's clock."""
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
                f"process {timing.process} timed {number(block.seconds)} s for a block of {block.arm}, but the device "
                f"works for {number(device)} s in such a block",
            )
        worked, processors = block.processor_seconds, timing.processors
        if worked is not None and processors and worked > PROCESSOR_MARGIN * processors * block.seconds:
            settle(
                reasons.CLOCK_CONTRADICTED,
                f"process {timing.process} timed {number(block.seconds)} s for a block of {block.arm}, but "
                f"{processors} processors worked for {number(worked)} s in it",
            )


def _require_seconds_that_passed(timing: TimingEvidence, telemetry: Telemetry | None) -> None:
    """End the judgement with INCONCLUSIVE unless the seconds of all blocks add up to about the duration of the timed
    phase. The supervisor measured this duration with its clock."""
    if telemetry is None or telemetry.timed_seconds is None:
        return
    reported, passed = sum(block.seconds for block in timing.blocks), telemetry.timed_seconds
    sound = abs(passed - reported) <= UNACCOUNTED_S + UNACCOUNTED_SHARE * passed < math.inf
    if not sound:
        settle(
            reasons.CLOCK_CONTRADICTED,
            f"process {timing.process} reports {number(reported)} s of timed blocks, but they took {number(passed)} s "
            "by its supervisor's clock",
        )


HELPERS_SHARE = 0.02  # largest untimed work of an arm's threads and children, as a share of the faster arm's timed time


def require_no_untimed_work(timings: Sequence[TimingEvidence], sheet: Sheet) -> None:
    """End the judgement with INCONCLUSIVE if an arm's threads or child processes worked outside the arm's timed blocks.

    The arm's timed seconds do not contain such work, although it slows the other arm. Therefore no contract can allow
    such work. Do nothing if the evidence has no processor time of threads (not Linux, or older evidence).
    """
    if all(block.untimed_helper_seconds is None for timing in timings for block in timing.blocks):
        return
    shares: dict[str, float] = {}
    for timing in timings:
        timed: dict[str, float] = {}
        untimed: dict[str, float] = {}
        for block in timing.blocks:
            if block.untimed_helper_seconds is None:
                settle(
                    reasons.TELEMETRY_MISSING,
                    f"process {timing.process} did not record, for every block, how long threads worked outside of it",
                )
            timed[block.arm] = timed.get(block.arm, 0.0) + block.seconds
            untimed[block.arm] = untimed.get(block.arm, 0.0) + block.untimed_helper_seconds
        for arm, seconds in untimed.items():
            shares[arm] = _highest([shares.get(arm, 0.0), seconds / min(timed.values())])
    for arm, share in shares.items():
        sheet.figure(f"untimed_helper_share.{arm}", share)
    for arm, share in shares.items():
        if not share <= HELPERS_SHARE:
            settle(
                reasons.WORKS_OUTSIDE_BLOCKS,
                f"threads or child processes of {arm} worked outside of its timed blocks, for {number(share)} of the "
                f"timed seconds (limit {number(HELPERS_SHARE)}), and no timed second of {arm} counts that work",
            )


def require_busy_baseline(timings: Sequence[TimingEvidence], baseline: str, limit: float, sheet: Sheet) -> None:
    """End the judgement with INCONCLUSIVE if the baseline's idle share (`idle_share`) exceeds `limit` in a process."""
    worst = 0.0
    for timing in timings:
        device = timing.observed_device_seconds.get(baseline)
        if device is not None and not math.isfinite(device):
            settle(
                reasons.TELEMETRY_MISSING,
                f"process {timing.process} recorded {device} s as the device's time in a step of {baseline}, which is "
                "not finite",
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
            f"{baseline} was idle for {number(worst)} of its time (limit {number(limit)}), because neither host nor "
            "device worked: something slowed it",
        )


def require_unhindered_host(
    timings: Sequence[TimingEvidence], baseline: str, enqueue_seconds: float, sheet: Sheet
) -> None:
    """End the judgement with INCONCLUSIVE if the device takes longer to execute a baseline step than the host takes to
    enqueue it.

    In this case the device's queue may have been full, and the measured enqueue time may include waiting.
    """
    device = max(device_seconds(timing, timings, baseline) for timing in timings)
    sheet.figure("baseline_device_ms", 1000 * device, "ms")
    if not device <= enqueue_seconds:
        settle(
            reasons.HOST_WAITED,
            f"in a step of {baseline} the device works for {number(1000 * device)} ms, but the host enqueues the step "
            f"in {number(1000 * enqueue_seconds)} ms, so the host may have waited for a full queue",
        )


def idle_share(timing: TimingEvidence, arm: str, device: float) -> float | None:
    """Return the share of time in which neither processor nor device worked. The share is the median over `arm`'s
    blocks, at least 0.

    device: the seconds for which the device works in a step. Return None if the arm has no blocks, or if the processor
    time of a block is unknown.
    """
    shares = []
    for block in timing.blocks:
        if block.arm != arm:
            continue
        if block.processor_seconds is None:
            return None
        shares.append(1 - max(block.processor_seconds, device * block.steps) / block.seconds)
    return max(0.0, float(np.median(shares))) if shares else None


POWER_CAP = "sw_power_cap"
# Largest time without a telemetry sample, in seconds. Telemetry is sampled every half second. In 224 processes on H200s
# the longest gap was 0.61 s.
LONGEST_UNSEEN_S = 2.0


def require_quiet_machine(limits: Limits, timed: Sequence[tuple[RunEvidence, TimingEvidence]], sheet: Sheet) -> float:
    """End the judgement with INCONCLUSIVE if a limit was exceeded, or telemetry is missing or has gaps, in any process.

    Return the largest spread of the SM clock within a process.
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
        settle(reasons.LIMITS_EXCEEDED, f"the machine was not quiet during the timing: {', '.join(exceeded)}")
    return seen["sm_clock_spread"]


def _watched(run: RunEvidence, timing: TimingEvidence, *, clocked: bool) -> list[TelemetrySample]:
    """Return a process's telemetry samples. End the judgement with INCONCLUSIVE if samples or their values are missing.

    clocked: True if a GPU worked in the timed steps, so that its clock must have been sampled.
    """
    telemetry = run.telemetry
    if telemetry is None or not telemetry.samples:
        settle(reasons.TELEMETRY_MISSING, f"the state of the machine was not recorded during run {run.run_id}")
    samples = telemetry.samples
    # A negative number means that the driver could not list the processes on the GPU.
    if any(each.foreign_processes < 0 for each in samples):
        settle(reasons.TELEMETRY_MISSING, f"the driver did not report the processes on the GPU during run {run.run_id}")
    clocks = [each for each in samples if each.sm_clock_mhz]  # 0 MHz means that the clock was not read
    if clocked and not clocks:
        settle(reasons.TELEMETRY_MISSING, f"the GPU's SM clock could not be read during run {run.run_id}")
    what, looks = ("the GPU's SM clock", clocks) if clocked else ("the machine", samples)
    unseen = _longest_unseen(timing.blocks, looks, telemetry.began)
    if not unseen <= LONGEST_UNSEEN_S:
        settle(
            reasons.TELEMETRY_MISSING,
            f"{what} was not sampled for {number(unseen)} s of the timed part of run {run.run_id}, but at most "
            f"{number(LONGEST_UNSEEN_S)} s may pass between two samples",
        )
    return samples


def _longest_unseen(blocks: list[Block], samples: list[TelemetrySample], began: float | None) -> float:
    """Return the longest time within the timed blocks without a sample, in seconds. began: time at which the sampling
    began; None if it is unknown.

    If the times of blocks and samples cannot be compared, return the seconds of all blocks together. Missing evidence
    must never count in favour of a claim.
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
    """Return the share of samples in which the driver slowed the GPU for another reason than the power cap.

    A step that uses the GPU fully reaches the power cap, so the cap is part of the workload. `sm_clock_spread` limits
    the cap's effect on the clock. The figure `power_capped_share` is the share of samples in which the cap applied.
    """
    return sum(bool(set(sample.throttle_reasons) - {POWER_CAP}) for sample in samples) / len(samples)


def _power_capped_share(samples: list[TelemetrySample]) -> float:
    return sum(POWER_CAP in sample.throttle_reasons for sample in samples) / len(samples)


def clock_spread(samples: list[TelemetrySample]) -> float:
    """Return (highest - lowest) / median of the SM clock under load. Return 0 without clocks, and NaN if a clock is not
    finite."""
    clocks = [sample.sm_clock_mhz for sample in samples if sample.sm_clock_mhz is not None]
    if not all(math.isfinite(clock) for clock in clocks):
        return math.nan
    if not clocks:
        return 0.0
    middle = median(clocks)
    return (max(clocks) - min(clocks)) / middle if middle > 0 else math.nan


def _highest(values: Iterable[float]) -> float:
    """Return the largest value, or NaN if any value is not finite. Python's `max` may ignore NaN."""
    found = list(values)
    return max(found) if all(math.isfinite(value) for value in found) else math.nan

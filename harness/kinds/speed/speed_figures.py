"""Compute the ratios, the figures and the sentence of a timing's verdict from the measurements of its processes.

The times of each process have two readings, because it may be unclear which blocks were disturbed. The cautious
reading can prove the demanded ratio, and the generous reading can refute this ratio (`statistics.readings`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Literal

import numpy as np

from harness.evidence.run_evidence import RunEvidence
from harness.evidence.run_records import TimingEvidence
from harness.judging import reasons, statistics
from harness.judging.sheet import Settled, Sheet, number, settle
from harness.judging.statistics import Reading, Spread
from harness.judging.verdict import Demanded, Interval
from harness.kinds.speed.model import ThroughputRatio
from harness.kinds.speed.timing import Counted, Process, StepTimes, counted

READ = ("ratios", "selves", "whole")
# If the ratios of both readings differ by less than this share, the verdict's sentence contains only one number.
READ_ALIKE = 0.01


def readings(times: Sequence[StepTimes]) -> tuple[Reading, Reading]:
    """Return two readings of all processes: disturbed blocks count against the candidate (cautious), or in its favour
    (generous). Processes may have different numbers of rounds."""
    # Compute processes with equally many rounds together. Separate calls for each process took a third of the time in
    # which a verdict is computed.
    alike = [list(group) for _, group in groupby(times, lambda each: each.candidate.shape)]
    both = [_of_as_many_rounds(group) for group in alike]
    cautious, generous = (
        Reading(*(np.concatenate([getattr(one, field) for one in each], axis=-1) for field in READ))
        for each in zip(*both, strict=True)
    )
    return cautious, generous


def _of_as_many_rounds(times: Sequence[StepTimes]) -> tuple[Reading, Reading]:
    fields = ("candidate", "baseline", "free_candidate", "free_baseline")
    both = statistics.readings(*(np.stack([getattr(each, field) for each in times]) for field in fields))
    stalled = np.log([each.stalled for each in times])
    cautious, generous = (replace(one, whole=one.whole - stalled) for one in both)
    return cautious, generous


def require_apart(part: ThroughputRatio, timings: Sequence[TimingEvidence]) -> None:
    """End the judgement unless the measurements were made one after the other. Measurements at the same time would
    share the same noise, and would not be independent."""
    if part.measurements == 1:
        return
    spans: list[tuple[float, float]] = []
    for measurement in range(part.measurements):
        here = [each for each in timings if part.measurement_of(each.process) == measurement]
        blocks = [block for each in here for block in each.blocks]
        if any(block.began is None for block in blocks):
            settle(reasons.EVIDENCE_MISSING, f"measurement {measurement} does not record when its blocks began")
        began = [block.began or 0.0 for block in blocks]
        spans.append((min(began), max(block.seconds + (block.began or 0.0) for block in blocks)))
    for later, ((_, over), (since, _)) in enumerate(pairwise(spans), start=1):
        if not over <= since:
            settle(
                reasons.MEASUREMENTS_OVERLAP,
                f"measurement {later} began {over - since:.3g} s before measurement {later - 1} ended",
            )


def note_ratios(part: ThroughputRatio, timed: Counted, cautious: Reading, generous: Reading, sheet: Sheet) -> None:
    """Add the ratios to the verdict's figures (`sheet`). There is a ratio of all processes together, one of each
    process and, if there are several measurements, one of each measurement."""
    for prefix, low, high in _together_and_apart(timed, cautious, generous):
        sheet.figure(f"{prefix}mean_ratio", _mean(part, low), "x")
        sheet.figure(f"{prefix}generous_mean_ratio", _mean(part, high), "x")
        sheet.figure(f"{prefix}lower_bound", math.exp(statistics.lower_bound(low, part.confidence)), "x")
        sheet.figure(f"{prefix}upper_bound", math.exp(statistics.upper_bound(high, part.confidence)), "x")
        sheet.figure(f"{prefix}margin", math.exp(statistics.margin(low, part.confidence)), "x")
        sheet.figure(f"{prefix}missed_bias", math.exp(statistics.missed_bias(low.selves)), "x")
        sheet.figure(f"{prefix}log_ratio_deviation", Spread.of(low.ratios).deviation)
        for arm, logs in zip(("candidate", "baseline"), low.selves, strict=True):
            least, most = statistics.self_intervals(logs)
            sheet.figure(f"{prefix}self_ratio_{arm}_low", math.exp(least), "x")
            sheet.figure(f"{prefix}self_ratio_{arm}_high", math.exp(most), "x")
    sheet.figure("demanded_ratio", part.at_least, "x")
    sheet.note(ratio_demanded(part, "mean_ratio", cautious, generous))
    if any(process.timing.own_processes for process in timed.processes):
        sheet.figure("arms_in_own_processes", True)
    arms: tuple[Literal["candidate", "baseline"], ...] = ("candidate", "baseline")
    for arm in arms:
        sheet.figure(f"{arm}_{part.measure}_ms", 1000 * median_seconds(timed, arm), "ms")
    note_processes(timed, cautious, sheet)


def note_processes(timed: Counted, reading: Reading, sheet: Sheet) -> None:
    """Add each process's ratio to the verdict's figures (`sheet`), for the charts. reading: the one of the two readings
    (against the candidate, or in its favour) that decides."""
    for process, value in zip(timed.processes, reading.ratios, strict=True):
        sheet.figure(f"ratio.process_{process.timing.process}", math.exp(value), "x")


def ratio_demanded(part: ThroughputRatio, figure: str, cautious: Reading, generous: Reading) -> Demanded:
    """Return the demanded ratio, with the measured ratio and its confidence interval. figure: `mean_ratio` or, for a
    FAIL, `generous_mean_ratio`."""
    low = math.exp(statistics.lower_bound(cautious, part.confidence))
    high = math.exp(statistics.upper_bound(generous, part.confidence))
    interval = Interval(low, high, part.confidence, "one-sided bounds", "processes")
    mean = _mean(part, cautious if figure == "mean_ratio" else generous)
    return Demanded(figure, mean, "at least", part.at_least, "x", interval=interval)


def median_seconds(timed: Counted, arm: Literal["candidate", "baseline"]) -> float:
    """Return an arm's seconds per step: the median over all processes of the median over a process's blocks."""
    return float(np.median([np.median(getattr(each, arm)) for each in timed.times]))


def _together_and_apart(timed: Counted, cautious: Reading, generous: Reading) -> Iterator[tuple[str, Reading, Reading]]:
    yield "", cautious, generous
    if len(timed.sizes) > 1:
        parts = (each.of_measurements(timed.sizes) for each in (cautious, generous))
        for measurement, (low, high) in enumerate(zip(*parts, strict=True)):
            yield f"measurement_{measurement}.", low, high


def measured(part: ThroughputRatio, timed: Counted, reading: Reading) -> str:
    """Return a sentence such as `A is 1.203 times as fast as B (1.180 to 1.220 over 8 processes)`. If a process was
    left out, the sentence contains `over 7 of 8 processes`."""
    low, high = (float(math.exp(value)) for value in (reading.ratios.min(), reading.ratios.max()))
    faster = f"{part.candidate} is {_mean(part, reading):.3f} times as fast{_to_enqueue(part)} as {part.baseline}"
    return f"{faster} ({low:.3f} to {high:.3f} over {timed.only(part)}{_processes(part)}{_apart(timed)})"


def undecided(part: ThroughputRatio, timed: Counted, cautious: Reading, generous: Reading) -> str:
    """Return a sentence about a ratio that does not decide the claim. If the two readings give different ratios, the
    sentence contains both. Otherwise it says that the ratio is too close to the demanded one."""
    low, high = _mean(part, cautious), _mean(part, generous)
    if low < part.at_least <= high and high - low > READ_ALIKE * low:
        return (
            f"{part.candidate} is between {low:.3f} and {high:.3f} times as fast{_to_enqueue(part)} as "
            f"{part.baseline} over {timed.only(part)}{_processes(part)}, depending on which blocks were disturbed; "
            f"{number(part.at_least)} is required"
        )
    sentence = (
        f"{measured(part, timed, cautious)}, which is too close to the required {number(part.at_least)} to decide"
    )
    least = float(math.exp(statistics.lower_bound(cautious, part.confidence)))
    most = float(math.exp(statistics.upper_bound(generous, part.confidence)))
    # The bounds over all measurements together may decide, although those of a single measurement do not. In that case,
    # leave the bounds out of the sentence.
    if least < part.at_least <= most:
        sure = f"at {part.confidence * 100:g}% confidence"
        sentence += f": {sure}, the ratio is at least {_down(least):.3f} and at most {-_down(-most):.3f}"
    return sentence


def _down(value: float) -> float:
    """Return the value rounded down to three decimal places. Rounded up, it could seem to reach the demanded ratio."""
    return math.floor(value * 1000) / 1000 if math.isfinite(value) else value


def _to_enqueue(part: ThroughputRatio) -> str:
    return " to enqueue" if part.measure == "enqueue" else ""


def _apart(timed: Counted) -> str:
    """Return a clause for a sentence if each arm was timed in separate processes, as in a comparison of two commits.
    Otherwise return ""."""
    return ", each arm in separate processes" if any(each.timing.own_processes for each in timed.processes) else ""


def _mean(part: ThroughputRatio, reading: Reading) -> float:
    mean, _ = statistics.trimmed(reading.ratios, part.confidence)
    return float(math.exp(mean))


def _processes(part: ThroughputRatio) -> str:
    processes = f"{part.processes} processes"
    return processes if part.measurements == 1 else f"{part.measurements} measurements of {processes}"


# The following class estimates the probability that a timing decides a claim (PASS or FAIL), for a given true ratio. It
# uses the noise of a recorded timing.

EXPERIMENTS = 2000


class Recorded:
    """The processes of one recorded timing, read against the candidate (cautious) and in its favour (generous)."""

    def __init__(self, timed: Counted, cautious: Reading, generous: Reading) -> None:
        self.processes, self._readings = len(timed.processes), (cautious, generous)

    @classmethod
    def of(cls, part: ThroughputRatio, runs: Sequence[RunEvidence]) -> Recorded | None:
        """Return the processes of a claim's runs, or None if too few timings among the runs fit the claim.

        The claim may have been changed after the runs, for example in its number of processes.
        """
        found: dict[int, Process] = {}
        for run in runs:
            timing = run.timing
            if timing is not None and (timing.candidate, timing.baseline) == (part.candidate, part.baseline):
                found.setdefault(timing.process, Process(run, timing))
        if len(found) < statistics.fewest_processes(part.confidence):
            return None
        numbered = {"measurements": 1, "processes": 1 + max(found)}
        try:
            timed = counted(part.model_copy(update=numbered), [found[process] for process in sorted(found)], Sheet())
        except Settled:
            return None
        return cls(timed, *readings(timed.times))

    def power(self, part: ThroughputRatio, true_ratio: float, seed: int = 0) -> float:
        """Return the probability, 0 to 1, that the claim is decided if `true_ratio` is the true ratio.

        Each simulated experiment draws as many processes as the claim has, with replacement, from the recorded
        processes. All log ratios are shifted by the same amount. The mean of the cautious and the generous trimmed mean
        is then the true ratio. Noise that is common to all recorded processes is not simulated, so the real probability
        may be lower.
        """
        means = [statistics.trimmed(one.ratios, part.confidence)[0] for one in self._readings]
        shift = math.log(true_ratio) - float(np.mean(means))
        drawn = np.random.default_rng(seed).integers(0, self.processes, (EXPERIMENTS, part.process_count()))
        low, high = (
            replace(
                one,
                ratios=one.ratios[drawn] + shift,
                selves=np.moveaxis(one.selves[:, drawn], 0, 1),
                whole=one.whole[drawn] + shift,
            )
            for one in self._readings
        )
        decided = statistics.decide(low, high, math.log(part.at_least), part.confidence, part.measurements)
        return float(np.mean(decided != 0))


@dataclass(frozen=True)
class LastTiming:
    """The last timing of a claim on a workload. run: the run's name. part: the claim as it is in the contract now."""

    contract: str
    claim: str
    workload: str
    run: str
    part: ThroughputRatio
    recorded: Recorded

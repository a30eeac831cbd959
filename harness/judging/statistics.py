"""Compute the statistics of the throughput rule: pure functions over the last axes, which a simulation runs too.

The unit of replication is a process. A measurement is P processes, and a claim may ask for M measurements, one after
the other. A process is read twice, once against the candidate and once in its favour (`readings`): what disturbs a
block only makes it slower. docs/statistics.md derives the rule. Shapes: `...` any number of experiments, R rounds of
ABBA, two blocks of each arm in a round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from harness.kinds.speed.model import MOST_PROCESSES

Array = NDArray[np.float64]
_Step = Callable[[Array], Array]  # seconds a step of blocks [..., B] -> of the arm [...]
SELF_CONFIDENCE = 0.95  # two-sided, of the A/A intervals
UNDISTURBED = 25.0  # percentile of an arm's blocks, fastest first, that is taken for the undisturbed step
TRIMMED_ONE_IN = 8  # one process in so many is left out of the mean, on each side
# What noise common to a measurement may add to a log ratio, which no repetition within it shows: 2.75 standard
# deviations of 1 % (0.3 % of all measurements are beyond), 1.1 of 2.5 % (13.6 % are, and of two 1.8 % both).
COMMON_NOISE = 0.0275
_ROUNDING = 1 + 1e-9  # keeps 1 - 0.75 = 0.25 from missing 2^-2
PROBABLY = 0.5  # "would probably decide": the chance of deciding is at least this


@dataclass(frozen=True)
class Reading:
    """Of each process: the log ratio [..., P], above 0 where the candidate is faster, and each arm's with itself
    [..., 2, P], candidate first; whole: the log ratio of the undisturbed baseline to all of the candidate's blocks
    [..., P], which is the same in both readings."""

    ratios: Array
    selves: Array
    whole: Array

    def of_measurements(self, measurements: int | Sequence[int]) -> list[Reading]:
        """Return the processes, by their numbers, in so many parts of equal size, or in parts of these sizes."""
        parts = measurements if isinstance(measurements, int) else np.cumsum(measurements)[:-1]
        fields = (np.split(values, parts, axis=-1) for values in (self.ratios, self.selves, self.whole))
        return [Reading(*each) for each in zip(*fields, strict=True)]


def readings(
    candidate: Array, baseline: Array, free_candidate: Array | None = None, free_baseline: Array | None = None
) -> tuple[Reading, Reading]:
    """Return two readings of step times [..., P, R, 2]: the cautious one, for a PASS, and the generous one, for a FAIL.

    An undisturbed step is the lower quartile of an arm's blocks. A step as it was found is their median. The cautious
    reading compares the baseline undisturbed with the candidate as found, the generous one the other way round. free_*:
    what the blocks would at least have taken undisturbed, where that is known to be less.
    """
    free_candidate = candidate if free_candidate is None else free_candidate
    free_baseline = baseline if free_baseline is None else free_baseline
    whole = np.log(undisturbed(_blocks(free_baseline))) - np.log(_blocks(free_candidate).mean(axis=-1))
    cautious = _reading(candidate, free_baseline, as_found, undisturbed, whole)
    return cautious, _reading(free_candidate, baseline, undisturbed, as_found, whole)


def undisturbed(seconds: Array) -> Array:
    """Return the lower quartile of finite step times [..., B]: `np.percentile` bit for bit, faster, as `as_found`."""
    ordered, blocks = np.sort(seconds, axis=-1), seconds.shape[-1]
    place = UNDISTURBED / 100 * (blocks - 1)
    below = int(place)
    low, high = ordered[..., below], ordered[..., min(below + 1, blocks - 1)]
    share = place - below  # from the nearer of the two, as numpy does
    return np.asarray(low + (high - low) * share if share < 0.5 else high - (high - low) * (1 - share))


def as_found(seconds: Array) -> Array:
    """Return the median of finite step times [..., B]: `np.median` bit for bit, which for so few takes six times as
    long as sorting them."""
    ordered, blocks = np.sort(seconds, axis=-1), seconds.shape[-1]
    return np.asarray((ordered[..., (blocks - 1) // 2] + ordered[..., blocks // 2]) / 2)


def _blocks(arm: Array) -> Array:
    """Return step times [..., R, 2] by block: [..., B]."""
    return arm.reshape(*arm.shape[:-2], -1)


def _reading(candidate: Array, baseline: Array, of_candidate: _Step, of_baseline: _Step, whole: Array) -> Reading:
    ratios = np.log(of_baseline(_blocks(baseline))) - np.log(of_candidate(_blocks(candidate)))
    arms = ((candidate, of_candidate), (baseline, of_baseline))
    selves = [np.log(step(arm[..., 0])) - np.log(step(arm[..., 1])) for arm, step in arms]
    return Reading(ratios, np.stack(selves, axis=-2), whole)


@cache  # one verdict asks for the same few of them a hundred times
def t_quantile(confidence: float, processes: int) -> float:
    """Return the quantile of Student's t with `processes` - 1 degrees of freedom."""
    from scipy.special import stdtrit

    return float(stdtrit(processes - 1, confidence))


def left_out(processes: int) -> int:
    """Return how many of so many processes the trimmed mean leaves out, on each side."""
    return processes // TRIMMED_ONE_IN


def trimmed(logs: Array, confidence: float) -> tuple[Array, Array]:
    """Return the trimmed mean of `logs` [..., P], and the reach of its one-sided interval. Shapes [...].

    Tukey and McLaughlin (1963): the mean without the outermost on each side, its standard error from the winsorized
    deviation, and Student's t with as many degrees of freedom as processes remain, less one.
    """
    processes = logs.shape[-1]
    cut = left_out(processes)
    kept = processes - 2 * cut
    ordered = np.sort(logs, axis=-1)
    middle = ordered[..., cut : processes - cut]
    winsorized = np.clip(ordered, middle[..., :1], middle[..., -1:])
    error = winsorized.std(axis=-1, ddof=1) * np.sqrt(processes) / kept
    return middle.mean(axis=-1), t_quantile(confidence, kept) * error


def self_intervals(logs: Array) -> tuple[Array, Array]:
    """Return the ends of the two-sided 95 % interval of the trimmed mean of an arm's log A/A ratios [..., P]."""
    mean, reach = trimmed(logs, (1 + SELF_CONFIDENCE) / 2)
    return mean - reach, mean + reach


def missed_bias(selves: Array) -> Array:
    """Return the bias a measurement could have missed: the worst end of either arm's interval. [..., 2, P] -> [...]."""
    low, high = self_intervals(selves)
    worst: Array = np.maximum(np.abs(low), np.abs(high)).max(axis=-1)
    return worst


def margin(reading: Reading, confidence: float) -> Array:
    """Return by how much the trimmed mean has to clear the demanded log ratio: [...].

    It is the reach of the mean's interval with the bias that could have been missed, and at least what common noise may
    add. The reach is independent of common noise.
    """
    _, reach = trimmed(reading.ratios, confidence)
    return _allowed_for(reach, missed_bias(reading.selves))


def _allowed_for(reach: Array | float, bias: Array | float) -> Array:
    return np.maximum(reach + bias, np.hypot(reach, COMMON_NOISE))


@cache  # likewise
def may_dissent(processes: int, confidence: float) -> int:
    """Return how many processes may lie on the other side: 0 of 8 at a confidence of 0.99 (0.4 %), 1 of 12 (0.3 %).

    Where the median is the demanded ratio, so few of them lie below it with a chance of at most 1 - confidence,
    whatever the noise's shape.
    """
    from scipy.special import bdtr

    fitting = [few for few in range(processes) if float(bdtr(few, processes, 0.5)) <= (1 - confidence) * _ROUNDING]
    return max(fitting, default=0)


def _shared(reading: Reading) -> Array:
    """Return what all processes may have in common: no agreement between them shows it."""
    return np.maximum(missed_bias(reading.selves), COMMON_NOISE)


def sustained(cautious: Reading, confidence: float) -> Array:
    """Return the log ratio of a measurement by all of the candidate's seconds: [...].

    It is of the seconds that the candidate takes for what the undisturbed baseline does in one second: their mean over
    the processes, without as many of the slowest as may dissent. A median forgets what happens in fewer than half of
    the blocks, and a candidate's own stalls are its own time. A baseline that is slow in one process earns at most that
    one's share."""
    dissenting = may_dissent(cautious.ratios.shape[-1], confidence)
    agreeing = np.argsort(cautious.ratios, axis=-1)[..., dissenting:]
    return np.asarray(-np.log(np.exp(-np.take_along_axis(cautious.whole, agreeing, axis=-1)).mean(axis=-1)))


def lower_bound(cautious: Reading, confidence: float) -> Array:
    """Return the largest log ratio that a measurement proves [...]: the typical block proves it, all sustain it."""
    return np.minimum(typical_bound(cautious, confidence), sustained(cautious, confidence))


def typical_bound(cautious: Reading, confidence: float) -> Array:
    """Return the largest log ratio that the candidate's typical block proves: [...].

    All processes except those that may dissent have to reach it. Besides, either the trimmed mean clears it by its
    margin, or those processes clear it by what they may have in common.
    """
    mean, _ = trimmed(cautious.ratios, confidence)
    dissenting = may_dissent(cautious.ratios.shape[-1], confidence)
    reached = np.sort(cautious.ratios, axis=-1)[..., dissenting]
    return np.minimum(reached, np.maximum(mean - margin(cautious, confidence), reached - _shared(cautious)))


def upper_bound(generous: Reading, confidence: float) -> Array:
    """Return the log ratio above which a measurement refutes every ratio: [...]. The processes need not agree."""
    mean, _ = trimmed(generous.ratios, confidence)
    dissenting = may_dissent(generous.ratios.shape[-1], confidence)
    reached = np.sort(generous.ratios, axis=-1)[..., -1 - dissenting]
    return np.minimum(mean + margin(generous, confidence), reached + _shared(generous))


def proves(cautious: Reading, log_demanded: float, confidence: float) -> NDArray[np.bool_]:
    """Return True where one measurement proves the demanded ratio: [...]."""
    return np.asarray(lower_bound(cautious, confidence) >= log_demanded)


def refutes(generous: Reading, log_demanded: float, confidence: float) -> NDArray[np.bool_]:
    """Return True where one measurement refutes the demanded ratio: [...]."""
    return np.asarray(upper_bound(generous, confidence) < log_demanded)


def decide(
    cautious: Reading,
    generous: Reading,
    log_demanded: float,
    confidence: float,
    measurements: int | Sequence[int] = 1,
) -> NDArray[np.int8]:
    """Return 1 where each measurement proves the demanded ratio, -1 where each refutes it, else 0. Shape [...]."""
    proven = np.all([proves(one, log_demanded, confidence) for one in cautious.of_measurements(measurements)], axis=0)
    refuted = np.all([refutes(one, log_demanded, confidence) for one in generous.of_measurements(measurements)], axis=0)
    return np.asarray(proven.astype(np.int8) - refuted.astype(np.int8), dtype=np.int8)


def stalls(
    cautious: Reading, log_demanded: float, confidence: float, measurements: int | Sequence[int] = 1
) -> NDArray[np.bool_]:
    """Return True where only the candidate's slow blocks stand between it and a proof: [...]."""
    parts = cautious.of_measurements(measurements)
    typical = np.all([typical_bound(one, confidence) >= log_demanded for one in parts], axis=0)
    return np.asarray(typical & np.any([sustained(one, confidence) < log_demanded for one in parts], axis=0))


def fewest_processes(confidence: float) -> int:
    """Return the smallest number of processes whose unanimity can reach the confidence: 2^-P <= 1 - confidence."""
    processes = 2
    while 2.0**-processes > (1 - confidence) * _ROUNDING:
        processes += 1
    return processes


@dataclass(frozen=True)
class Spread:
    """Trimmed mean of a sample of log ratios [P], and the deviation that its error comes from."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, logs: Array) -> Spread:
        kept = len(logs) - 2 * left_out(len(logs))
        mean, reach = trimmed(logs, SELF_CONFIDENCE)
        error = float(reach) / t_quantile(SELF_CONFIDENCE, kept)
        return cls(float(mean), error * kept / float(np.sqrt(len(logs))))

    def reach(self, confidence: float, processes: int) -> float:
        """Return half the width of an interval over so many processes of this spread."""
        kept = processes - 2 * left_out(processes)
        return t_quantile(confidence, kept) * self.deviation * float(np.sqrt(processes)) / kept

    def agreement(self, distance: float, processes: int, confidence: float) -> float:
        """Return the chance that no more than may dissent, of so many processes, lie further from the mean."""
        from scipy.special import bdtr, ndtr

        across = float(distance < 0) if self.deviation == 0 else float(ndtr(-distance / self.deviation))
        return float(bdtr(may_dissent(processes, confidence), processes, across))


def processes_to_decide(cautious: Reading, generous: Reading, log_demanded: float, confidence: float) -> int | None:
    """Return how many processes, more than it had, a measurement of this spread probably needs to decide, or None.

    An estimate, with a normal approximation: a bound must be cleared on the side on which both readings lie. No number
    decides where the readings lie on both sides of the demanded ratio, or the spread next to it is wide.
    """
    above = Spread.of(cautious.ratios).mean - log_demanded
    below = log_demanded - Spread.of(generous.ratios).mean
    if above > 0:
        return _processes_to_clear(cautious, above, confidence, agreeing=True)
    return _processes_to_clear(generous, below, confidence, agreeing=False)


def _processes_to_clear(reading: Reading, distance: float, confidence: float, *, agreeing: bool) -> int | None:
    """Return the fewest processes, more than there are, that clear this distance to the demanded log ratio.

    agreeing: the trimmed mean counts only where all processes except those that may dissent lie on its side, too.
    """
    ratio = Spread.of(reading.ratios)
    selves = [Spread.of(logs) for logs in reading.selves]
    for processes in range(max(fewest_processes(confidence), reading.ratios.shape[-1] + 1), MOST_PROCESSES + 1):
        bias = max(abs(each.mean) + each.reach((1 + SELF_CONFIDENCE) / 2, processes) for each in selves)
        by_mean = distance >= _allowed_for(ratio.reach(confidence, processes), bias) and (
            not agreeing or ratio.agreement(distance, processes, confidence) >= PROBABLY
        )
        apart = distance - max(bias, COMMON_NOISE)
        if by_mean or ratio.agreement(apart, processes, confidence) >= PROBABLY:
            return processes
    return None

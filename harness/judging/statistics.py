"""Compute the statistics of the rule for throughput, as pure functions over the last axes of arrays.

A simulation also calls these functions. One process gives one sample. A measurement has P processes, and a claim may
require several measurements. Disturbances only make blocks slower. Each process is therefore evaluated twice (see
`readings`): once against the candidate, and once in its favour. docs/statistics.md derives the rule. Shapes: `...`
stands for any number of experiments, P for processes, R for rounds (four blocks of the arms A and B, in the order ABBA
or BAAB), 2 for the two blocks of an arm in a round, and B for all blocks of an arm.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from harness.kinds.speed.model import MOST_PROCESSES

Array = NDArray[np.float64]
# A function from the seconds per step of blocks, shape [..., B], to the seconds per step of the arm, shape [...].
_Step = Callable[[Array], Array]
SELF_CONFIDENCE = 0.95  # two-sided confidence level of the intervals for an arm that is timed against itself (A/A)
UNDISTURBED = 25.0  # percentile of an arm's block times that is used as the time of a step without disturbance
TRIMMED_ONE_IN = 8  # of every 8 processes, the trimmed mean leaves out the smallest value and the largest value
# Allowance, in a log ratio, for noise that all processes of a measurement have in common. A comparison of the processes
# cannot show such noise. If its standard deviation is 1 %, the noise exceeds the allowance in 0.3 % of measurements. If
# the deviation is 2.5 %, it does so in 13.6 % of measurements, and in both of two measurements in 1.8 % of cases.
COMMON_NOISE = 0.0275
# without this factor, the rounding of 1 - confidence could change the result of a comparison with 2^-P
_ROUNDING = 1 + 1e-9
PROBABLY = 0.5  # smallest probability at which a number of processes or seeds counts as probably enough


@dataclass(frozen=True)
class Reading:
    """Log ratios of each process of a timing, for one of the two ways to evaluate a process.

    ratios: [..., P]; above 0 if the candidate is faster.
    selves: [..., 2, P]; the ratio of each arm to itself (A/A), the candidate's first.
    whole: [..., P]; the log of this ratio: the time of the undisturbed baseline, divided by the mean time of all blocks
    of the candidate. `whole` is equal in both readings.
    """

    ratios: Array
    selves: Array
    whole: Array

    def of_measurements(self, measurements: int | Sequence[int]) -> list[Reading]:
        """Return one reading for each measurement. measurements: the number of measurements, if all have equally many
        processes, or the number of processes in each measurement."""
        parts = measurements if isinstance(measurements, int) else np.cumsum(measurements)[:-1]
        fields = (np.split(values, parts, axis=-1) for values in (self.ratios, self.selves, self.whole))
        return [Reading(*each) for each in zip(*fields, strict=True)]


def readings(
    candidate: Array, baseline: Array, free_candidate: Array | None = None, free_baseline: Array | None = None
) -> tuple[Reading, Reading]:
    """Return two readings of step times [..., P, R, 2]: the cautious one, by which PASS is decided, and the generous
    one, by which FAIL is decided.

    The undisturbed step is the lower quartile of an arm's blocks. The measured step is their median. The cautious
    reading compares the baseline's undisturbed step with the candidate's measured step. The generous reading compares
    the baseline's measured step with the candidate's undisturbed step. free_*: the shortest times that the blocks would
    have taken without disturbance; None if these are the step times.
    """
    free_candidate = candidate if free_candidate is None else free_candidate
    free_baseline = baseline if free_baseline is None else free_baseline
    whole = np.log(undisturbed(_blocks(free_baseline))) - np.log(_blocks(free_candidate).mean(axis=-1))
    cautious = _reading(candidate, free_baseline, as_found, undisturbed, whole)
    return cautious, _reading(free_candidate, baseline, undisturbed, as_found, whole)


def undisturbed(seconds: Array) -> Array:
    """Return the lower quartile of finite step times [..., B], with the bits of `np.percentile`, but faster."""
    ordered, blocks = np.sort(seconds, axis=-1), seconds.shape[-1]
    place = UNDISTURBED / 100 * (blocks - 1)
    below = int(place)
    low, high = ordered[..., below], ordered[..., min(below + 1, blocks - 1)]
    share = place - below  # as numpy does, start from the nearer of the two values, which gives the same bits
    return np.asarray(low + (high - low) * share if share < 0.5 else high - (high - low) * (1 - share))


def as_found(seconds: Array) -> Array:
    """Return the median of finite step times [..., B], with the bits of `np.median`, but six times as fast."""
    ordered, blocks = np.sort(seconds, axis=-1), seconds.shape[-1]
    return np.asarray((ordered[..., (blocks - 1) // 2] + ordered[..., blocks // 2]) / 2)


def _blocks(arm: Array) -> Array:
    """Return step times of shape [..., R, 2] as an array of shape [..., B], with B = 2 R."""
    return arm.reshape(*arm.shape[:-2], -1)


def _reading(candidate: Array, baseline: Array, of_candidate: _Step, of_baseline: _Step, whole: Array) -> Reading:
    ratios = np.log(of_baseline(_blocks(baseline))) - np.log(of_candidate(_blocks(candidate)))
    arms = ((candidate, of_candidate), (baseline, of_baseline))
    selves = [np.log(step(arm[..., 0])) - np.log(step(arm[..., 1])) for arm, step in arms]
    return Reading(ratios, np.stack(selves, axis=-2), whole)


@cache  # cached, because one verdict needs the same few values a hundred times
def t_quantile(confidence: float, processes: int) -> float:
    """Return the one-sided quantile of Student's t at `confidence`, with `processes` - 1 degrees of freedom."""
    from scipy.special import stdtrit

    return float(stdtrit(processes - 1, confidence))


def left_out(processes: int) -> int:
    """Return how many processes the trimmed mean leaves out at each end."""
    return processes // TRIMMED_ONE_IN


def trimmed(logs: Array, confidence: float) -> tuple[Array, Array]:
    """Return the trimmed mean of `logs` [..., P], and the distance from the mean to its one-sided bound, each of shape
    [...].

    The method is that of Tukey and McLaughlin (1963). The mean omits the outermost values at each end. The standard
    error comes from the winsorized deviation. The degrees of freedom are the number of remaining processes minus one.
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
    """Return the ends of the 95 % interval of the trimmed mean. logs [..., P]: log ratios of an arm to itself (A/A)."""
    mean, reach = trimmed(logs, (1 + SELF_CONFIDENCE) / 2)
    return mean - reach, mean + reach


def missed_bias(selves: Array) -> Array:
    """Return the largest bias [...] that timing each arm against itself (A/A) could have missed. selves: log ratios
    [..., 2, P]."""
    low, high = self_intervals(selves)
    worst: Array = np.maximum(np.abs(low), np.abs(high)).max(axis=-1)
    return worst


def margin(reading: Reading, confidence: float) -> Array:
    """Return by how much the trimmed mean of the log ratios must exceed the required log ratio (shape [...]).

    The margin is the larger of h + b and sqrt(h**2 + c**2). h: the half-width of the mean's confidence interval. b: the
    bias that timing each arm against itself could have missed. c: the allowance `COMMON_NOISE` for noise that all
    processes have in common. This noise is independent of the noise that h shows, so the squares of h and c are added.
    """
    _, reach = trimmed(reading.ratios, confidence)
    return _allowed_for(reach, missed_bias(reading.selves))


def _allowed_for(reach: Array | float, bias: Array | float) -> Array:
    return np.maximum(reach + bias, np.hypot(reach, COMMON_NOISE))


@cache
def may_dissent(processes: int, confidence: float) -> int:
    """Return how many processes may be below a ratio that counts as proven, such as 0 of 8 at confidence 0.99.

    If the true median is the required ratio, the probability that so few processes are below it is at most 1 -
    confidence, for any distribution of the noise. At confidence 0.99, the probability is 0.4 % for 0 of 8, and 0.3 %
    for 1 of 12.
    """
    from scipy.special import bdtr

    fitting = [few for few in range(processes) if float(bdtr(few, processes, 0.5)) <= (1 - confidence) * _ROUNDING]
    return max(fitting, default=0)


def _shared(reading: Reading) -> Array:
    """Return the error [...] that may be the same in all processes, so that comparing the processes cannot show it."""
    return np.maximum(missed_bias(reading.selves), COMMON_NOISE)


def sustained(cautious: Reading, confidence: float) -> Array:
    """Return the log ratio [...] of a measurement over all of the candidate's time, including slow blocks.

    For each process, take the candidate's time for the work that the undisturbed baseline does in one second. The
    result is the negative logarithm of the mean of these times, without the `may_dissent` processes with the lowest
    ratios. A median would ignore slow blocks if they are fewer than half, but the candidate's own stalls must count. If
    the baseline is slow in one process, only the part of this process in the mean changes.
    """
    dissenting = may_dissent(cautious.ratios.shape[-1], confidence)
    agreeing = np.argsort(cautious.ratios, axis=-1)[..., dissenting:]
    return np.asarray(-np.log(np.exp(-np.take_along_axis(cautious.whole, agreeing, axis=-1)).mean(axis=-1)))


def lower_bound(cautious: Reading, confidence: float) -> Array:
    """Return the largest log ratio [...] that a measurement proves both by typical blocks and by all blocks."""
    return np.minimum(typical_bound(cautious, confidence), sustained(cautious, confidence))


def typical_bound(cautious: Reading, confidence: float) -> Array:
    """Return the largest log ratio [...] that the typical blocks of the candidate prove.

    All processes except at most `may_dissent` must reach this ratio. In addition, the trimmed mean must exceed the
    ratio by its margin, or each of these processes must exceed the ratio by the error that all of them may have in
    common.
    """
    mean, _ = trimmed(cautious.ratios, confidence)
    dissenting = may_dissent(cautious.ratios.shape[-1], confidence)
    reached = np.sort(cautious.ratios, axis=-1)[..., dissenting]
    return np.minimum(reached, np.maximum(mean - margin(cautious, confidence), reached - _shared(cautious)))


def upper_bound(generous: Reading, confidence: float) -> Array:
    """Return the log ratio [...] above which a measurement refutes every required log ratio. This log ratio is the
    smaller of two values: the mean plus its margin, and the largest ratio of the processes (after the `may_dissent`
    largest were left out) plus the error that may be the same in all processes."""
    mean, _ = trimmed(generous.ratios, confidence)
    dissenting = may_dissent(generous.ratios.shape[-1], confidence)
    reached = np.sort(generous.ratios, axis=-1)[..., -1 - dissenting]
    return np.minimum(mean + margin(generous, confidence), reached + _shared(generous))


def proves(cautious: Reading, log_demanded: float, confidence: float) -> NDArray[np.bool_]:
    """Return an array [...] that is True where one measurement proves the required ratio."""
    return np.asarray(lower_bound(cautious, confidence) >= log_demanded)


def refutes(generous: Reading, log_demanded: float, confidence: float) -> NDArray[np.bool_]:
    """Return an array [...] that is True where one measurement refutes the required ratio."""
    return np.asarray(upper_bound(generous, confidence) < log_demanded)


def decide(
    cautious: Reading,
    generous: Reading,
    log_demanded: float,
    confidence: float,
    measurements: int | Sequence[int] = 1,
) -> NDArray[np.int8]:
    """Return an array [...]: 1 if all measurements prove the required ratio, -1 if all refute it, else 0."""
    proven = np.all([proves(one, log_demanded, confidence) for one in cautious.of_measurements(measurements)], axis=0)
    refuted = np.all([refutes(one, log_demanded, confidence) for one in generous.of_measurements(measurements)], axis=0)
    return np.asarray(np.subtract(proven, refuted, dtype=np.int8))


def stalls(
    cautious: Reading, log_demanded: float, confidence: float, measurements: int | Sequence[int]
) -> NDArray[np.bool_]:
    """Return an array [...]: True where typical blocks prove the required ratio, but slow blocks prevent PASS."""
    parts = cautious.of_measurements(measurements)
    typical = np.all([typical_bound(one, confidence) >= log_demanded for one in parts], axis=0)
    return np.asarray(typical & np.any([sustained(one, confidence) < log_demanded for one in parts], axis=0))


def fewest_processes(confidence: float) -> int:
    """Return the smallest number P of processes that can prove a ratio if all of them agree: 2^-P <= 1 - confidence."""
    processes = 2
    while 2.0**-processes > (1 - confidence) * _ROUNDING:
        processes += 1
    return processes


@dataclass(frozen=True)
class Spread:
    """The trimmed mean of a sample of log ratios [P], and the standard deviation from which the error of the mean is
    computed."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, logs: Array) -> Spread:
        kept = len(logs) - 2 * left_out(len(logs))
        mean, reach = trimmed(logs, SELF_CONFIDENCE)
        error = float(reach) / t_quantile(SELF_CONFIDENCE, kept)
        return cls(float(mean), error * kept / float(np.sqrt(len(logs))))

    def reach(self, confidence: float, processes: int) -> float:
        """Return the distance from the mean to its one-sided bound, for a sample of `processes` with the same
        spread."""
        kept = processes - 2 * left_out(processes)
        return t_quantile(confidence, kept) * self.deviation * float(np.sqrt(processes)) / kept

    def agreement(self, distance: float, processes: int, confidence: float) -> float:
        """Return the probability that at most `may_dissent` processes are more than `distance` below the mean."""
        from scipy.special import bdtr, ndtr

        across = float(distance < 0) if self.deviation == 0 else float(ndtr(-distance / self.deviation))
        return float(bdtr(may_dissent(processes, confidence), processes, across))


def processes_to_decide(cautious: Reading, generous: Reading, log_demanded: float, confidence: float) -> int | None:
    """Return an estimate of how many processes a measurement with this spread needs to decide. Return None if no number
    is enough.

    The estimate uses a normal approximation, and is larger than the present number of processes. If the mean of the
    cautious reading is above the required ratio, the estimate is for a proof. Otherwise it is for a refutation by the
    generous reading.
    """
    above = Spread.of(cautious.ratios).mean - log_demanded
    below = log_demanded - Spread.of(generous.ratios).mean
    if above > 0:
        return _processes_to_clear(cautious, above, confidence, agreeing=True)
    return _processes_to_clear(generous, below, confidence, agreeing=False)


def _processes_to_clear(reading: Reading, distance: float, confidence: float, *, agreeing: bool) -> int | None:
    """Return the smallest number of processes, above the present number, that would probably be enough for a decision.

    A measurement is decided by the bound of the mean, or by the agreement of the processes alone. Return None if more
    than `MOST_PROCESSES` are needed. agreeing: True if the mean counts only if all processes except `may_dissent` agree
    with it.
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

"""The statistics of the throughput rule: pure functions over the last axis, so that a simulation runs the same code.

The unit of replication is a process: each yields one ratio, baseline median over candidate median, and for either
arm one ratio with itself. Shapes: P processes, B blocks an arm, R rounds, `...` any number of experiments.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
SELF_CONFIDENCE = 0.95  # two-sided, of the A/A intervals
MOST_PROCESSES = 64  # the contract language's limit
_PROBABLY = 0.5  # "would probably decide": the chance of deciding is at least this


def t_quantile(confidence: float, processes: int) -> float:
    """Quantile of Student's t with `processes` - 1 degrees of freedom."""
    from scipy.special import stdtrit

    return float(stdtrit(processes - 1, confidence))


def log_ratio(baseline: Array, candidate: Array) -> Array:
    """log of the ratio of medians of step times [..., B]: above 0, the candidate is faster. Shape [...]."""
    ratio: Array = np.log(np.median(baseline, axis=-1)) - np.log(np.median(candidate, axis=-1))
    return ratio


def one_sided_bounds(logs: Array, confidence: float) -> tuple[Array, Array]:
    """Lower and upper bound of the mean of `logs` [..., P], each of the given one-sided confidence. Shapes [...]."""
    processes = logs.shape[-1]
    mean = logs.mean(axis=-1)
    reach = t_quantile(confidence, processes) * logs.std(axis=-1, ddof=1) / np.sqrt(processes)
    return mean - reach, mean + reach


def self_intervals(logs: Array) -> tuple[Array, Array]:
    """Ends of the two-sided 95 % t interval of the mean of an arm's log ratios with itself [..., P]."""
    return one_sided_bounds(logs, (1 + SELF_CONFIDENCE) / 2)


def missed_bias(self_logs: Array) -> Array:
    """The bias a run could have missed: the worst end of either arm's interval. [..., 2, P] -> [...]."""
    low, high = self_intervals(self_logs)
    worst: Array = np.maximum(np.abs(low), np.abs(high)).max(axis=-1)
    return worst


def decide(log_ratios: Array, self_logs: Array, log_demanded: float, confidence: float) -> NDArray[np.int8]:
    """1: at least the demanded ratio is proven; -1: it is refuted; 0: neither. [..., P] and [..., 2, P] -> [...].

    Proven: the lower bound, less the bias that could have been missed, reaches the demanded ratio, and so does every
    single process (sign test: at most 2^-P by chance). Refuted is the mirror image.
    """
    lower, upper = one_sided_bounds(log_ratios, confidence)
    bias = missed_bias(self_logs)
    reached = log_ratios >= log_demanded
    proven = (lower - bias >= log_demanded) & reached.all(axis=-1)
    refuted = (upper + bias < log_demanded) & ~reached.any(axis=-1)
    return proven.astype(np.int8) - refuted.astype(np.int8)


def fewest_processes(confidence: float) -> int:
    """The smallest number of processes whose sign test can reach the confidence: 2^-P <= 1 - confidence."""
    processes = 2
    # the margin keeps 1 - 0.75 = 0.25 from missing 2^-2 by a rounding
    while 2.0**-processes > (1 - confidence) * (1 + 1e-9):
        processes += 1
    return processes


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation of a sample of log ratios [P]."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, logs: Array) -> Spread:
        return cls(float(logs.mean()), float(logs.std(ddof=1)))

    def reach(self, confidence: float, processes: int) -> float:
        """Half the width of an interval over so many processes of this spread."""
        return t_quantile(confidence, processes) * self.deviation / float(np.sqrt(processes))


def processes_to_decide(log_ratios: Array, self_logs: Array, log_demanded: float, confidence: float) -> int | None:
    """The larger number of processes that would probably decide, were mean and spread as in this sample; or None.

    An estimate: the t bound must clear the demanded ratio and the A/A bias, and the chance that every process lies
    on the same side (normal approximation) must be at least a half. That chance falls with more processes, so a
    wide spread next to the demanded ratio is decided by no number of them.
    """
    from scipy.special import ndtr

    ratio = Spread.of(log_ratios)
    selves = [Spread.of(logs) for logs in self_logs]
    margin = abs(ratio.mean - log_demanded)
    if margin == 0:
        return None
    side = 1.0 if ratio.deviation == 0 else float(ndtr(margin / ratio.deviation))
    for processes in range(max(fewest_processes(confidence), len(log_ratios) + 1), MOST_PROCESSES + 1):
        bias = max(abs(each.mean) + each.reach((1 + SELF_CONFIDENCE) / 2, processes) for each in selves)
        if margin >= ratio.reach(confidence, processes) + bias and side**processes >= _PROBABLY:
            return processes
    return None

"""The throughput rule until 2026-11-22, to be compared with: medians, a plain t interval, unanimity."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from harness.judging.statistics import t_quantile

Array = NDArray[np.float64]


def readings(candidate: Array, baseline: Array) -> tuple[Array, Array]:
    """Log ratios of medians [..., P] and each arm's with itself [..., 2, P], of step times [..., P, R, 2]."""
    ours, theirs = (np.median(arm.reshape(*arm.shape[:-2], -1), axis=-1) for arm in (candidate, baseline))
    selves = [
        np.log(np.median(arm[..., 0], axis=-1)) - np.log(np.median(arm[..., 1], axis=-1))
        for arm in (candidate, baseline)
    ]
    return np.log(theirs) - np.log(ours), np.stack(selves, axis=-2)


def decide(log_ratios: Array, selves: Array, log_demanded: float, confidence: float) -> NDArray[np.int8]:
    """1: proven, -1: refuted, 0: neither; the bound, less the bias that could have been missed, and every process."""
    bias = (np.abs(selves.mean(axis=-1)) + _reach(selves, 0.975)).max(axis=-1)
    mean, reach = log_ratios.mean(axis=-1), _reach(log_ratios, confidence)
    reached = log_ratios >= log_demanded
    proven = (mean - reach - bias >= log_demanded) & reached.all(axis=-1)
    refuted = (mean + reach + bias < log_demanded) & ~reached.any(axis=-1)
    answers: NDArray[np.int8] = proven.astype(np.int8) - refuted.astype(np.int8)
    return answers


def _reach(logs: Array, confidence: float) -> Array:
    processes = logs.shape[-1]
    reach: Array = t_quantile(confidence, processes) * logs.std(axis=-1, ddof=1) / np.sqrt(processes)
    return reach

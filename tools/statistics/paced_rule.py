"""Evaluate many simulated experiments at once, as the judge evaluates a single experiment with measured pace.

The pace of the processor is the time that a fixed piece of work takes, measured next to a block of steps.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from harness.judging import statistics
from harness.judging.statistics import Array, Reading
from harness.kinds.speed.timing import FEWEST_ROUNDS


def paced_readings(candidate: Array, baseline: Array, paces: Array) -> tuple[Reading, Reading]:
    """Return the result of `statistics.readings` for all experiments, from the rounds that the judge counts. candidate,
    baseline: step times. paces: the paces next to the baseline's blocks, divided by the smallest. All three have the
    shape [experiments, processes, rounds, 2]. Processes with equally many counted rounds are computed together."""
    rounds = candidate.shape[2]
    ours, theirs, slower = (each.reshape(-1, rounds, 2) for each in (candidate, baseline, paces))
    slow = (slower > 1).any(axis=-1)
    order = np.argsort(slow, axis=-1, kind="stable")[..., None]  # puts undisturbed rounds first
    others = rounds - slow.sum(axis=-1)
    others[others < FEWEST_ROUNDS] = 0
    ratios, selves, whole = np.empty((2, len(ours))), np.empty((2, 2, len(ours))), np.empty(len(ours))
    for kept in np.unique(others):
        here = others == kept
        counted = order[here, : kept or rounds]
        times = [np.take_along_axis(each[here], counted, axis=1) for each in (ours, theirs, theirs / slower)]
        for number, reading in enumerate(statistics.readings(times[0], times[1], None, times[2])):
            ratios[number][here], selves[number][:, here], whole[here] = reading.ratios, reading.selves, reading.whole
    shape = candidate.shape[:2]
    cautious, generous = (
        Reading(
            ratios[number].reshape(shape), np.moveaxis(selves[number].reshape(2, *shape), 0, 1), whole.reshape(shape)
        )
        for number in range(2)
    )
    return cautious, generous


def has_undisturbed_rounds(paces: Array) -> NDArray[np.bool_]:
    """Return a mask [experiments, processes]: True if all rounds, or at least `FEWEST_ROUNDS`, are undisturbed."""
    slow = (paces > 1).any(axis=-1)
    return np.asarray((~slow).sum(axis=-1) >= FEWEST_ROUNDS) | ~slow.any(axis=-1)


def paced_decisions(
    cautious: Reading, generous: Reading, counts: NDArray[np.bool_], log_demanded: float, confidence: float
) -> NDArray[np.int8]:
    """Return the decisions of `statistics.decide` for one measurement. counts: mask of the processes to use. If too few
    processes count, all processes are used."""
    enough = counts.sum(axis=-1) >= statistics.fewest_processes(confidence)
    counts = counts | ~enough[:, None]
    order = np.argsort(~counts, axis=-1, kind="stable")
    decided = np.zeros(len(counts), dtype=np.int8)
    for kept in np.unique(counts.sum(axis=-1)):
        here = counts.sum(axis=-1) == kept
        chosen = order[here, :kept]
        low, high = (
            Reading(
                np.take_along_axis(each.ratios[here], chosen, axis=-1),
                np.take_along_axis(each.selves[here], chosen[:, None, :], axis=-1),
                np.take_along_axis(each.whole[here], chosen, axis=-1),
            )
            for each in (cautious, generous)
        )
        decided[here] = statistics.decide(low, high, log_demanded, confidence)
    return decided

"""Read many simulated experiments at once, as the judge reads an experiment with measured processor pace.

Pace is the time that a fixed piece of work takes on the processor, measured beside a block of steps.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from harness.judging import statistics
from harness.judging.statistics import Array, Reading
from harness.kinds.speed.timing import FEWEST_ROUNDS


def paced_readings(candidate: Array, baseline: Array, paces: Array) -> tuple[Reading, Reading]:
    """Return `statistics.readings` of the rounds that the judge counts; paces: measured beside the baseline's blocks.

    All shapes are [experiments, processes, rounds, 2]. Processes may have different numbers of counted rounds. Those
    with the same number are read together, as if they were processes of one experiment.
    """
    rounds = candidate.shape[2]
    ours, theirs, slower = (each.reshape(-1, rounds, 2) for each in (candidate, baseline, paces))
    slow = (slower > 1).any(axis=-1)
    order = np.argsort(slow, axis=-1, kind="stable")[..., None]  # sort undisturbed rounds to the front
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
    """Return True for each process [experiments, processes] that has enough undisturbed rounds, or only such rounds."""
    slow = (paces > 1).any(axis=-1)
    return np.asarray((~slow).sum(axis=-1) >= FEWEST_ROUNDS) | ~slow.any(axis=-1)


def paced_decisions(
    cautious: Reading, generous: Reading, counts: NDArray[np.bool_], log_demanded: float, confidence: float
) -> NDArray[np.int8]:
    """Return `statistics.decide` for the processes that count, or for all if too few count; one measurement."""
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

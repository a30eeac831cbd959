"""A candidate's own stalls are its own time: a median forgets what happens in fewer than half of the blocks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from harness.judging import statistics
from harness.judging.statistics import Reading

Array = NDArray[np.float64]
DEMANDED = 1.1
EXPERIMENTS = 400


def drawn(seed: int, processes: int, rounds: int, typical: float) -> tuple[Array, Array]:
    """Step times [experiments, processes, rounds, 2] of both arms, steady to 0.5 %, at this ratio."""
    generator = np.random.default_rng(seed)
    candidate, baseline = np.exp(0.005 * generator.standard_normal((2, EXPERIMENTS, processes, rounds, 2)))
    return candidate / typical, baseline


def struck(seed: int, candidate: Array, stalls: int, longer: float) -> Array:
    """So many blocks of each process, chosen anew in each, take so much longer."""
    flat = candidate.reshape(*candidate.shape[:2], -1)
    order = np.random.default_rng(seed).random(flat.shape).argsort(axis=-1)
    return np.asarray(np.where(order < stalls, longer * flat, flat).reshape(candidate.shape))


def decided(candidate: Array, baseline: Array) -> NDArray[np.int8]:
    return statistics.decide(*statistics.readings(candidate, baseline), math.log(DEMANDED), 0.99)


def by_all_seconds(candidate: Array, baseline: Array) -> Array:
    """Steps in a second of the candidate, in all of its blocks, by the baseline's: [experiments, processes]."""
    return np.asarray(baseline.mean(axis=(-1, -2)) / candidate.mean(axis=(-1, -2)))


@pytest.mark.parametrize("processes", [8, 12])
@pytest.mark.parametrize("rounds", [2, 4, 6])
@pytest.mark.parametrize("longer", [1.5, 3.0, 10.0, 1000.0])
def test_no_share_of_stalled_blocks_makes_a_slow_candidate_pass(longer: float, rounds: int, processes: int) -> None:
    below = 0
    for stalls in range(1, rounds):  # fewer than half of them, so that no median sees one
        candidate, baseline = drawn(stalls, processes, rounds, 1.5)
        candidate = struck(stalls, candidate, stalls, longer)
        slow = (by_all_seconds(candidate, baseline) < DEMANDED * 0.99).all(axis=-1)
        below += int(slow.sum())
        assert not (decided(candidate, baseline)[slow] == 1).any()
    assert below or longer < 10  # the stalls are long enough to show something


@pytest.mark.parametrize("processes", [8, 12])
def test_a_candidate_fast_enough_to_make_up_for_stalls_passes(processes: int) -> None:
    candidate, baseline = drawn(0, processes, 4, 3.0)
    assert (decided(struck(0, candidate, 1, 10.0), baseline) == 1).all()


def test_stalls_of_the_candidate_alone_do_not_fail_a_speed_claim() -> None:
    """The cause of a stall is unknown. If the machine caused it, it must not count against the candidate."""
    candidate, baseline = drawn(0, 8, 4, 1.5)
    assert (decided(struck(0, candidate, 1, 10.0), baseline) == 0).all()


def test_a_slow_baseline_process_does_not_compensate_for_stalls() -> None:
    candidate, baseline = drawn(0, 8, 4, 1.5)
    baseline[:, 3] *= 1000.0
    assert not (decided(struck(0, candidate, 1, 10.0), baseline) == 1).any()


def test_blocks_slowed_by_the_machine_do_not_count_as_stalls() -> None:
    """For such a block, the time counts that it would have taken without the slowdown of the processor."""
    candidate, baseline = drawn(0, 8, 4, 1.5)
    disturbed = struck(0, candidate, 1, 10.0)
    cautious, generous = statistics.readings(disturbed, baseline, candidate, baseline)
    assert (statistics.decide(cautious, generous, math.log(DEMANDED), 0.99) == 1).all()


def test_the_sustained_ratio_is_a_mean_of_seconds() -> None:
    """In two processes the candidate takes 1 and 1/2 of the baseline's time, so on average 3/4."""
    reading = Reading(np.zeros(2), np.zeros((2, 2)), np.log([1.0, 2.0]))
    assert float(statistics.sustained(reading, 0.99)) == pytest.approx(math.log(4 / 3))


def test_a_process_that_may_dissent_does_not_count_in_the_sustained_ratio() -> None:
    """One of twelve processes may dissent.

    It is the process with the slowest typical block, and not the process that stalls most.
    """
    ratios, whole = np.full(12, 0.5), np.full(12, 0.4)
    ratios[3], whole[3] = 0.1, -5.0
    selves = np.zeros((2, 12))
    assert float(statistics.sustained(Reading(ratios, selves, whole), 0.99)) == pytest.approx(0.4)
    ratios[3], ratios[4] = 0.5, 0.1
    assert float(statistics.sustained(Reading(ratios, selves, whole), 0.99)) < 0

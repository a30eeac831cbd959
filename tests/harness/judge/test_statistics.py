"""Known values, and the limits where a formula could go wrong; error rates are simulated by scripts/error_rates.py."""

import math

import numpy as np
import pytest
from scipy import stats

from harness.judge import statistics

RATIOS = np.log([1.18, 1.2, 1.22, 1.19, 1.21, 1.2, 1.23, 1.17])
QUIET = np.zeros((2, 8))
DEMANDED = math.log(1.1)


def test_a_ratio_of_medians_ignores_one_slow_block() -> None:
    baseline, candidate = np.array([2.0, 2.0, 2.0, 90.0]), np.array([1.0, 1.0, 1.0, 70.0])
    assert statistics.log_ratio(baseline, candidate) == pytest.approx(math.log(2))


def test_medians_are_taken_of_each_experiment() -> None:
    baseline, candidate = np.array([[2.0, 2.0, 9.0], [8.0, 8.0, 1.0]]), np.array([[1.0, 1.0, 7.0], [2.0, 2.0, 5.0]])
    assert statistics.log_ratio(baseline, candidate) == pytest.approx(np.log([2.0, 4.0]))


def test_bounds_are_students() -> None:
    lower, upper = statistics.one_sided_bounds(RATIOS, 0.99)
    expected = stats.t.interval(0.98, 7, loc=RATIOS.mean(), scale=stats.sem(RATIOS))
    assert (float(lower), float(upper)) == pytest.approx(expected)


def test_the_missed_bias_is_the_worst_end_of_either_arm() -> None:
    selves = np.stack([np.full(8, 0.01), RATIOS - RATIOS.mean() - 0.02])
    low, _ = stats.t.interval(0.95, 7, loc=selves[1].mean(), scale=stats.sem(selves[1]))
    assert statistics.missed_bias(selves) == pytest.approx(-low)


def test_the_missed_bias_is_each_experiments_own() -> None:
    selves = np.stack([np.full((2, 8), 0.25), np.full((2, 8), -0.5)])
    assert statistics.missed_bias(selves).tolist() == [0.25, 0.5]


def test_a_ratio_that_is_the_demanded_one_in_every_process_is_proven() -> None:
    decision = statistics.decide(np.full(8, 0.5), QUIET, 0.5, 0.99)
    assert decision == 1
    assert decision.dtype == np.int8


def test_a_ratio_that_a_missed_bias_would_make_the_demanded_one_is_not_refuted() -> None:
    assert statistics.decide(np.full(8, 0.25), np.full((2, 8), 0.25), 0.5, 0.99) == 0
    assert statistics.decide(np.full(8, 0.25), np.full((2, 8), 0.125), 0.5, 0.99) == -1


def test_decisions() -> None:
    assert statistics.decide(RATIOS, QUIET, DEMANDED, 0.99) == 1
    assert statistics.decide(RATIOS, QUIET, math.log(1.3), 0.99) == -1
    assert statistics.decide(RATIOS, QUIET, math.log(1.2), 0.99) == 0


def test_one_process_on_the_wrong_side_decides_nothing() -> None:
    ratios = np.log(np.array([1.2] * 7 + [1.0999]))
    lower, _ = statistics.one_sided_bounds(ratios, 0.6)
    assert lower > DEMANDED
    assert statistics.decide(ratios, QUIET, DEMANDED, 0.6) == 0


def test_a_bias_that_could_have_been_missed_is_taken_off() -> None:
    lower, _ = statistics.one_sided_bounds(RATIOS, 0.99)
    margin = float(lower) - DEMANDED
    assert statistics.decide(RATIOS, np.full((2, 8), -0.99 * margin), DEMANDED, 0.99) == 1
    assert statistics.decide(RATIOS, np.full((2, 8), -1.01 * margin), DEMANDED, 0.99) == 0
    assert statistics.decide(RATIOS, np.full((2, 8), 1.01 * margin), DEMANDED, 0.99) == 0


def test_failing_is_the_mirror_image_of_passing() -> None:
    generator = np.random.default_rng(1)
    ratios = generator.normal(0, 0.02, (2000, 8))
    selves = generator.normal(0, 0.005, (2000, 2, 8))
    passed = statistics.decide(ratios, selves, -0.02, 0.99)
    failed = statistics.decide(-ratios, selves, 0.02, 0.99)
    assert (passed == 1).sum() > 100
    np.testing.assert_array_equal(passed, -failed)


def test_many_experiments_are_decided_as_each_alone() -> None:
    generator = np.random.default_rng(2)
    ratios, selves = generator.normal(0.1, 0.02, (50, 8)), generator.normal(0, 0.005, (50, 2, 8))
    together = statistics.decide(ratios, selves, DEMANDED, 0.99)
    alone = [int(statistics.decide(r, s, DEMANDED, 0.99)) for r, s in zip(ratios, selves, strict=True)]
    assert together.tolist() == alone


@pytest.mark.parametrize(("confidence", "fewest"), [(0.99, 7), (0.996, 8), (0.75, 2), (0.95, 5), (0.5 + 1e-9, 2)])
def test_the_fewest_processes_of_a_sign_test(confidence: float, fewest: int) -> None:
    assert statistics.fewest_processes(confidence) == fewest


UNIT = np.array([-1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0]) / np.std([-1.0, 1.0] * 4, ddof=1)


def test_more_processes_are_named_when_they_would_decide() -> None:
    # margin 0.05; with 8, 9, 10 processes the t reach is 0.0106, 0.0097, 0.0089 and the bias 0.0443, 0.0407, 0.0379
    ratios, selves = DEMANDED + 0.05 + 0.01 * UNIT, np.stack([0.053 * UNIT, 0.0 * UNIT])
    assert statistics.decide(ratios, selves, DEMANDED, 0.99) == 0
    assert statistics.processes_to_decide(ratios, selves, DEMANDED, 0.99) == 10


def test_no_number_is_named_when_one_of_more_processes_would_lie_on_the_other_side() -> None:
    ratios = DEMANDED + 0.018 + 0.0127 * UNIT  # each lies above with a chance of 0.92: nine of nine with 0.48
    assert statistics.processes_to_decide(ratios, QUIET, DEMANDED, 0.99) is None


def test_no_number_is_named_when_the_spread_spans_the_demand() -> None:
    wide = DEMANDED + np.array([-0.5, 0.5, -0.4, 0.4, 0.3, -0.3, 0.1, 0.0])
    assert statistics.processes_to_decide(wide, QUIET, DEMANDED, 0.99) is None


def test_no_number_is_named_exactly_at_the_demand() -> None:
    assert statistics.processes_to_decide(np.full(8, DEMANDED), QUIET, DEMANDED, 0.99) is None


def test_no_number_is_named_when_the_arms_are_biased() -> None:
    assert statistics.processes_to_decide(RATIOS, np.full((2, 8), 0.5), DEMANDED, 0.99) is None


def test_without_any_spread_the_sign_test_alone_sets_the_number() -> None:
    assert statistics.processes_to_decide(np.full(3, 0.2), np.zeros((2, 3)), DEMANDED, 0.99) == 7


def test_processes_that_agree_exactly_are_no_division_by_zero() -> None:
    assert statistics.processes_to_decide(np.full(8, 0.5), np.zeros((2, 8)), 0.25, 0.99) == 9


def test_a_margin_that_is_just_the_bias_decides() -> None:
    assert statistics.processes_to_decide(np.full(8, 0.5), np.full((2, 8), 0.25), 0.25, 0.99) == 9


@pytest.mark.parametrize(("clears_with", "needed"), [(63, 63), (64, 64), (65, None)])
def test_no_more_processes_are_named_than_a_contract_may_ask_for(clears_with: int, needed: int | None) -> None:
    # the bias, of a spread of one, falls with the processes: the margin lies just above that of `clears_with`
    margin = float(stats.t.ppf(0.975, clears_with - 1)) / math.sqrt(clears_with) * (1 + 1e-9)
    assert statistics.processes_to_decide(np.full(8, margin), np.stack([UNIT, UNIT]), 0.0, 0.99) == needed

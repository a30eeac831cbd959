"""Known values, and the limits where a formula could go wrong; tools/statistics simulates error rates."""

import math

import numpy as np
import pytest
import scipy  # its `stats` takes a second to import: when a test asks for it, and not in every process that collects

from harness.judging import statistics
from harness.judging.statistics import COMMON_NOISE, Array, Reading

LOGS = np.log([1.18, 1.2, 1.22, 1.19, 1.21, 1.2, 1.23, 1.17])
QUIET = np.zeros((2, 8))
DEMANDED = math.log(1.1)


def read(ratios: Array, selves: Array) -> Reading:
    """A reading whose candidate has no block that is slower than the typical one."""
    return Reading(ratios, selves, ratios)


def same(ratios: Array, selves: Array = QUIET) -> tuple[Reading, Reading]:
    """Both readings alike, as where nothing disturbed a block."""
    return read(ratios, selves), read(ratios, selves)


def decided(ratios: Array, selves: Array = QUIET, demanded: float = DEMANDED, measurements: int = 1) -> int:
    return int(statistics.decide(*same(ratios, selves), demanded, 0.99, measurements))


# --- reading a process ---------------------------------------------------------------------------------------
BLOCKS = np.array([[[1.0, 5.0], [2.0, 6.0], [3.0, 7.0], [4.0, 8.0]]])  # one process: lower quartile 2.75, median 4.5


def test_the_cautious_reading_compares_the_undisturbed_baseline_with_the_candidate_as_measured() -> None:
    cautious, _ = statistics.readings(3 * BLOCKS, BLOCKS)
    assert cautious.ratios.tolist() == [pytest.approx(math.log(2.75 / 13.5))]


def test_the_generous_reading_compares_the_baseline_as_measured_with_the_undisturbed_candidate() -> None:
    _, generous = statistics.readings(3 * BLOCKS, BLOCKS)
    assert generous.ratios.tolist() == [pytest.approx(math.log(4.5 / 8.25))]


@pytest.mark.parametrize("blocks", [*range(1, 33), 64, 129])
def test_quartile_and_median_equal_those_of_numpy_in_every_bit(blocks: int) -> None:
    seconds = np.exp(np.random.default_rng(blocks).normal(-4.0, 0.5, (200, 3, blocks)))
    assert np.array_equal(statistics.undisturbed(seconds), np.percentile(seconds, statistics.UNDISTURBED, axis=-1))
    assert np.array_equal(statistics.as_found(seconds), np.median(seconds, axis=-1))


def test_the_self_ratio_of_an_arm_uses_the_same_quantiles_as_the_ratio() -> None:
    """The first blocks 1, 2, 3, 4 have the lower quartile 1.75 and the median 2.5, the second blocks 5, 6, 7, 8 have
    5.75 and 6.5.
    """
    cautious, generous = statistics.readings(3 * BLOCKS, BLOCKS)
    quartiles, medians = math.log(1.75 / 5.75), math.log(2.5 / 6.5)
    assert cautious.selves.tolist() == [[pytest.approx(medians)], [pytest.approx(quartiles)]]
    assert generous.selves.tolist() == [[pytest.approx(quartiles)], [pytest.approx(medians)]]


def test_the_cautious_and_the_generous_reading_agree_on_steady_blocks() -> None:
    cautious, generous = statistics.readings(np.full((1, 4, 2), 1.0), np.full((1, 4, 2), 2.0))
    assert cautious.ratios.tolist() == generous.ratios.tolist() == [pytest.approx(math.log(2))]


def test_slow_blocks_of_the_baseline_raise_the_cautious_reading_least() -> None:
    disturbed = np.array([[[2.0, 2.0], [2.0, 3.4], [3.4, 3.4], [3.4, 3.4]]])
    cautious, generous = statistics.readings(np.full((1, 4, 2), 1.0), disturbed)
    assert cautious.ratios.tolist() == [pytest.approx(math.log(2))]
    assert generous.ratios.tolist() == [pytest.approx(math.log(3.4))]


def test_processes_and_experiments_are_read_independently() -> None:
    generator = np.random.default_rng(3)
    candidate, baseline = np.exp(generator.normal(0, 0.1, (2, 5, 8, 4, 2)))
    together = statistics.readings(candidate, baseline)
    for which, reading in enumerate(together):
        assert (reading.ratios.shape, reading.selves.shape) == ((5, 8), (5, 2, 8))
        alone = statistics.readings(candidate[3, 6:7], baseline[3, 6:7])[which]
        assert reading.ratios[3, 6] == alone.ratios[0]
        assert reading.selves[3, :, 6].tolist() == alone.selves[:, 0].tolist()


def test_measurements_are_processes_in_their_order() -> None:
    whole = read(np.arange(6.0), np.arange(12.0).reshape(2, 6))
    first, second = whole.of_measurements(2)
    assert (first.ratios.tolist(), second.ratios.tolist()) == ([0, 1, 2], [3, 4, 5])
    assert second.selves.tolist() == [[3, 4, 5], [9, 10, 11]]


# --- the trimmed mean ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("processes", "outliers"), [(5, 0), (7, 0), (8, 1), (15, 1), (16, 2), (64, 8)])
def test_one_process_in_eight_is_trimmed_on_each_side(processes: int, outliers: int) -> None:
    assert statistics.left_out(processes) == outliers


@pytest.mark.parametrize("processes", [8, 16, 24])
def test_the_interval_of_the_trimmed_mean_equals_that_of_scipy(processes: int) -> None:
    logs = np.random.default_rng(processes).normal(0.2, 0.03, processes)
    mean, reach = statistics.trimmed(logs, 0.99)
    assert float(mean) == pytest.approx(scipy.stats.trim_mean(logs, 0.125))
    expected = scipy.stats.mstats.trimmed_mean_ci(logs, limits=(0.125, 0.125), alpha=0.02)
    assert [float(mean - reach), float(mean + reach)] == pytest.approx(expected)


@pytest.mark.parametrize("processes", [5, 7])
def test_without_trimming_the_interval_of_the_mean_is_that_of_students_t(processes: int) -> None:
    mean, reach = statistics.trimmed(LOGS[:processes], 0.99)
    expected = scipy.stats.t.interval(
        0.98, processes - 1, loc=LOGS[:processes].mean(), scale=scipy.stats.sem(LOGS[:processes])
    )
    assert [float(mean - reach), float(mean + reach)] == pytest.approx(expected)


def test_the_size_of_an_outlier_does_not_change_the_trimmed_interval() -> None:
    near, far = (statistics.trimmed(np.append(LOGS[:7], outlier), 0.99) for outlier in (0.3, 3.0))
    assert [float(end) for end in near] == [float(end) for end in far]


def test_the_undetectable_bias_is_the_worst_interval_end_of_either_arms_self_ratio() -> None:
    selves = np.stack([np.full(8, 0.01), LOGS - LOGS.mean() - 0.02])
    low, _ = scipy.stats.mstats.trimmed_mean_ci(selves[1], limits=(0.125, 0.125), alpha=0.05)
    assert statistics.missed_bias(selves) == pytest.approx(-low)


def test_each_simulated_experiment_has_its_own_undetectable_bias() -> None:
    selves = np.stack([np.full((2, 8), 0.25), np.full((2, 8), -0.5)])
    assert statistics.missed_bias(selves).tolist() == [0.25, 0.5]


# --- the margin ----------------------------------------------------------------------------------------------
def test_the_margin_is_the_interval_half_width_plus_the_undetectable_bias() -> None:
    _, reach = statistics.trimmed(LOGS, 0.99)
    assert float(statistics.margin(read(LOGS, np.full((2, 8), 0.5)), 0.99)) == pytest.approx(float(reach) + 0.5)


def test_the_margin_includes_common_noise_even_if_all_processes_agree() -> None:
    assert float(statistics.margin(read(np.full(8, 0.3), QUIET), 0.99)) == pytest.approx(0.0275)


def test_common_noise_and_the_interval_half_width_add_as_independent_errors() -> None:
    _, reach = statistics.trimmed(LOGS, 0.99)
    expected = math.hypot(float(reach), 0.0275)
    assert float(statistics.margin(read(LOGS, QUIET), 0.99)) == pytest.approx(expected)
    assert expected > max(float(reach), 0.0275)


# --- the decision --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("above", "answer"), [(1 + 1e-9, 1), (1 - 1e-9, 0), (-1 + 1e-9, 0), (-1 - 1e-9, -1)])
def test_processes_that_agree_decide_beyond_the_common_noise(above: float, answer: int) -> None:
    assert decided(np.full(8, DEMANDED + above * COMMON_NOISE)) == answer


def test_a_ratio_at_its_margin_is_proven_but_not_refuted() -> None:
    apart = read(np.full(8, 0.5), np.full((2, 8), 0.25))  # margin 0.25, without a rounding
    assert statistics.proves(apart, 0.25, 0.99)
    assert not statistics.refutes(apart, 0.75, 0.99)
    assert statistics.refutes(apart, 0.75 + 1e-9, 0.99)


def test_decisions_are_returned_as_numbers_of_type_int8() -> None:
    assert statistics.decide(*same(LOGS), DEMANDED, 0.99).dtype == np.int8


def test_without_a_number_of_measurements_all_processes_are_one_measurement() -> None:
    assert statistics.decide(*same(LOGS[:7], QUIET[:, :7]), DEMANDED, 0.99) == 1


def test_the_trimmed_interval_decides_pass_fail_or_undecided() -> None:
    assert decided(LOGS) == 1
    assert decided(LOGS, demanded=math.log(1.3)) == -1
    assert decided(LOGS, demanded=math.log(1.2)) == 0


@pytest.mark.parametrize(
    ("processes", "confidence", "few"),
    [
        (7, 0.99, 0),
        (10, 0.99, 0),
        (11, 0.99, 1),
        (12, 0.99, 1),
        (15, 0.99, 2),
        (24, 0.99, 5),
        (8, 0.95, 1),
        (7, 0.95, 0),
    ],
)
def test_the_number_of_processes_that_may_dissent_follows_from_a_sign_test(
    processes: int, confidence: float, few: int
) -> None:
    assert statistics.may_dissent(processes, confidence) == few
    assert scipy.stats.binom.cdf(few + 1, processes, 0.5) > 1 - confidence


def test_one_run_may_dissent_when_its_chance_equals_the_remaining_confidence() -> None:
    assert statistics.may_dissent(3, 0.5) == 1  # 1/8 and 3/8


def twelve(*others: float, ratio: float = 1.2) -> Array:
    return np.log([*[ratio] * (12 - len(others)), *others])


TWELVE = np.zeros((2, 12))


@pytest.mark.parametrize(("others", "answer"), [([1.0], 1), ([0.1], 1), ([1.0, 1.0], 0)])
def test_one_slow_process_of_twelve_does_not_prevent_a_pass(others: list[float], answer: int) -> None:
    assert decided(twelve(*others), TWELVE) == answer


def test_one_slow_process_of_eight_leaves_the_ratio_undecided() -> None:
    assert decided(np.log([*[1.2] * 7, 1.09])) == 0


@pytest.mark.parametrize(("second", "answer"), [(DEMANDED, 1), (DEMANDED - 1e-9, 0)])
def test_a_pass_needs_all_but_one_of_twelve_processes_at_the_demanded_ratio(second: float, answer: int) -> None:
    ratios = np.append(np.full(10, math.log(1.3)), [DEMANDED - 0.01, second])
    assert decided(ratios, TWELVE) == answer


def test_fast_outlier_processes_prove_no_speedup() -> None:
    assert decided(twelve(9.0, ratio=1.11), TWELVE) == 0
    assert decided(twelve(*[9.0] * 10, ratio=1.0), TWELVE) == 0


def test_one_fast_process_does_not_prevent_a_fail() -> None:
    assert decided(np.log([*[1.0] * 7, 9.0])) == -1
    assert decided(twelve(9.0, ratio=1.0), TWELVE) == -1


def test_a_fail_by_the_trimmed_mean_needs_no_agreement_of_processes() -> None:
    ratios = np.log([*[0.9] * 20, *[1.2] * 4])  # no more than five may dissent, and three are left out
    assert statistics.may_dissent(24, 0.999) == 4
    ratios = np.log([*[0.9] * 10, 1.11, 1.11])
    assert decided(ratios, TWELVE) == -1


def test_upward_scatter_of_ratios_does_not_prevent_a_pass() -> None:
    """Every process exceeds the demanded ratio by more than the common noise.

    The interval of their mean is wide, but this does not matter.
    """
    scattered = DEMANDED + COMMON_NOISE + 1e-9 + np.array([0.0, 0.0, 0.5, 0.0, 2.0, 1.0, 0.0, 3.0])
    cautious = read(scattered, QUIET)
    mean, _ = statistics.trimmed(scattered, 0.99)
    assert float(mean - statistics.margin(cautious, 0.99)) < DEMANDED
    assert decided(scattered) == 1
    assert decided(scattered - 2e-9) == 0


def test_downward_scatter_of_ratios_does_not_prevent_a_fail() -> None:
    scattered = DEMANDED - COMMON_NOISE - 1e-9 - np.array([0.0, 0.0, 0.5, 0.0, 2.0, 1.0, 0.0, 3.0])
    assert decided(scattered) == -1
    assert decided(scattered + 2e-9) == 0
    together = same(np.stack([scattered, LOGS]), np.stack([QUIET, QUIET]))
    assert statistics.decide(*together, DEMANDED, 0.99).tolist() == [-1, 1]


@pytest.mark.parametrize("sign", [1, -1])
def test_the_assumed_common_bias_is_at_least_the_undetectable_bias(sign: int) -> None:
    scattered = DEMANDED + sign * (0.25 + np.array([0.0, 0.0, 0.5, 0.0, 2.0, 1.0, 0.0, 3.0]))
    assert decided(scattered, np.full((2, 8), 0.2)) == sign
    assert decided(scattered, np.full((2, 8), 0.3)) == 0


def test_a_bound_is_the_largest_ratio_that_is_proven() -> None:
    generator = np.random.default_rng(4)
    reading = read(generator.normal(0.2, 0.02, 12), generator.normal(0, 0.005, (2, 12)))
    low, high = (float(bound(reading, 0.99)) for bound in (statistics.lower_bound, statistics.upper_bound))
    assert statistics.proves(reading, low, 0.99)
    assert not statistics.proves(reading, low + 1e-9, 0.99)
    assert statistics.refutes(reading, high + 1e-9, 0.99)
    assert not statistics.refutes(reading, high, 0.99)


def test_the_lower_bound_is_below_every_process_that_may_not_dissent() -> None:
    ratios = np.append(np.full(10, 0.5), [0.3, 0.2])
    assert float(statistics.lower_bound(read(ratios, TWELVE), 0.99)) <= 0.3


def test_a_pass_needs_the_cautious_reading_and_a_fail_the_generous_reading() -> None:
    low, high = (read(np.full(8, DEMANDED + sign * 0.1), QUIET) for sign in (-1, 1))
    assert statistics.decide(low, high, DEMANDED, 0.99) == 0
    assert statistics.decide(high, high, DEMANDED, 0.99) == 1
    assert statistics.decide(low, low, DEMANDED, 0.99) == -1


def test_the_undetectable_bias_is_subtracted_before_a_decision() -> None:
    mean, reach = (float(each) for each in statistics.trimmed(LOGS, 0.99))
    left = mean - reach - DEMANDED
    assert decided(LOGS, np.full((2, 8), -0.99 * left)) == 1
    assert decided(LOGS, np.full((2, 8), -1.01 * left)) == 0
    assert decided(LOGS, np.full((2, 8), 1.01 * left)) == 0


@pytest.mark.parametrize(
    ("first", "second", "answer"),
    [(1.2, 1.2, 1), (1.2, 1.1, 0), (1.1, 1.2, 0), (1.2, 1.0, 0), (1.0, 1.0, -1), (1.0, 1.08, 0)],
)
def test_two_measurements_must_agree_for_a_decision(first: float, second: float, answer: int) -> None:
    ratios = np.repeat(np.log([first, second]), 8)
    assert decided(ratios, np.zeros((2, 16)), measurements=2) == answer


def test_the_fail_decision_mirrors_the_pass_decision_except_for_required_agreement() -> None:
    generator = np.random.default_rng(1)
    reading = read(generator.normal(0, 0.02, (2000, 12)), generator.normal(0, 0.005, (2000, 2, 12)))
    mirrored = read(-reading.ratios, -reading.selves)
    passed = statistics.proves(reading, -0.05, 0.99)
    failed = statistics.refutes(mirrored, 0.05, 0.99)
    agree = (reading.ratios < -0.05).sum(axis=-1) <= 1
    assert 100 < passed.sum() < failed.sum()
    np.testing.assert_array_equal(passed, failed & agree)


def test_many_experiments_are_decided_like_single_experiments() -> None:
    generator = np.random.default_rng(2)
    ratios, selves = generator.normal(0.15, 0.02, (50, 16)), generator.normal(0, 0.005, (50, 2, 16))
    ratios[::2] -= 0.1
    together = statistics.decide(*same(ratios, selves), DEMANDED, 0.99, 2)
    alone = [decided(r, s, measurements=2) for r, s in zip(ratios, selves, strict=True)]
    assert together.tolist() == alone
    assert set(alone) == {-1, 0, 1}


def test_many_experiments_sustain_the_same_ratios_as_single_experiments() -> None:
    many = read(np.random.default_rng(3).normal(0.15, 0.02, (5, 16)), np.zeros((5, 2, 16)))
    alone = [float(statistics.sustained(read(ratios, QUIET), 0.99)) for ratios in many.ratios]
    assert statistics.sustained(many, 0.99).tolist() == pytest.approx(alone)


# --- how many processes --------------------------------------------------------------------------------------
@pytest.mark.parametrize(("confidence", "fewest"), [(0.99, 7), (0.996, 8), (0.75, 2), (0.95, 5), (0.5 + 1e-9, 2)])
def test_the_fewest_unanimous_processes_for_a_confidence(confidence: float, fewest: int) -> None:
    assert statistics.fewest_processes(confidence) == fewest


UNIT = np.array([-1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0]) / np.std([-1.0, 1.0] * 4, ddof=1)


def needed(ratios: Array, selves: Array = QUIET, demanded: float = DEMANDED) -> int | None:
    return statistics.processes_to_decide(*same(ratios, selves), demanded, 0.99)


def test_a_spread_gives_the_interval_half_width_of_its_sample() -> None:
    spread = statistics.Spread.of(LOGS)
    mean, reach = statistics.trimmed(LOGS, 0.99)
    assert [spread.mean, spread.reach(0.99, 8)] == pytest.approx([float(mean), float(reach)])


def test_a_spread_is_the_winsorized_deviation() -> None:
    expected = np.std(scipy.stats.mstats.winsorize(LOGS, limits=(0.125, 0.125)), ddof=1)
    assert statistics.Spread.of(LOGS).deviation == pytest.approx(float(expected))


@pytest.mark.parametrize("side", [1, -1])
def test_the_number_of_processes_that_would_decide_is_estimated(side: int) -> None:
    """With a spread of 0.05, the margin is 0.104 for 12 processes and 0.096 for 13.

    The ratio is 0.1 away from the demanded ratio.
    """
    ratios, selves = DEMANDED + side * 0.1 + 0.05 * UNIT, np.stack([0.07 * UNIT, 0.0 * UNIT])
    margins = {n: 0.05 * _reach(0.99, n) + 0.07 * _reach(0.975, n) for n in (8, 12, 13)}
    assert margins[8] > margins[12] > 0.1 > margins[13]
    assert decided(ratios, selves) == 0
    assert needed(ratios, selves) == 13


def _reach(confidence: float, processes: int) -> float:
    kept = processes - 2 * (processes // 8)
    return float(scipy.stats.t.ppf(confidence, kept - 1)) * math.sqrt(processes) / kept


def test_a_fail_needs_fewer_estimated_processes_than_a_pass() -> None:
    """The ratio is 1.4 standard deviations away.

    Of ten processes, one lies on the other side of the demanded ratio with a chance of about a half.
    """
    assert needed(DEMANDED - 0.07 + 0.05 * UNIT) == 10
    assert needed(DEMANDED + 0.07 + 0.05 * UNIT) == 11


def test_an_agreement_of_processes_can_decide_before_the_mean() -> None:
    """The ratio is 1.056 standard deviations beyond the bias. For 11 processes, the mean would need 1.067."""
    assert needed(DEMANDED + 0.1 + 1.056 * 0.5 + 0.5 * UNIT, np.full((2, 8), 0.1)) == 11
    assert 0.5 * _reach(0.99, 12) < 1.056 * 0.5 < 0.5 * _reach(0.99, 11)


def test_no_process_estimate_exists_if_the_scatter_of_processes_includes_the_demanded_ratio() -> None:
    assert needed(DEMANDED + np.array([-0.5, 0.5, -0.4, 0.4, 0.3, -0.3, 0.1, 0.0])) is None


def test_no_process_estimate_exists_for_a_ratio_equal_to_the_demanded_ratio() -> None:
    assert needed(np.full(8, DEMANDED)) is None


@pytest.mark.parametrize("side", [1, -1])
def test_no_process_estimate_exists_for_a_ratio_within_the_common_noise_of_the_demanded_ratio(side: int) -> None:
    assert needed(np.full(8, DEMANDED + side * 0.999 * COMMON_NOISE)) is None
    assert needed(np.full(8, DEMANDED + side * 1.001 * COMMON_NOISE)) == 9


def test_no_process_estimate_exists_when_two_readings_disagree() -> None:
    low, high = (read(np.full(8, DEMANDED + sign * 0.1), QUIET) for sign in (-1, 1))
    assert statistics.processes_to_decide(low, high, DEMANDED, 0.99) is None


def test_no_process_estimate_exists_for_biased_arms() -> None:
    assert needed(LOGS, np.full((2, 8), 0.5)) is None


def test_without_scatter_the_process_estimate_is_the_fewest_processes_that_can_decide_unanimously() -> None:
    assert needed(np.full(3, 0.2), np.zeros((2, 3))) == 7


def test_processes_are_estimated_if_the_margin_equals_the_bias() -> None:
    assert needed(np.full(8, 0.5), np.full((2, 8), 0.25), 0.25) == 9


@pytest.mark.parametrize(("processes", "expected"), [(62, 63), (63, 64), (64, None)])
def test_the_process_estimate_never_exceeds_the_contract_maximum(processes: int, expected: int | None) -> None:
    assert needed(np.full(processes, 0.2), np.zeros((2, processes))) == expected


@pytest.mark.parametrize(("factor", "expected"), [(1 + 1e-9, 63), (1 - 1e-9, None)])
def test_no_process_estimate_exists_if_more_processes_no_longer_reduce_the_margin(
    factor: float, expected: int | None
) -> None:
    """With 64 processes one more process is trimmed on each side, so the bias is larger than with 63."""
    distance = _reach(0.975, 63) * factor
    assert needed(np.full(8, distance), np.stack([UNIT, UNIT]), 0.0) == expected

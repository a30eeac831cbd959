"""The rule of claims over several seeds: known values, its limits, and the rates that are published of it."""

from __future__ import annotations

import numpy as np
import pytest
import seed_error_rates
from budget import slow_but
from evidence_builders import arm, state
from judge_cases import figures
from judge_cases_seeds import NOT_WORSE, executions, seeds
from seed_error_rates import simulate, wanted
from simulated_seeds import NOISES

from harness.evidence.arm_records import State
from harness.judging.sheet import Settled, Sheet
from harness.kinds.seeds import not_worse
from harness.kinds.seeds.model import NotWorse
from harness.kinds.seeds.unequal_seeds import require_unequal_seeds

EXPERIMENTS = 4000


def test_the_interval_of_few_seeds_is_students_t() -> None:
    """The values 1 to 5 have the mean 3 and the standard error sqrt(0.5).

    The 95 % quantile of t with four degrees of freedom is 2.132.
    """
    low, high = not_worse.interval(np.array([1.0, 2.0, 3.0, 4.0, 5.0]), 0.95)
    assert (float(low), float(high)) == pytest.approx((3 - 2.13185 * 0.5**0.5, 3 + 2.13185 * 0.5**0.5), abs=1e-4)


@pytest.mark.parametrize(
    ("excess", "answer"),
    [
        ([-1.0] * 5, 1),
        ([0.0] * 5, 1),  # worse by the margin exactly, and never by more
        ([1e-9] * 5, -1),
        ([-1.0, -1.0, -1.0, -1.0, 0.1], 0),  # of five none may dissent
        ([-1.0] * 7 + [0.1], 1),  # of eight one may
        ([-1.0] * 6 + [0.1] * 2, 0),
        ([-1.0] * 7 + [1000.0], 1),  # how far it lies off changes nothing
        ([1.0] * 7 + [-1000.0], -1),
        ([-3.0, -1.0, 0.5, 1.0, 3.0], 0),
        ([-5.0, -0.01, -0.01, -0.01, -0.01], 0),  # agreed, and too wide apart for the interval
    ],
)
def test_the_confidence_interval_over_seeds_decides_better_worse_or_undecided(excess: list[float], answer: int) -> None:
    assert int(not_worse.decide(np.array(excess), 0.95)) == answer


def test_the_direction_of_a_metric_decides_whether_a_larger_value_is_worse() -> None:
    ours, theirs = np.array([2.0, 1.0]), np.array([1.0, 2.0])
    assert not_worse.excesses(ours, theirs, 0.25, lower_is_better=True).tolist() == [0.75, -1.25]
    assert not_worse.excesses(ours, theirs, 0.25, lower_is_better=False).tolist() == [-1.25, 0.75]


def test_many_seed_experiments_are_decided_like_single_experiments() -> None:
    excess = np.random.default_rng(0).normal(-0.7, 1.0, (200, 8))
    together = not_worse.decide(excess, 0.95)
    assert together.tolist() == [int(not_worse.decide(one, 0.95)) for one in excess]
    assert set(together.tolist()) == {0, 1}


@pytest.mark.parametrize("middle", [-1.0, 1.0])
def test_the_estimated_number_of_seeds_would_decide_most_comparisons(middle: float) -> None:
    """The test draws new comparisons with the estimated number of seeds, for differences of about one standard
    deviation.
    """
    spread = np.array([-1.2649, -0.6325, 0.0, 0.6325, 1.2649])
    needed = not_worse.seeds_to_decide(spread + middle, 0.95)
    assert needed is not None
    generator = np.random.default_rng(1)
    decided = {
        count: float((not_worse.decide(generator.normal(middle, 1.0, (4000, count)), 0.95) != 0).mean())
        for count in (5, needed)
    }
    assert decided[needed] > 0.5 > decided[5] or needed == 6


def test_no_number_of_seeds_decides_a_difference_at_the_margin() -> None:
    assert not_worse.seeds_to_decide(np.array([-1.0, -0.5, 0.0, 0.5, 1.0]), 0.95) is None


def test_nearly_as_many_seeds_as_a_claim_may_have_may_be_estimated() -> None:
    assert not_worse.seeds_to_decide(np.array([-1.2649, -0.6325, 0.0, 0.6325, 1.2649]) + 0.273, 0.95) == 63


@pytest.mark.parametrize(
    ("start", "end"), [(None, state("end")), (state("start"), None), [State(digests={}, tensors=0)] * 2]
)
def test_seeds_are_alike_if_no_state_of_a_generator_was_recorded(start: State | None, end: State | None) -> None:
    one = arm("ungraphed")
    assert one.end is not None
    object.__setattr__(one, "start", one.start.model_copy(update={"state": start}))
    object.__setattr__(one, "end", one.end.model_copy(update={"state": end}))
    with pytest.raises(Settled, match="starts from equal parameters"):
        require_unequal_seeds("ungraphed", {0: one, 1: one})


@pytest.mark.parametrize("count", slow_but([5], [5, 8, 12]))
@pytest.mark.parametrize("noise", NOISES)
def test_if_the_true_difference_equals_the_margin_a_pass_is_rare_for_noise_of_any_shape(noise: str, count: int) -> None:
    [point] = [each for each in simulate(noise, count, 0.95, EXPERIMENTS, 1) if each.beyond_margin == 0.0]
    bar = wanted(point)
    assert bar is None or bar[1], point


def test_published_seed_error_rates_equal_those_of_the_script() -> None:
    """The points of one setting are compared here, and those of all settings in the long checks."""
    published = seed_error_rates.REPORT.published()
    found = simulate("heavy-tailed", 8, 0.95, published["points"][0]["experiments"], published["seed"])
    rows = [point for point in published["points"] if (point["noise"], point["seeds"]) == ("heavy-tailed", 8)]
    assert [each.passed for each in found] == [row["passed"] for row in rows]
    assert len(rows) == len(seed_error_rates.PLACES)


def test_a_seed_that_is_worse_by_the_margin_exactly_is_not_beyond_it() -> None:
    worse, sheet = np.array([0.25, 0.5, 0.0, 0.0, 0.0]), Sheet()
    pairs = not_worse.Pairs(worse, np.zeros(5), np.full(5, 0.25), lower_is_better=True)
    not_worse._note(NotWorse.model_validate(NOT_WORSE), pairs, sheet)
    assert sheet.conclude("worse", "").figures["seeds_beyond_margin"].value == 1


def test_a_not_worse_verdict_reports_its_figures() -> None:
    """The differences of five seeds lie around 0.1, at most 0.02 away, and their mean equals the margin."""
    shown = figures(seeds(executions("ungraphed", worse=0.1)))
    assert shown["worse_by"] == (pytest.approx(0.1), "loss")
    assert shown["worse_by_at_most"] == (pytest.approx(0.1 + 2.13185 * 0.0158114 / 5**0.5, abs=1e-6), "loss")
    assert shown["excess_at_least"] == (pytest.approx(-2.13185 * 0.0158114 / 5**0.5, abs=1e-6), "loss")
    assert shown["seeds_beyond_margin"][0] in (2, 3)  # the middle one lies at the margin, but for its rounding
    assert (shown["largest_margin"], shown["confidence"]) == ((0.1, "loss"), (0.95, ""))
    assert shown["value_baseline"][0] == pytest.approx(2.0555556 - 0.1 * 17 / 18, abs=1e-6)

"""Whether steps become slower: the interval holds the median, and noise decides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

import numpy as np
import pytest
from judge_cases_long_replay import UNEVEN, replayed

from harness.evidence.arm_records import ReplayBlock
from harness.judging.verdict import Demanded, Interval
from harness.kinds.captures import long_replay as flatness
from harness.kinds.captures.long_replay import Slowdown, slowdown

STEPS = 10


def blocks(seconds: Sequence[float], yardstick: Sequence[float] | None = None) -> list[ReplayBlock]:
    """Blocks whose steps take these seconds each."""
    return [
        ReplayBlock(
            first_step=number * STEPS,
            steps=STEPS,
            losses="l",
            batches="b",
            first_non_finite=None,
            seconds=STEPS * each,
            yardstick_seconds=1.0 if yardstick is None else yardstick[number],
            allocated_bytes=None,
            reserved_bytes=None,
        )
        for number, each in enumerate(seconds)
    ]


def quarters(early: float, late: float, count: int = 8) -> list[float]:
    return [*[early] * count, *[1.0] * (2 * count), *[late] * count]


def test_slowdown_compares_late_steps_with_early_steps() -> None:
    assert slowdown(blocks(quarters(1.0, 1.5))) == Slowdown(0.5, 0.5, 0.5, 0.5)


def test_a_slow_block_between_the_compared_quarters_is_no_slowdown() -> None:
    times = quarters(2.0, 2.0)
    times[16] = 100.0
    assert slowdown(blocks(times)) == Slowdown(0.0, 0.0, 0.0)


@pytest.mark.parametrize("count", [31, 28, 4, 0])
def test_too_few_blocks_give_no_slowdown(count: int) -> None:
    assert slowdown(blocks([1.0] * count)) is None


def test_one_disturbed_block_of_many_does_not_change_the_slowdown() -> None:
    times = quarters(1.0, 1.0, 24)
    times[0] = times[-1] = 50.0
    assert slowdown(blocks(times)) == Slowdown(0.0, 0.0, 0.0)


def test_with_few_blocks_the_interval_of_the_slowdown_reaches_from_its_smallest_to_its_largest_value() -> None:
    times = quarters(1.0, 1.0)
    times[-1] = 4.0
    assert slowdown(blocks(times)) == Slowdown(0.0, 0.0, 3.0)


def test_a_machine_that_slows_down_explains_its_part_of_the_slowdown() -> None:
    found = slowdown(blocks(quarters(1.0, 1.5), quarters(1.0, 1.25)))
    assert found == Slowdown(0.5, 1.5 / 1.25 - 1, 0.5, 0.5)


def test_a_machine_that_became_faster_widens_the_slowdown_interval_by_as_much() -> None:
    assert slowdown(blocks(quarters(1.0, 1.0), quarters(1.0, 0.5))) == Slowdown(0.0, 0.0, 1.0)


@pytest.mark.parametrize(("count", "rank"), [(7, None), (8, 0), (10, 0), (11, 0), (12, 1), (24, 5), (100, 36)])
def test_the_interval_of_the_slowdown_uses_the_highest_rank_with_99_percent_coverage(
    count: int, rank: int | None
) -> None:
    assert flatness._rank(count) == rank

    def outside(k: int) -> float:
        """Chance that fewer than k + 1 of the values lie on one side of their median, or on the other."""
        return 2 * sum(comb(count, below) for below in range(k + 1)) / 2.0**count

    assert rank is None or outside(rank) <= flatness.OUTSIDE < outside(rank + 1)


@pytest.mark.parametrize("noise", ["normal", "skewed", "bursts"])
def test_noise_around_equal_times_is_rarely_judged_as_a_slowdown_or_speedup(noise: str) -> None:
    """In at most 2 % of 2,000 runs of 96 blocks, the interval of the slowdown does not contain 0."""
    draw = np.random.default_rng(0)
    missed = 0
    for _ in range(2000):
        spread = {
            "normal": 1 + 0.05 * draw.standard_normal(96),
            "skewed": 1 + 0.1 * draw.exponential(size=96),
            "bursts": 1 + (draw.random(96) < 0.2) * draw.exponential(2.0, 96),
        }[noise]
        found = slowdown(blocks(spread.tolist()))
        assert found is not None
        missed += not found.least <= 0 <= found.most
    assert missed <= 40


def test_the_third_fastest_block_of_a_quarter_represents_its_fastest_steps() -> None:
    times = [*[0.5, 0.5, 2.0, *[3.0] * 5], *[1.0] * 16, *[3.0, 2.5, 2.2, *[4.0] * 5]]
    found = slowdown(blocks(times))
    assert found is not None
    assert found.fastest == pytest.approx(3.0 / 2.0 - 1)


def test_a_slowdown_hidden_by_an_early_disturbance_shows_in_the_fastest_blocks() -> None:
    times = [*[1.0] * 4, *[2.0] * 20, *[1.1] * 24, *[1.2] * 24, *[1.25] * 24]
    found = slowdown(blocks(times))
    assert found is not None
    assert found.most == pytest.approx(1.25 / 2.0 - 1)
    assert found.fastest == pytest.approx(0.25)


@pytest.mark.parametrize(("sizes", "growth"), [([10, 5], -5), ([10, 5, 8], 3), ([10, 8, 5], -2), ([10, 7, 4, 6, 6], 2)])
def test_memory_that_grows_below_the_peak_of_the_warm_up_is_found(sizes: list[int], growth: int) -> None:
    assert flatness._growth(sizes, 1) == growth


def test_a_slowdown_next_to_a_fresh_run_is_demanded_with_the_interval_of_its_rounds() -> None:
    interval = Interval(0.125, 1.0, 0.99, "interval of the median", "rounds")
    demanded = Demanded("slowdown", 0.5625, "at most", 0.125, percent=True, interval=interval)
    assert replayed(ours=UNEVEN).decided == demanded

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.report.charts.plots import decimate


def test_decimating_a_short_series_keeps_every_step() -> None:
    steps, values = decimate(np.array([3.0, 1.0, 2.0]), 10)
    assert steps.tolist() == [0, 1, 2]
    assert values.tolist() == [3, 1, 2]


def test_a_single_spike_in_a_million_steps_is_kept_by_decimating() -> None:
    series = np.zeros(1_000_000)
    series[654_321] = 7.0
    steps, values = decimate(series)
    assert steps[values == 7.0].tolist() == [654_321]
    assert len(steps) <= 600


def test_decimating_leaves_out_steps_without_a_finite_value() -> None:
    steps, values = decimate(np.array([np.nan, 1.0, np.inf, 2.0]))
    assert steps.tolist() == [1, 3]
    assert values.tolist() == [1, 2]


def test_decimating_only_nan_values_gives_no_points() -> None:
    steps, values = decimate(np.array([np.nan] * 5))
    assert len(steps) == len(values) == 0


@given(st.integers(4, 40), st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=300))
def test_decimating_always_keeps_extremes_and_end_points(points: int, series: list[float]) -> None:
    values = np.array(series)
    steps, kept = decimate(values, points)
    assert kept.min() == values.min()
    assert kept.max() == values.max()
    assert [steps[0], steps[-1]] == [0, len(values) - 1]
    assert len(kept) <= max(points, 4)
    assert (np.diff(steps) > 0).all()


@pytest.mark.parametrize("points", [1, 2, 3, 4, 5])
def test_decimating_to_few_points_keeps_the_extremes(points: int) -> None:
    values = np.sin(np.arange(50.0))
    at, shown = decimate(values, points)
    assert {float(values.min()), float(values.max())} <= set(shown.tolist())
    assert list(at) == sorted(at)
    assert len(at) <= 4

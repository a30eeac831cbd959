"""Equal figures are drawn once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from harness.report.charts import svg
from harness.report.charts.plots import Doubles
from harness.report.charts.svg import Plot, drawn_once

seen: list[str] = []


@pytest.fixture(autouse=True)
def nothing_is_known() -> Iterator[None]:
    seen.clear()
    svg.forget()
    yield
    svg.forget()


@drawn_once
def losses(values: Doubles, *, name: str) -> Plot:
    seen.append(name)
    return Plot("", f"{values.sum():g}", {}, name, 1, 1)


@drawn_once
def others(values: Doubles, *, name: str) -> Plot:
    seen.append(f"other {name}")
    return Plot("", f"other {values.sum():g}", {}, name, 1, 1)


def test_a_plot_with_equal_arguments_is_drawn_once() -> None:
    first = losses(np.zeros(1000), name="a")
    assert losses(np.zeros(1000), name="a") is first
    assert seen == ["a"]


def test_plots_with_different_arguments_are_each_drawn() -> None:
    almost = np.zeros(1000)
    almost[500] = 1e-300
    drawn = [
        losses(np.zeros(1000), name="a"),
        losses(almost, name="a"),
        losses(np.zeros(999), name="a"),
        losses(np.zeros(1000), name="b"),
        others(np.zeros(1000), name="a"),
    ]
    assert seen == ["a", "a", "a", "b", "other a"]
    assert [plot.body for plot in drawn] == ["0", "1e-300", "0", "0", "other 0"]


def test_the_oldest_cached_plots_are_dropped_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(svg, "MOST_KEPT", 2)
    for name in ("a", "b", "c", "b", "a"):
        losses(np.zeros(3), name=name)
    assert seen == ["a", "b", "c", "a"]

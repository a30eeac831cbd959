"""The figures of the cost benchmark: windows, bars, and a run directory that is really judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.harness_cost import Cost, command_seconds, costs_of, judging, window_ms
from benchmarks.synthetic_run import CLAIM, write_run_directory
from harness.execution.series_block import BLOCK_STEPS


def test_cost_windows_leave_out_the_first_and_the_partial_last_window() -> None:
    """Steps of the first window take 9 s (a compilation), later steps 2 ms.

    The last three steps are too few for a window.
    """
    slow = [9.0 * index for index in range(BLOCK_STEPS)]
    fast = [9.0 * BLOCK_STEPS + 0.002 * index for index in range(2 * BLOCK_STEPS + 3)]
    assert window_ms(slow + fast) == pytest.approx([2.0, 2.0])


@pytest.mark.parametrize(
    ("figure", "resolution", "status"),
    [(0.004, 0.005, "met"), (0.008, 0.005, "not resolved"), (0.012, 0.005, "not resolved"), (0.02, 0.005, "missed")],
)
def test_a_cost_limit_is_decided_only_if_the_cost_differs_from_it_by_more_than_the_resolution(
    figure: float, resolution: float, status: str
) -> None:
    assert Cost("supervision", figure, 0.01, "share", resolution).status == status


def test_supervision_cost_is_reported_as_a_share_and_in_milliseconds() -> None:
    """A bare step takes about 10 ms in four windows that vary, and a supervised step 10.25 ms in four equal windows."""
    share, milliseconds = costs_of([9.9, 9.9, 10.1, 10.1], [10.25] * 4, "step", "tiny")
    deviation = (4 * 0.1**2 / 3) ** 0.5
    assert share.figure == pytest.approx(0.025)
    assert share.resolution == pytest.approx(2 * 1.25 * deviation / 2 / 10)
    assert (milliseconds.what, milliseconds.bar) == ("supervision, capture step, a step", 0.3)
    assert milliseconds.figure == pytest.approx(0.25)
    assert milliseconds.resolution == pytest.approx(2 * 1.25 * deviation / 2)
    assert milliseconds.line() == (
        "| supervision, capture step, a step | 0.25 ms ± 0.14 ms | 0.3 ms | not resolved "
        "| 10.00 ms bare, 10.25 ms supervised (tiny) |"
    )


def test_the_synthetic_benchmark_run_passes_when_it_is_judged(tmp_path: Path) -> None:
    _, directory = write_run_directory(tmp_path, 25)
    _, printed = command_seconds("judge", str(directory))
    assert CLAIM in printed
    assert "1 held" in printed


def test_a_benchmark_run_with_unequal_losses_does_not_pass(tmp_path: Path) -> None:
    _, directory = write_run_directory(tmp_path, 25)
    series = directory / "evidence" / "synthetic" / "candidate.0.csv"
    lines = series.read_text().splitlines()
    series.write_text("\n".join([*lines[:-1], lines[-1].replace("11.99", "11.98")]) + "\n")
    with pytest.raises(RuntimeError, match="ended with"):
        command_seconds("judge", str(directory))


def test_the_cost_of_judging_alone_is_below_that_of_the_whole_command() -> None:
    whole, alone = judging(25)
    assert "verdict PASS" in whole.detail
    assert 0 < alone.figure < whole.figure

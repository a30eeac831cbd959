"""Which bars a run is held to, and what it says of each."""

from __future__ import annotations

from dataclasses import replace

import pytest
from peer_runs import complete_run, floors, with_arm

from benchmarks.peer_bars import Bar, bars
from benchmarks.peer_plan import Shape
from benchmarks.peer_run import PeerRun

REFERENCE = complete_run().reference["4x512"]


def found(run: PeerRun) -> dict[str, tuple[float | None, str]]:
    return {f"{bar.what}, {bar.shape.seq_len}": (bar.figure, bar.verdict) for bar in bars(run)}


def test_limits_apply_to_ratios_of_medians_or_to_ratios_to_alternately_timed_matrix_products() -> None:
    """A bar is a goal or a limit for a measured ratio."""
    assert found(complete_run()) == {
        "faster than hf_eager, 512": (4.0, "met"),
        "faster than unsloth, 512": (1.6, "missed"),
        "faster than hf_reduce_overhead, 512": (None, "not measured"),
        "times the products, 512": (1.3, "missed"),
        "FP8, times the bfloat16 products, 512": (0.95, "met"),
        "peak GiB, 512": (3.0, "met"),
    }


def test_a_shape_that_a_run_has_not_reached_yet_is_not_measured() -> None:
    run = replace(complete_run(), reference={"4x2048": REFERENCE, "4x4096": REFERENCE, "1x8192": REFERENCE})
    assert [(bar.what, str(bar.shape), bar.shown, bar.verdict) for bar in bars(run)] == [
        ("faster than unsloth", "4x2048", ">= 1.25", "not measured"),
        ("times the products", "4x2048", "<= 1.28", "not measured"),
        ("times the products, the goal", "4x2048", "<= 1.22", "not measured"),
        ("FP8, times the bfloat16 products", "4x2048", "<= 0.95", "not measured"),
        ("peak GiB", "4x2048", "<= 12.4", "not measured"),
        ("peak GiB", "4x4096", "<= 24", "not measured"),
    ]


def test_a_goal_and_a_limit_judge_the_same_measured_figure() -> None:
    run = replace(complete_run(), reference={"4x2048": REFERENCE}, floors={"4x2048": {**floors(), "times_floor": 1.25}})
    assert found(run)["times the products, 2048"] == (1.25, "met")
    assert found(run)["times the products, the goal, 2048"] == (1.25, "missed")


@pytest.mark.parametrize(("figure", "verdict"), [(1.28, "met"), (1.2801, "missed"), (float("nan"), "missed")])
def test_a_figure_equal_to_its_goal_or_limit_meets_it(figure: float, verdict: str) -> None:
    assert Bar("times the products", Shape(4, 2048), figure, 1.28).verdict == verdict


def test_the_memory_bar_of_an_arm_without_a_recorded_peak_is_reported_as_not_measured() -> None:
    run = with_arm(complete_run(), "graphed", peak_gib=None)
    assert found(run)["peak GiB, 512"] == (None, "not measured")


@pytest.mark.parametrize("changes", [{"model": "tiny"}, {"batch_size": 2}])
def test_a_run_of_a_different_model_or_batch_has_no_goals_and_limits(changes: dict[str, object]) -> None:
    assert bars(replace(complete_run(), **changes)) == []  # type: ignore[arg-type]

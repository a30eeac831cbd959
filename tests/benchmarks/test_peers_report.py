"""What a peer run says of its figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from peer_runs import BF16_FACTS, PEER_FACTS, complete_run, floors, with_arm

from benchmarks.peers_report import plot, summary


def test_the_report_lists_the_step_between_its_two_floors() -> None:
    """The step and both floors come from one process. In the arm's own process the step takes 25 ms."""
    figures = "26.00 | 1500 | 20.00 | 1500 | 19.50 | 1500 | 19.00 | 1500 | 1.300 | 1.333 | 0.950 | 3.00 | 25 |"
    assert f"| 4x512 | {figures}" in summary(complete_run())


def test_a_report_of_floors_without_fp8_shows_a_dash_and_not_measured() -> None:
    """A floor is the time of the step's matrix products alone."""
    found = {name: value for name, value in floors().items() if name != "fp8_times_floor"} | {"fp8_step": None}
    text = summary(replace(complete_run(), floors={"4x512": found}))
    assert "| 19.50 | 1500 | - | - | 1.300 | 1.333 | - | 3.00 | 25 |" in text
    assert "| FP8, times the bfloat16 products | 4x512 | - | <= 1 | **not measured** |" in text


def test_the_report_states_the_number_of_single_steps_behind_its_percentiles() -> None:
    text = summary(with_arm(complete_run(), "hf_eager", block_ms=(99.0,) * 5))
    assert "| 4x512 | hf_eager | 100.00 | 99.20 | 101.60 | 99.00 | 3 + 5 x 5 |" in text
    assert "| 4x512 | graphed | 25.00 | 24.20 | 26.60 | 25.00 | 3 + 1 x 5 |" in text


def test_the_report_lists_arms_of_different_sittings_on_separate_lines() -> None:
    """A sitting is a group of arms whose processes are open at the same time."""
    text = summary(with_arm(complete_run(), "unsloth", sitting="2.0"))
    assert "\n- graphed at 4x512, hf_eager at 4x512, gemm_floor at 4x512\n- unsloth at 4x512\n" in text


def test_the_report_states_the_seconds_of_each_of_several_calls() -> None:
    assert "; 200 s." in summary(complete_run())
    assert "; 2 calls of 200, 310 s." in summary(replace(complete_run(), call_seconds=(200.0, 310.0)))


def test_a_loss_different_from_the_reference_is_reported_as_different_mathematics() -> None:
    assert "All arms train the same mathematics" in summary(complete_run())
    assert "**The mathematics differ**" in summary(with_arm(complete_run(), "hf_eager", loss_step_0=12.12))


def test_the_report_shows_each_goal_and_limit_with_its_verdict() -> None:
    text = summary(complete_run())
    assert "| faster than hf_eager | 4x512 | 4.000 | >= 3.5 | met |" in text
    assert "| times the products | 4x512 | 1.300 | <= 1.25 | **missed** |" in text
    assert "| faster than hf_reduce_overhead | 4x512 | - | >= 1.5 | **not measured** |" in text


def test_an_absent_arm_is_named_and_the_run_is_not_complete() -> None:
    run = replace(complete_run(), absent={"unsloth at 4x128": "ModuleNotFoundError: No module named 'unsloth'"})
    assert not run.complete
    assert "**This run is not complete.** Absent:\n\n- unsloth at 4x128: ModuleNotFoundError" in summary(run)


def test_the_report_names_an_arm_that_fell_back_to_another_mechanism() -> None:
    run = with_arm(complete_run(), "graphed", facts={**BF16_FACTS, "mechanism": "traced"})
    run = with_arm(run, "hf_eager", facts={**PEER_FACTS, "graph_breaks": 3, "cudagraph_skips": 1})
    assert "- graphed at 4x512: traced\n" in summary(run)
    assert "- hf_eager at 4x512: 3 graph breaks, 1 skipped CUDA graphs\n" in summary(run)
    run = with_arm(run, "graphed", facts={**BF16_FACTS, "mechanism": "cuda_graph", "products": "float8_e4m3fn"})
    assert "- graphed at 4x512: cuda_graph, products in float8_e4m3fn\n" in summary(run)


def test_the_plot_names_every_arm(tmp_path: Path) -> None:
    plot(complete_run(), tmp_path / "peers.svg")
    text = (tmp_path / "peers.svg").read_text()
    assert all(f"<!-- {name} -->" in text for name in ("graphed", "hf_eager", "unsloth", "gemm_floor", "25.0"))

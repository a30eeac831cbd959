"""Time to go: from what runs took, here or before; without a basis there is none."""

from __future__ import annotations

import pytest

from harness.contract.schema import Workload
from harness.evidence.base import ProbeName
from harness.evidence.plan_records import Run
from harness.report.terminal import TimeToGo, in_words


def run(name: str, probe: ProbeName = "paired") -> Run:
    workload = Workload(model="tiny", batch_size=4, seq_len=64, steps=1)
    return Run(id=name, contract="c", probe=probe, workload_name="tiny", workload=workload, arms={})


def four(*timed: str) -> list[Run]:
    return [run("a"), run("b"), run("c"), run("d"), *(run(name, "throughput") for name in timed)]


def test_remaining_time_is_unknown_before_any_run_has_ended() -> None:
    to_go = TimeToGo(four())
    to_go.moves("a", 5.0, over=False)
    assert to_go.seconds(5.0) is None


def test_an_ended_run_predicts_only_runs_of_the_same_kind() -> None:
    to_go = TimeToGo([*four(), run("k", "kernels")])
    to_go.moves("a", 10.0, over=True)
    assert to_go.seconds(10.0) is None
    to_go.moves("k", 2.0, over=True)
    assert to_go.seconds(12.0) == pytest.approx(30.0)


def test_the_elapsed_time_of_a_running_run_reduces_the_remaining_time() -> None:
    to_go = TimeToGo(four())
    to_go.moves("a", 10.0, over=True)
    to_go.moves("b", 4.0, over=False)
    assert to_go.seconds(14.0) == pytest.approx(6.0 + 10.0 + 10.0)


def test_concurrent_runs_share_the_remaining_time() -> None:
    to_go = TimeToGo(four())
    to_go.moves("a", 10.0, over=True)
    to_go.moves("b", 10.0, over=True)
    assert to_go.seconds(10.0) == pytest.approx(10.0)


def test_recorded_durations_take_precedence_over_runs_that_just_ended() -> None:
    to_go = TimeToGo(four(), recorded={"b": 100.0, "c": 1.0, "d": 1.0})
    to_go.moves("a", 10.0, over=True)
    assert to_go.seconds(10.0) == pytest.approx(102.0)


def test_a_run_that_exceeds_its_expected_duration_has_no_remaining_time() -> None:
    to_go = TimeToGo(four(), recorded=dict.fromkeys("abcd", 10.0))
    to_go.moves("a", 50.0, over=False)
    assert to_go.seconds(50.0) == pytest.approx(30.0)


def test_remaining_time_of_timing_runs_comes_only_from_recorded_durations() -> None:
    to_go = TimeToGo(four("t", "u"))
    for name in "abcd":
        to_go.moves(name, 10.0, over=True)
    to_go.moves("t", 30.0, over=True)  # most of it was spent waiting for its turn
    assert to_go.seconds(70.0) is None
    to_go.recorded = {"t": 20.0, "u": 20.0}
    to_go.moves("u", 30.0, over=False)
    assert to_go.seconds(70.0) == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.1, "about 5 s to go"),
        (31.0, "about 35 s to go"),
        (56.0, "about 1 min to go"),
        (61.0, "about 2 min to go"),
        (3541.0, "about 1 h 0 min to go"),
        (4801.0, "about 1 h 21 min to go"),
    ],
)
def test_an_estimate_is_rounded_up(seconds: float, words: str) -> None:
    assert in_words(seconds) == words

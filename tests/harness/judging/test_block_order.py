"""A B B A is believed by the clock of its blocks, not by their labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from judge_cases_ratios import clocked, end_of
from judge_cases_throughput import processes, timed

from harness.evidence.run_evidence import RunEvidence


def in_turn(count: int = 8) -> list[RunEvidence]:
    """Processes one after another, each a second after the one before."""
    runs: list[RunEvidence] = []
    for index, run in enumerate(processes(1.2)[:count]):
        runs.append(clocked(run, index, end_of(runs[-1]) + 1.0 if runs else 0.0))
    return runs


def begun(run: RunEvidence, moments: Sequence[float]) -> RunEvidence:
    assert run.timing is not None
    blocks = [
        block.model_copy(update={"began": moment}) for block, moment in zip(run.timing.blocks, moments, strict=True)
    ]
    return replace(run, timing=run.timing.model_copy(update={"blocks": blocks}))


def moments(run: RunEvidence) -> list[float]:
    assert run.timing is not None
    return [block.began or 0.0 for block in run.timing.blocks]


def test_a_timing_with_interleaved_blocks_holds() -> None:
    assert timed(in_turn()).reason == "held"


@pytest.mark.parametrize(
    "order",
    [
        pytest.param([0, 4, 5, 1, 2, 6, 7, 3], id="one arm after the other"),
        pytest.param([0] * 8, id="all at one moment"),
        pytest.param([7, 6, 5, 4, 3, 2, 1, 0], id="backwards"),
    ],
)
def test_blocks_that_were_timed_in_another_order_contradict_their_positions(order: Sequence[int]) -> None:
    runs = in_turn()
    there = moments(runs[7])
    runs[7] = begun(runs[7], [there[place] for place in order])
    assert timed(runs).reason == "evidence_inconsistent"


def test_a_block_with_a_nan_start_time_is_not_judged() -> None:
    runs = in_turn()
    runs[7] = begun(runs[7], [math.nan, *moments(runs[7])[1:]])
    assert timed(runs).reason in {"evidence_inconsistent", "telemetry_missing"}


def test_overlapping_blocks_of_a_process_are_inconsistent_evidence() -> None:
    runs = in_turn()
    there = moments(runs[7])
    runs[7] = begun(runs[7], [*there[:3], there[3] - 0.001, *there[4:]])
    verdict = timed(runs)
    assert (verdict.reason, verdict.message) == (
        "evidence_inconsistent",
        (
            "in process 7, block 3 of round 0 began before block 2 of round 0 ended, so the blocks were not timed one "
            "after the other"
        ),
    )


def test_processes_that_overlap_on_one_device_are_not_judged() -> None:
    runs = in_turn()
    runs[5] = clocked(runs[5], 5, moments(runs[4])[2])
    verdict = timed(runs)
    assert (verdict.reason, verdict.message) == (
        "evidence_inconsistent",
        "the timing of process 5 began before that of process 4 ended, on the same device",
    )


def test_timing_processes_may_run_in_any_order() -> None:
    runs = in_turn()
    first, last = moments(runs[0])[0], moments(runs[7])[0]
    runs[0], runs[7] = clocked(runs[0], 0, last + 1), clocked(runs[7], 7, first)
    assert timed(runs).reason == "held"

"""What is timed while something else works on the processor is left out, or decides nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from evidence_builders import TRAJECTORY, timed_run, verdict_of
from judge_cases_throughput import FASTER

from harness.evidence.run_evidence import RunEvidence
from harness.judge.verdict import Verdict
from harness.report.time_axis import side_by_side

LEAST, SLOW = 1e-3, 1.8e-3
FREE, BUSY = LEAST, SLOW
SLOWED = 1.7  # as a busy neighbour made the eager step on an H200's host
CLAIM = FASTER | {"processes": 12, "blocks": 8}


def process(number: int, ratio: float, paces: Sequence[float | None], *, slowed: str = "ungraphed") -> RunEvidence:
    """A process with a round for each pace, whose arm `slowed` takes longer where the pace is slow."""
    late = [SLOWED if pace == SLOW else 1.0 for pace in paces for _ in range(2)]
    ours = [0.01 * (late[index] if slowed == "graphed" else 1) for index in range(len(late))]
    theirs = [0.01 * ratio * (late[index] if slowed == "ungraphed" else 1) for index in range(len(late))]
    run = timed_run(number, ours, theirs)
    assert run.timing is not None
    paced = [block.model_copy(update={"pace": paces[block.round]}) for block in run.timing.blocks]
    return replace(run, timing=run.timing.model_copy(update={"blocks": paced}))


def judged(runs: Sequence[RunEvidence], **claim: object) -> Verdict:
    return verdict_of(CLAIM | claim, *runs, beside=[TRAJECTORY])


def value(verdict: Verdict, name: str) -> object:
    return verdict.figures[name].value


def test_disturbed_baselines_make_no_candidate_faster() -> None:
    runs = [process(number, 1.0, [FREE, FREE, BUSY, BUSY, BUSY, BUSY]) for number in range(12)]
    verdict = judged(runs)
    assert (verdict.status.value, verdict.reason) == ("FAIL", "too_slow")
    assert value(verdict, "mean_ratio") == pytest.approx(1.0)
    assert (value(verdict, "disturbed_rounds"), value(verdict, "disturbed_processes")) == (48, 0)


def test_without_paces_the_same_blocks_pass() -> None:
    """So the test above shows what the pace does, and older evidence is judged as it was."""
    runs = [process(number, 1.0, [FREE, *[BUSY] * 5]) for number in range(12)]
    for run in runs:
        for block in run.timing.blocks if run.timing is not None else []:
            object.__setattr__(block, "pace", None)
    verdict = judged(runs)
    assert verdict.reason == "held"
    assert "disturbed_rounds" not in verdict.figures


def test_disturbed_candidates_hide_no_speed() -> None:
    runs = [process(number, 1.2, [FREE, FREE, *[BUSY] * 4], slowed="graphed") for number in range(12)]
    verdict = judged(runs)
    assert verdict.reason == "held"
    assert value(verdict, "mean_ratio") == pytest.approx(1.2)
    assert verdict.denominators["blocks"] == 12 * 8


def test_a_process_with_one_round_left_is_left_out() -> None:
    runs = [process(number, 1.2, [FREE] * 4) for number in range(9)]
    runs += [process(number, 1.0, [FREE, BUSY, BUSY, BUSY]) for number in range(9, 12)]
    verdict = judged(runs)
    assert verdict.reason == "held"
    assert "over 9 of 12 processes" in verdict.message
    assert value(verdict, "disturbed_processes") == 3
    assert "ratio.process_9" not in verdict.figures


@pytest.mark.parametrize(("undisturbed", "reason"), [(7, "held"), (6, "processor_disturbed")])
def test_too_few_others_decide_nothing(undisturbed: int, reason: str) -> None:
    """Unanimity of seven is the first that reaches a confidence of 0.99."""
    runs = [process(number, 1.2, [FREE if number < undisturbed else BUSY] * 4) for number in range(12)]
    verdict = judged(runs)
    assert verdict.reason == reason
    assert value(verdict, "disturbed_processes") == 12 - undisturbed


def test_each_measurement_needs_its_own() -> None:
    runs = [process(number, 1.2, [FREE if number < 18 else BUSY] * 4) for number in range(24)]
    moments = iter(range(10_000))
    for run in runs:
        for block in run.timing.blocks if run.timing is not None else []:
            object.__setattr__(block, "began", float(next(moments)))
    verdict = judged(runs, measurements=2)
    assert verdict.reason == "processor_disturbed"
    assert "at least 7 others are needed in each measurement" in verdict.message


@pytest.mark.parametrize(("pace", "left_out"), [(1.35 * LEAST, 0), (1.36 * LEAST, 4), (math.nan, 4), (None, 0)])
def test_what_is_a_slow_pace(pace: float | None, left_out: int) -> None:
    runs = [process(number, 1.2, [FREE] * 4) for number in range(11)]
    assert value(judged([*runs, process(11, 1.2, [pace] * 4)]), "disturbed_rounds") == left_out


def test_a_machine_that_is_as_slow_all_along_is_its_own_measure() -> None:
    verdict = judged([process(number, 1.2, [BUSY] * 4) for number in range(12)])
    assert (verdict.reason, value(verdict, "disturbed_rounds")) == ("held", 0)


def test_the_page_tells_what_was_left_out() -> None:
    runs = [process(0, 1.2, [FREE] * 4), process(1, 1.2, [FREE, FREE, BUSY]), process(2, 1.2, [BUSY] * 4)]
    shown = side_by_side(runs)
    assert [item.left_out for item in shown] == ["", "1 rounds", "the process"]
    assert [round(item.ratio, 6) for item in shown] == [1.2, 1.2, round(1.2 * SLOWED, 6)]

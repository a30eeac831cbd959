"""What something else on the same core slowed is left out, or counts as the shorter that it may have been."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from evidence_builders import TRAJECTORY, timed_run, verdict_of
from judge_cases_throughput import FASTER

from harness.evidence.run_evidence import RunEvidence
from harness.judging.verdict import Verdict
from harness.kinds.speed.model import ThroughputRatio
from harness.kinds.speed.section import side_by_side
from harness.kinds.speed.speed_figures import Recorded

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


def working(run: RunEvidence, share: float) -> RunEvidence:
    """The same, profiled: the device works for this share of each arm's step."""
    assert run.timing is not None
    steps = {block.arm: block.seconds / block.steps for block in run.timing.blocks}
    seconds = {arm: share * step for arm, step in steps.items()}
    return replace(run, timing=run.timing.model_copy(update={"observed_device_seconds": seconds}))


def judged(runs: Sequence[RunEvidence], **claim: object) -> Verdict:
    return verdict_of(CLAIM | claim, *runs, beside=[TRAJECTORY])


def value(verdict: Verdict, name: str) -> object:
    return verdict.figures[name].value


def test_slowed_baseline_blocks_do_not_make_the_candidate_pass() -> None:
    runs = [process(number, 1.0, [FREE, FREE, BUSY, BUSY, BUSY, BUSY]) for number in range(12)]
    verdict = judged(runs)
    assert (verdict.status.value, verdict.reason) == ("FAIL", "too_slow")
    assert value(verdict, "mean_ratio") == pytest.approx(1.0)
    assert (value(verdict, "disturbed_rounds"), value(verdict, "disturbed_processes")) == (48, 0)


@pytest.mark.parametrize(
    ("longer", "reason"), [(1.0, "held"), (SLOWED, "held"), (1.9 * SLOW / LEAST, "held"), (20.0, "candidate_stalls")]
)
def test_a_slow_machine_pace_excuses_only_the_slowdown_that_it_explains(longer: float, reason: str) -> None:
    """The machine is 1.8 times slower during two of six rounds.

    In one of them a block of the candidate takes longer by a given factor.
    """
    runs = []
    for number in range(12):
        run = process(number, 1.5, [FREE, FREE, FREE, FREE, BUSY, BUSY], slowed="none")
        assert run.timing is not None
        blocks = list(run.timing.blocks)
        late = next(i for i, block in enumerate(blocks) if block.pace == SLOW and block.arm == "graphed")
        moved = (longer - 1) * blocks[late].seconds
        blocks[late] = blocks[late].model_copy(update={"seconds": longer * blocks[late].seconds})
        blocks[late + 1 :] = [
            each.model_copy(update={"began": None if each.began is None else each.began + moved})
            for each in blocks[late + 1 :]
        ]
        runs.append(replace(run, timing=run.timing.model_copy(update={"blocks": blocks})))
    verdict = judged(runs, at_least=1.3)
    assert verdict.reason == reason, verdict.message


def test_without_recorded_paces_disturbed_baseline_blocks_pass() -> None:
    """Without the pace, slow blocks of the baseline count for the candidate. Older evidence has no pace."""
    runs = [process(number, 1.0, [FREE, *[BUSY] * 5]) for number in range(12)]
    for run in runs:
        for block in run.timing.blocks if run.timing is not None else []:
            object.__setattr__(block, "pace", None)
    verdict = judged(runs)
    assert verdict.reason == "held"
    assert "disturbed_rounds" not in verdict.figures


def test_blocks_slowed_by_the_machine_do_not_hide_that_the_candidate_is_faster() -> None:
    runs = [process(number, 1.2, [FREE, FREE, *[BUSY] * 4], slowed="graphed") for number in range(12)]
    verdict = judged(runs)
    assert verdict.reason == "held"
    assert value(verdict, "mean_ratio") == pytest.approx(1.2)
    assert verdict.denominators["blocks"] == 12 * 8


def test_the_power_of_a_claim_comes_from_undisturbed_processes_whatever_their_numbers_are() -> None:
    runs = [process(number, 1.2, [FREE] * 4) for number in range(20, 28)]
    part = ThroughputRatio.model_validate(CLAIM | {"processes": 8, "measurements": 2})
    found = Recorded.of(part, [*runs, process(28, 1.0, [FREE, BUSY, BUSY, BUSY])])
    assert found is not None
    assert found.processes == 8


def test_a_process_with_one_undisturbed_round_is_left_out_when_enough_other_processes_remain() -> None:
    runs = [process(number, 1.2, [FREE] * 4) for number in range(9)]
    runs += [process(number, 1.0, [FREE, BUSY, BUSY, BUSY]) for number in range(9, 12)]
    verdict = judged(runs)
    assert verdict.reason == "held"
    assert "over 9 of 12 processes" in verdict.message
    assert value(verdict, "disturbed_processes") == 3
    assert "ratio.process_9" not in verdict.figures


@pytest.mark.parametrize(("undisturbed", "counted"), [(7, 7), (6, 12)])
def test_all_processes_count_when_too_few_are_undisturbed(undisturbed: int, counted: int) -> None:
    """If all agree, seven processes are the fewest that reach a confidence of 0.99."""
    verdict = judged([process(number, 1.2, [FREE if number < undisturbed else BUSY] * 4) for number in range(12)])
    assert len([name for name in verdict.figures if name.startswith("ratio.process_")]) == counted


def test_each_of_two_measurements_needs_enough_undisturbed_processes() -> None:
    runs = [process(number, 1.2, [FREE if number < 18 else BUSY] * 4) for number in range(24)]
    moments = iter(range(10_000))
    for run in runs:
        for block in run.timing.blocks if run.timing is not None else []:
            object.__setattr__(block, "began", float(next(moments)))
    verdict = judged(runs, measurements=2)
    assert len([name for name in verdict.figures if name.startswith("ratio.process_")]) == 24


def test_a_slow_baseline_with_too_few_undisturbed_rounds_passes_nothing() -> None:
    """Every block of the baseline takes 1.7 times as long. The measured pace allows a slowdown by up to 1.8."""
    runs = [process(number, 1.0, [FREE, BUSY, BUSY, BUSY]) for number in range(12)]
    verdict = judged(runs)
    assert verdict.reason == "undecided_ratio"
    assert value(verdict, "ratio.process_0") == pytest.approx(SLOWED / 1.8)
    assert (value(verdict, "disturbed_rounds"), value(verdict, "disturbed_processes")) == (36, 12)


def test_a_ratio_larger_than_a_slow_pace_explains_is_decided() -> None:
    verdict = judged([process(number, 2.5, [FREE, BUSY, BUSY, BUSY], slowed="") for number in range(12)])
    assert verdict.reason == "held"
    assert value(verdict, "mean_ratio") == pytest.approx(2.5 / 1.8)


def test_a_slow_candidate_with_too_few_undisturbed_rounds_fails_nothing() -> None:
    runs = [process(number, 1.3, [FREE, BUSY, BUSY, BUSY], slowed="graphed") for number in range(12)]
    assert judged(runs).reason == "undecided_ratio"


@pytest.mark.parametrize(("share", "reason"), [(0.91, "held"), (0.89, "undecided_ratio")])
def test_the_machines_pace_is_ignored_where_steps_wait_for_the_device(share: float, reason: str) -> None:
    runs = [process(number, 1.2, [BUSY] * 4, slowed="") for number in range(11)]
    runs = [working(run, share) for run in [*runs, process(11, 1.2, [FREE] * 4)]]
    verdict = judged(runs)
    assert verdict.reason == reason
    assert (value(verdict, "disturbed_rounds") == 0) == (reason == "held")


def test_the_machine_pace_counts_for_enqueue_timings_of_a_busy_device() -> None:
    runs = [process(number, 1.2, [BUSY] * 4, slowed="") for number in range(11)]
    runs = [working(run, 0.91) for run in [*runs, process(11, 1.2, [FREE] * 4)]]
    assert judged(runs, at_least=11.0, measure="enqueue").reason == "undecided_ratio"
    assert value(judged(runs, at_least=11.0, measure="enqueue"), "disturbed_rounds") == 44


def test_a_disturbed_block_is_not_corrected_below_its_device_time() -> None:
    runs = [process(number, 1.2, [BUSY] * 4, slowed="") for number in range(11)]
    runs = [working(run, 0.8) for run in [*runs, process(11, 1.2, [FREE] * 4)]]
    assert value(judged(runs), "ratio.process_0") == pytest.approx(1.2 * 0.8)


@pytest.mark.parametrize(("pace", "disturbed"), [(1.35 * LEAST, 0), (1.36 * LEAST, 4), (None, 0)])
def test_a_pace_beyond_the_limit_counts_as_a_disturbed_round(pace: float | None, disturbed: int) -> None:
    runs = [process(number, 1.2, [FREE] * 4) for number in range(11)]
    assert value(judged([*runs, process(11, 1.2, [pace] * 4)]), "disturbed_rounds") == disturbed


@pytest.mark.parametrize("pace", [math.nan, math.inf, 0.0])
def test_an_impossible_pace_is_inconsistent_evidence(pace: float) -> None:
    runs = [process(number, 1.2, [FREE] * 4) for number in range(11)]
    assert judged([*runs, process(11, 1.2, [FREE, FREE, FREE, pace])]).reason == "evidence_inconsistent"


def test_a_machine_that_is_always_slow_is_not_disturbed() -> None:
    verdict = judged([process(number, 1.2, [BUSY] * 4) for number in range(12)])
    assert (verdict.reason, value(verdict, "disturbed_rounds")) == ("held", 0)


def test_the_timing_plot_shows_the_measured_enqueue_times() -> None:
    """The steps of the arms take 12 and 10 ms, and the host enqueues them in 12 and 1 ms."""
    [shown] = side_by_side([process(0, 1.2, [FREE] * 4)], "enqueue")
    assert shown.ratio == pytest.approx(12.0)
    assert {round(block.step_ms, 6) for block in shown.blocks} == {1.0, 12.0}
    assert shown.blocks[0].end == pytest.approx(0.02)


def test_the_timing_page_corrects_blocks_as_the_judge_does() -> None:
    runs = [process(0, 1.2, [FREE] * 4), process(1, 1.2, [FREE, FREE, BUSY]), process(2, 1.2, [BUSY] * 4)]
    shown = side_by_side(runs)
    assert [item.disturbed for item in shown] == [0, 1, 4]
    assert [item.ratio for item in shown] == pytest.approx([1.2, 1.2, 1.2 * SLOWED / 1.8])

"""One time axis for ratios, blocks and clocks."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from evidence_builders import sample, timed_run
from judge_cases_throughput import timed

from harness.evidence.run_evidence import RunEvidence
from harness.evidence.run_records import Telemetry
from harness.kinds.speed.section import GAP, side_by_side
from harness.report.charts.plots import ProcessTiming, timing


def clocked(run: RunEvidence, *, first: float, pause: float, sampler: float) -> RunEvidence:
    """The run with moments: its first block at `first`, `pause` seconds between them, telemetry's 0 s at `sampler`."""
    assert run.timing is not None
    at, blocks = first, []
    for block in run.timing.blocks:
        blocks.append(block.model_copy(update={"began": at}))
        at += float(block.seconds) + pause
    telemetry = Telemetry(samples=[sample(seconds=second) for second in (1.0, 2.0, 4.0, 90.0)], began=sampler)
    return replace(run, timing=run.timing.model_copy(update={"blocks": blocks}), telemetry=telemetry)


def slow_run(process: int) -> RunEvidence:
    """Blocks of 1 s for the candidate and 2 s for the baseline: candidate, baseline, baseline, candidate."""
    return timed_run(process, [0.5, 0.5], [1.0, 1.0])


def spans(process: ProcessTiming) -> list[tuple[str, float, float]]:
    return [(block.arm, block.start, block.end) for block in process.blocks]


def test_recorded_moments_keep_the_gaps_between_blocks() -> None:
    [found] = side_by_side([clocked(slow_run(0), first=100.0, pause=0.5, sampler=99.0)])
    assert found.clocked
    assert spans(found) == [
        ("candidate", 0.0, 1.0),
        ("baseline", 1.5, 3.5),
        ("baseline", 4.0, 6.0),
        ("candidate", 6.5, 7.5),
    ]


def test_telemetry_samples_are_placed_at_their_time_relative_to_the_blocks() -> None:
    [found] = side_by_side([clocked(slow_run(0), first=100.0, pause=0.5, sampler=99.0)])
    assert [at for at, _ in found.samples] == [0.0, 1.0, 3.0]  # the one a minute later saw something else


def test_blocks_without_recorded_times_are_plotted_end_to_end() -> None:
    seen = Telemetry(samples=[sample(seconds=second) for second in (40.0, 40.5, 46.5)])
    [found] = side_by_side([replace(slow_run(0), telemetry=seen)])
    assert not found.clocked
    assert spans(found)[1:3] == [("baseline", 1.0, 3.0), ("baseline", 3.0, 5.0)]
    assert [at for at, _ in found.samples] == [0.0, 0.5, 6.5]
    assert found.end == 6.5


def test_processes_are_plotted_next_to_each_other_by_number() -> None:
    second, first = side_by_side([slow_run(1), slow_run(0)])[::-1]
    assert (first.process, first.start, first.end) == (0, 0.0, 6.0)
    assert second.process == 1
    assert second.start == pytest.approx(6.0 + GAP * 12.0)


def test_plotted_ratios_are_those_of_the_cautious_reading() -> None:
    [found] = side_by_side([timed_run(0, [0.01, 0.01, 0.01, 0.02], [0.03, 0.02, 0.07, 0.02])])
    assert found.ratio == pytest.approx(2.0)
    assert found.candidate_aa == pytest.approx(0.01 / 0.015)
    assert found.baseline_aa == pytest.approx(0.04 / 0.02)


def test_the_plotted_ratios_equal_those_of_the_judge() -> None:
    runs = [timed_run(index, [0.01, 0.011, 0.012, 0.014], [0.02, 0.021, 0.019, 0.024]) for index in range(8)]
    [*_, found] = side_by_side(runs)
    judged = timed(runs).figures
    assert found.ratio == pytest.approx(judged["ratio.process_7"].value)
    assert found.candidate_aa == pytest.approx(judged["self_ratio_candidate_low"].value)
    assert found.baseline_aa == pytest.approx(judged["self_ratio_baseline_low"].value)


@pytest.mark.parametrize("seconds", [0.0, float("nan"), float("inf")])
def test_a_process_with_a_block_of_zero_or_invalid_time_is_not_plotted(seconds: float) -> None:
    run = slow_run(0)
    assert run.timing is not None
    torn = [block.model_copy(update={"seconds": seconds}) for block in run.timing.blocks[:1]] + run.timing.blocks[1:]
    assert side_by_side([replace(run, timing=run.timing.model_copy(update={"blocks": torn}))]) == []


def test_a_process_that_timed_only_one_arm_is_not_plotted() -> None:
    run = slow_run(0)
    assert run.timing is not None
    alone = [block for block in run.timing.blocks if block.arm == "graphed"]
    assert side_by_side([replace(run, timing=run.timing.model_copy(update={"blocks": alone}))]) == []


def drawn(runs: list[RunEvidence]) -> tuple[list[str], str]:
    """The words of the plot, and what it is said to show."""
    processes = side_by_side(runs)
    plot = timing(processes, demanded=1.1, interval=(1.9, 2.1), shares_clock=processes[0].clocked)
    return re.findall(r">([^<]+)</text>", plot.body), plot.alt


def test_the_timing_plot_draws_all_readings_over_one_axis() -> None:
    throttled = [sample(seconds=second, throttle_reasons=["sw_power_cap"]) for second in (0.0, 0.5)]
    words, alt = drawn([replace(slow_run(process), telemetry=Telemetry(samples=throttled)) for process in (0, 1)])
    for word in (
        "candidate : baseline",
        "interval of the trimmed mean",
        "demanded 1.1",
        "A/A candidate",
        "A/A baseline",
    ):
        assert word in words
    for word in (
        "baseline, ms a step",
        "candidate, ms a step",
        "SM clock, MHz",
        "power, W",
        "temperature, °C",
        "throttled",
        "sw_power_cap",
    ):
        assert word in words
    assert [word for word in words if "seconds" in word] == [
        "seconds of timed blocks, end to end; processes side by side"
    ]
    assert "Speed ratio of each process: 2, 2; demanded 1.1." in alt
    assert "throttled: sw_power_cap." in alt


def test_recorded_moments_are_named_on_the_axis() -> None:
    words, alt = drawn([clocked(slow_run(0), first=5.0, pause=0.1, sampler=4.0)])
    assert "seconds since the first block; processes side by side" in words
    assert alt.endswith("throttled: never.")


def test_a_machine_without_clocks_has_no_empty_plot_lanes() -> None:
    quiet = Telemetry(samples=[sample(sm_clock_mhz=None, power_w=None, temperature_c=None)])
    words, _ = drawn([replace(slow_run(0), telemetry=quiet)])
    assert not [word for word in words if "clock" in word or "throttled" in word]


def test_timings_of_many_processes_are_plotted_with_few_points_each() -> None:
    """With 64 processes, the most that a contract may request, 160 points leave two for each process."""
    runs = [clocked(slow_run(process), first=100.0, pause=0.5, sampler=99.0) for process in range(64)]
    samples = [sample(seconds=1.0 + second / 4) for second in range(20)]
    runs = [replace(run, telemetry=Telemetry(samples=samples, began=99.0)) for run in runs]
    drawn = timing(side_by_side(runs), demanded=1.1, interval=(), shares_clock=True)
    assert "SM clock, MHz" in drawn.alt

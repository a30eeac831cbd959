"""A clock that moves may be allowed; one that favours the arm that wins decides nothing."""

from __future__ import annotations

import math
from typing import Any

import pytest
from evidence_builders import blocks, sample, timed_run
from judge_cases_throughput import STEADY, timed

from harness.evidence.run_evidence import RunEvidence
from harness.evidence.run_records import Telemetry
from harness.judging.verdict import Verdict
from harness.kinds.speed.disturbances import clock_spread, idle_share

MOVING = {"limits": {"sm_clock_spread": 0.3, "clock_advantage": 0.02}}
BEGAN = 1000.0  # telemetry and blocks share this clock
PAUSE = 0.005  # between two blocks, where no arm is timed


def on_clocks(index: int, ratio: float, graphed: float | None, ungraphed: float | None, between: float) -> RunEvidence:
    """One process, sampled in the middle of every block and between blocks, at these MHz; None: not sampled."""
    mhz = {"graphed": graphed, "ungraphed": ungraphed}
    start = BEGAN + 100 * index
    now, made, samples = start, [], []
    for block in blocks([0.01 * b for b in STEADY], [0.01 * ratio * b for b in STEADY], steps=2):
        made.append(block.model_copy(update={"began": now}))
        if mhz[block.arm] is not None:
            samples.append(sample(seconds=now + block.seconds / 2 - start, sm_clock_mhz=mhz[block.arm]))
        now += block.seconds + PAUSE
        samples.append(sample(seconds=now - PAUSE / 2 - start, sm_clock_mhz=between))
    return timed_run(
        index,
        [0.01 * b for b in STEADY],
        [0.01 * ratio * b for b in STEADY],
        timing={"blocks": made},
        telemetry=Telemetry(samples=samples, began=start),
    )


def judged(
    graphed: float | None,
    ungraphed: float | None,
    *,
    ratio: float = 1.2,
    between: float = 1980.0,
    limits: dict[str, Any] = MOVING,
) -> Verdict:
    return timed([on_clocks(index, ratio, graphed, ungraphed, between) for index in range(8)], limits)


def figures(verdict: Verdict) -> dict[str, object]:
    return {name: figure.value for name, figure in verdict.figures.items()}


def test_a_lower_clock_of_the_faster_arm_does_not_reduce_its_ratio() -> None:
    verdict = judged(1700.0, 1900.0)
    assert verdict.reason == "held"
    assert figures(verdict)["sm_clock.graphed"] == 1700.0
    assert figures(verdict)["sm_clock.ungraphed"] == 1900.0
    assert figures(verdict)["clock_advantage"] == pytest.approx(1700 / 1900 - 1)
    units = [verdict.figures[name].unit for name in ("sm_clock.graphed", "sm_clock.ungraphed", "clock_advantage")]
    assert units == ["MHz", "MHz", ""]


def test_a_higher_clock_of_the_faster_arm_leaves_the_ratio_undecided() -> None:
    verdict = judged(1900.0, 1700.0)
    assert verdict.reason == "limits_exceeded"
    assert verdict.message == (
        "the ratio is in favour of graphed, and the GPU's clock favoured it by 0.118 (limit 0.02): 1900 MHz against "
        "1700 MHz for ungraphed"
    )


def test_a_higher_clock_does_not_excuse_a_slower_candidate() -> None:
    """The claim fails, because the candidate was too slow although its clock was higher."""
    assert judged(1900.0, 1700.0, ratio=1.0).reason == "too_slow"


def test_a_lower_clock_of_the_slower_arm_leaves_the_ratio_undecided() -> None:
    verdict = judged(1700.0, 1900.0, ratio=1.0)
    assert verdict.reason == "limits_exceeded"
    assert verdict.message.startswith("the ratio is in favour of ungraphed, and the GPU's clock favoured it by 0.118")


@pytest.mark.parametrize(("ours", "reason"), [(1056.0, "held"), (1056.1, "limits_exceeded")])
def test_a_clock_advantage_equal_to_its_limit_is_allowed(ours: float, reason: str) -> None:
    limits = {"limits": {"sm_clock_spread": 1.0, "clock_advantage": 0.03125}}
    assert judged(ours, 1024.0, limits=limits).reason == reason


def test_clock_samples_between_blocks_count_for_no_arm() -> None:
    assert figures(judged(1700.0, 1710.0, between=1500.0))["clock_advantage"] == pytest.approx(1700 / 1710 - 1)


def test_clock_samples_at_the_edges_of_a_block_count_for_its_arm() -> None:
    runs = [on_clocks(index, 1.2, 1700.0, 1900.0, 1980.0) for index in range(8)]
    for run in runs:
        assert run.timing is not None
        assert run.telemetry is not None
        first = run.timing.blocks[0]
        assert first.began is not None
        assert run.telemetry.began is not None
        run.telemetry.samples[:] = [
            sample(seconds=first.began - run.telemetry.began, sm_clock_mhz=1600.0),
            sample(seconds=first.began + first.seconds - run.telemetry.began, sm_clock_mhz=1700.0),
            *(each for each in run.telemetry.samples if each.sm_clock_mhz == 1900.0),
        ]
    assert figures(timed(runs, MOVING))["sm_clock.graphed"] == 1650.0


@pytest.mark.parametrize("unseen", ["graphed", "ungraphed"])
def test_an_arm_without_clock_samples_leaves_the_ratio_undecided(unseen: str) -> None:
    seen = {"graphed": 1700.0, "ungraphed": 1700.0} | {unseen: None}
    verdict = judged(seen["graphed"], seen["ungraphed"])
    assert (verdict.reason, verdict.message) == (
        "telemetry_missing",
        f"no SM clock was sampled while {unseen} was timed in process 0, so it is unknown which arm the clock favoured",
    )


def test_a_clock_of_zero_does_not_count_as_a_sample() -> None:
    limits = {"limits": {"sm_clock_spread": 1.0, "clock_advantage": 0.02}}
    assert judged(1980.0, 0.0, limits=limits).reason == "telemetry_missing"


def test_clock_samples_without_times_leave_the_ratio_undecided() -> None:
    """In older evidence, blocks and samples do not have times of the same clock."""
    runs = [on_clocks(index, 1.2, 1700.0, 1900.0, 1980.0) for index in range(8)]
    untimed = [timed_run(index, [0.01] * 4, [0.012] * 4, telemetry=run.telemetry) for index, run in enumerate(runs)]
    assert timed(untimed, MOVING).reason == "telemetry_missing"
    for run in runs:
        assert run.telemetry is not None
        object.__setattr__(run.telemetry, "began", None)
    assert timed(runs, MOVING).reason == "telemetry_missing"


@pytest.mark.parametrize("arms", [(math.nan, 1700.0), (1700.0, math.nan), (math.inf, 1700.0)])
@pytest.mark.parametrize("limits", [MOVING, {}])
def test_a_non_finite_clock_leaves_the_ratio_undecided(arms: tuple[float, float], limits: dict[str, Any]) -> None:
    assert judged(*arms, limits=limits).reason == "limits_exceeded"


@pytest.mark.parametrize("loads", [(math.nan, 0.2), (0.2, math.nan)])
def test_a_non_finite_host_load_leaves_the_ratio_undecided(loads: tuple[float, float]) -> None:
    """The non-finite sample is found at every position. `max` would ignore NaN after a number."""
    samples = [sample(host_load_per_core=load) for load in loads]
    assert timed(telemetry=Telemetry(samples=samples)).reason == "limits_exceeded"


def test_with_a_steady_clock_the_arms_clocks_are_not_compared() -> None:
    """No sample fell into a block. This is no problem, because all samples together differ by less than the limit."""
    verdict = judged(None, None)
    assert verdict.reason == "held"
    assert "clock_advantage" not in verdict.figures


@pytest.mark.parametrize(("theirs", "reason"), [(1056.0, "held"), (1056.1, "telemetry_missing")])
def test_a_clock_spread_equal_to_the_advantage_limit_counts_as_steady(theirs: float, reason: str) -> None:
    limits = {"limits": {"sm_clock_spread": 0.3, "clock_advantage": 0.03125}}
    assert judged(None, theirs, between=1024.0, limits=limits).reason == reason


def test_without_a_clock_advantage_limit_only_the_spread_decides() -> None:
    assert judged(1980.0, 1890.0, limits={}).reason == "held"
    assert judged(1700.0, 1900.0, limits={}).reason == "limits_exceeded"


def test_a_machine_without_clock_samples_has_no_clock_spread() -> None:
    assert clock_spread([sample(sm_clock_mhz=None)]) == 0.0


def test_a_median_clock_of_0_mhz_gives_no_clock_spread() -> None:
    assert math.isnan(clock_spread([sample(sm_clock_mhz=mhz) for mhz in (0.0, 0.0, 1980.0)]))


def test_an_arm_without_timed_blocks_has_no_idle_share() -> None:
    timing = timed_run(0).timing
    assert timing is not None
    assert idle_share(timing, "ungraphed", 0.0) == 0.0
    assert idle_share(timing, "another", 0.0) is None

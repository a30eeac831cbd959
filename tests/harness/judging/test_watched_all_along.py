"""A timing counts only if the machine was watched all along: what nobody saw may have favoured an arm."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from evidence_builders import blocks, sample, timed_run
from judge_cases_throughput import timed

from harness.evidence.run_records import Block, Telemetry
from harness.judging.sheet import Sheet, concluded
from harness.judging.verdict import Verdict
from harness.kinds.speed.disturbances import require_quiet_machine
from harness.kinds.speed.model import Limits

BEGAN, SAMPLER_BEGAN = 100.0, 90.0  # on one clock: the first block starts ten seconds after the sampler


def back_to_back() -> list[Block]:
    """Eight blocks of one second."""
    made = blocks([0.5] * 4, [0.5] * 4, steps=2)
    return [block.model_copy(update={"began": BEGAN + index}) for index, block in enumerate(made)]


def sampled_at(seconds: Sequence[float], timed_blocks: list[Block], began: float | None = SAMPLER_BEGAN) -> Verdict:
    telemetry = Telemetry(samples=[sample(seconds=second) for second in seconds], began=began)
    return timed(claim={"at_least": 0.9}, timing={"blocks": timed_blocks}, telemetry=telemetry)


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param([12, 14, 16], id="two seconds apart"),
        pytest.param([16, 14, 12], id="in any order"),
        pytest.param([1, 10, 12, 14, 16, 18, 30], id="before and after"),
        pytest.param([math.nan, 12, 14, 16], id="one at no time"),
    ],
)
def test_samples_of_telemetry_may_be_two_seconds_apart(seconds: list[float]) -> None:
    assert sampled_at(seconds, back_to_back()).reason == "held"


@pytest.mark.parametrize(
    ("seconds", "unseen"),
    [
        pytest.param([12.5, 14, 16], 2.5, id="begun late"),
        pytest.param([12, 14, 15.5], 2.5, id="ended early"),
        pytest.param([11, 13, 15.5, 17], 2.5, id="a gap"),
        pytest.param([10], 8, id="one sample"),
        pytest.param([9.75, 18.25], 8, id="beside the timing"),
        pytest.param([math.nan], 8, id="at no time"),
    ],
)
def test_a_timing_without_clock_samples_is_undecided_as_telemetry_missing(seconds: list[float], unseen: float) -> None:
    verdict = sampled_at(seconds, back_to_back())
    assert verdict.reason == "telemetry_missing"
    assert verdict.message == (
        f"the GPU's SM clock was not sampled for {unseen} s of the timed part of run timed7, but at most 2 s may pass "
        "between two samples"
    )


def test_a_machine_without_a_gpu_needs_no_clock_samples() -> None:
    samples = [sample(seconds=12.0 + 2 * second, sm_clock_mhz=None) for second in range(3)]
    timing = {"blocks": back_to_back(), "observed_device_seconds": {}}
    run = timed_run(0, timing=timing, telemetry=Telemetry(samples=samples, began=SAMPLER_BEGAN))
    assert run.timing is not None
    assert require_quiet_machine(Limits(), [(run, run.timing)], Sheet()) == 0.0


def test_a_timing_without_machine_samples_is_not_proven_quiet() -> None:
    once = Telemetry(samples=[sample(seconds=12.0, sm_clock_mhz=None)], began=SAMPLER_BEGAN)
    run = timed_run(0, timing={"blocks": back_to_back(), "observed_device_seconds": {}}, telemetry=once)
    assert run.timing is not None
    timing = run.timing
    verdict = concluded(lambda sheet: sheet.held(str(require_quiet_machine(Limits(), [(run, timing)], sheet))), None)
    assert verdict.reason == "telemetry_missing"
    assert verdict.message.startswith("the machine was not sampled for 6 s of the timed part of run timed0")


@pytest.mark.parametrize(("blind", "reason"), [([2], "held"), ([2, 3], "telemetry_missing")])
def test_a_timing_whose_gpu_clock_was_unreadable_for_too_long_counts_as_not_observed(
    blind: list[int], reason: str
) -> None:
    samples = [sample(seconds=10.0 + second) for second in range(9)]
    for index in blind:
        samples[index] = sample(seconds=10.0 + index, sm_clock_mhz=None)
    telemetry = Telemetry(samples=samples, began=SAMPLER_BEGAN)
    assert timed(claim={"at_least": 0.9}, timing={"blocks": back_to_back()}, telemetry=telemetry).reason == reason


@pytest.mark.parametrize("clock", [None, math.nan, math.inf])
@pytest.mark.parametrize("whose", ["the sampler", "one block"])
@pytest.mark.parametrize("seconds", [[4], [0, 2, 4], list(range(9))])
def test_telemetry_without_a_common_clock_is_missing(seconds: list[float], whose: str, clock: float | None) -> None:
    made = back_to_back()
    began = clock if whose == "the sampler" else SAMPLER_BEGAN
    if whose == "one block":
        made[5] = made[5].model_copy(update={"began": clock})
    assert sampled_at(seconds, made, began).reason == "telemetry_missing"


def test_clock_samples_of_zero_count_as_missing_telemetry() -> None:
    samples = [sample(seconds=10.0 + second, sm_clock_mhz=0.0) for second in range(9)]
    telemetry = Telemetry(samples=samples, began=SAMPLER_BEGAN)
    verdict = timed(claim={"at_least": 0.9}, timing={"blocks": back_to_back()}, telemetry=telemetry)
    assert verdict.reason == "telemetry_missing"


@pytest.mark.parametrize(("seconds", "reason"), [(0.25, "telemetry_missing"), (0.125, "held")])
def test_a_short_timing_needs_only_one_sample_of_telemetry(seconds: float, reason: str) -> None:
    short = blocks([seconds] * 4, [seconds] * 4, steps=2)
    assert sampled_at([7], short, None).reason == reason

"""What the other verdicts say, and what holds for every verdict."""

import math

import pytest
from evidence_builders import (
    LAYERS,
    TRAJECTORY,
    contract_of,
    graphed,
    paired,
    sample,
    syncs,
    timed_run,
    trajectory_run,
    verdict_of,
)
from judge_cases_capture import captured, replays, retraced, sampled, watched
from judge_cases_ends import NEAR_ENDS
from judge_cases_kernels import covered, kernel, odd, prewarmed, targeted
from judge_cases_ranks import AGREE_CASES
from judge_cases_throughput import FASTER, LOSSES, composite, of_something_else, processes, timed

from harness.contract.schema import AnyPart, CompositeClaim, part_names
from harness.errors import KindError
from harness.evidence.base import Obstacle
from harness.evidence.environment_records import GpuFacts
from harness.evidence.run_records import Telemetry
from harness.judging import registry
from harness.judging.context import Context
from harness.judging.reasons import REASONS
from harness.judging.registry import judge_unit
from harness.judging.sheet import Sheet, concluded
from harness.judging.verdict import Judgement, Status, Verdict
from harness.report.wording import reasons


def value(verdict: Verdict, name: str) -> object:
    return verdict.figures[name].value


def test_a_capture_verdict_states_nodes_replays_and_buffers() -> None:
    verdict = captured()
    assert verdict.message == (
        "1 capture of 13 nodes was replayed 10 times, once for each step, and 5 buffers kept their addresses"
    )
    assert verdict.denominators == {
        "nodes": 13, "captures": 1, "observed_steps": 3, "buffers": 5, "steps": 10, "layers": LAYERS,
        "steps_watched": 9, "replays_watched": 3,
    }  # fmt: skip
    assert value(verdict, "kernels_per_layer") == 6.0
    assert value(verdict, "nodes.step.memset") == 1


def test_the_mechanism_of_a_capture_verdict_is_taken_from_the_evidence() -> None:
    assert captured().mechanism == "cuda_graph"
    assert retraced().mechanism == "traced"


def test_a_failed_capture_is_reported_with_its_reason() -> None:
    assert captured(captured=False, failure="a sync at clip.py:7").message == (
        "the capture of arm graphed failed: a sync at clip.py:7"
    )


def test_a_host_sync_verdict_names_the_source_line() -> None:
    verdict = watched(replays({"profiler": 1, "sync_debug_mode": 0}))
    assert value(verdict, "candidate_syncs_per_step") == 0.5
    assert value(verdict, "control_syncs_per_step") == 6.0 * LAYERS
    assert verdict.message.endswith("at most 0 in each step are allowed; at clip.py:7 item (1)")


def test_two_sync_detectors_may_watch_different_numbers_of_steps() -> None:
    even = syncs("synchronizing", {"profiler": 24}).readings
    odd_steps = syncs("synchronizing", {"dispatch_mode": 36}, steps=3).readings
    assert watched(control=syncs("synchronizing", {}, readings=[*even, *odd_steps])).reason == "held"


def test_memory_growth_is_reported_as_a_share() -> None:
    verdict = sampled([100, 200, 200, 203])
    assert value(verdict, "allocated_growth") == pytest.approx(0.015)
    assert verdict.denominators == {"samples": 2}


def test_memory_growth_equal_to_its_bound_passes() -> None:
    assert sampled([100, 200, 202]).reason == "held"


def test_a_ptx_verdict_names_the_key_of_a_kernel_with_a_wrong_target() -> None:
    verdict = targeted(**odd(targets=["sm_100"]))
    assert value(verdict, "first_mismatched_key") == "clip"
    assert verdict.message == "the PTX of 1 of 2 kernels does not fit sm_90 (policy: loadable): clip (sm_100)"


def test_a_prewarm_verdict_names_a_missing_kernel_key() -> None:
    verdict = covered(planned=[kernel()])
    assert value(verdict, "first_missing_key") == "clip"
    assert value(verdict, "keys_missing") == 1


def test_a_prewarm_counts_planned_and_used_kernels() -> None:
    assert prewarmed().denominators == {
        "planned_kernels": 2, "used_kernels": 2, "jit_events": 2, "steps_after_fill": 2,
    }  # fmt: skip


def test_a_timing_verdict_reports_ratio_bounds_and_processes() -> None:
    verdict = timed(processes(1.2))
    assert value(verdict, "mean_ratio") == pytest.approx(1.2, rel=1e-3)
    # the lower quartile of the baseline's blocks
    assert value(verdict, "ratio.process_1") == pytest.approx(1.2 * 1.002 * 0.99975)
    names = ("lower_bound", "mean_ratio", "generous_mean_ratio", "upper_bound")
    low, mean, generous, high = (float(str(value(verdict, name))) for name in names)
    assert 1.2 / 1.03 < low < 1.2 / 1.0275 < mean < generous < 1.2 * 1.0275 < high < 1.2 * 1.03
    assert value(verdict, "candidate_step_ms") == pytest.approx(10.0)
    assert verdict.denominators == {"processes": 8, "blocks": 64, "telemetry_samples": 16, "state_tensors": 7}


RANKS = ("another moment at the end", "one row over and over", "one rank on the rows of two steps")
NO_ROUNDING = ("a buffer moved otherwise", "rounding_tensors", 0)


@pytest.mark.parametrize(("name", "figure", "found"), [*((name, "rank", 1) for name in RANKS), NO_ROUNDING])
def test_a_violation_reports_its_rank_and_no_rounding(name: str, figure: str, found: int) -> None:
    [verdict] = [case.judged() for case in AGREE_CASES + NEAR_ENDS if case.name == name]
    assert value(verdict, figure) == found


def test_timed_losses_must_meet_the_bound_of_the_trajectory_claim() -> None:
    runs = [timed_run(index, ours=graphed(LOSSES + 0.05)) for index in range(8)]
    within = TRAJECTORY | {"equality": "within"}
    assert verdict_of(FASTER, *runs, beside=[within]).reason == "held"
    for tighter in ({"max_abs_difference": 0.04}, {"max_relative_difference": 0.01}):
        assert verdict_of(FASTER, *runs, beside=[within | tighter]).reason == "exceeds_tolerance"


def test_the_spread_of_the_gpus_clock_is_relative_to_its_median() -> None:
    clocks = Telemetry(samples=[sample(sm_clock_mhz=clock) for clock in (1900.0, 2000.0, 2050.0)])
    verdict = timed(telemetry=clocks)
    assert (verdict.reason, value(verdict, "sm_clock_spread")) == ("limits_exceeded", 0.075)
    assert verdict.message == "the machine was not quiet during the timing: sm clock spread 0.075 (limit 0.05)"


def test_a_timing_verdict_names_its_missing_trajectory_claim() -> None:
    assert timed(claim={"trajectory": "OTHER"}).message == "the contract has no trajectory_match claim OTHER"


def test_evidence_of_another_contract_is_judged_with_the_claims_mechanism() -> None:
    assert of_something_else().mechanism == "cuda_graph"


def test_at_a_rank_only_the_evidence_of_this_rank_is_judged() -> None:
    ranks = [paired(run_id=f"rank {rank}") for rank in (1, 2)]
    contract = contract_of(TRAJECTORY)
    context = Context(contract, contract.claims[0], [paired(ranks=ranks)], "w", GpuFacts())
    assert [run.run_id for rank in (1, 2, 3) for run in context.at_rank(rank).runs] == ["rank 1", "rank 2"]


# --- every verdict ---------------------------------------------------------------------------------------------


def test_a_composite_fails_with_its_worst_part() -> None:
    verdict = composite(trajectory_run(graphed(trajectory_run().arms["graphed"][0].series.loss + 1e-9)))
    assert verdict.message.startswith("trajectory_match: the losses of candidate graphed")
    assert value(verdict, "capture.status") == "PASS"
    assert value(verdict, "trajectory_match.status") == "FAIL"
    assert value(verdict, "trajectory_match.first_differing_step") == 0
    assert verdict.denominators["capture.nodes"] == 13
    assert verdict.decided in verdict.demands
    assert verdict.decided is not None
    assert verdict.decided.part == "trajectory_match."


def test_a_composite_of_parts_without_a_demand_passes_without_a_decisive_figure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def judge(part: AnyPart, context: Context, sheet: Sheet) -> Judgement:
        sheet.count("steps", 1)
        return sheet.held("fine")

    monkeypatch.setattr(registry, "judge_of", lambda _: judge)
    verdict = composite(trajectory_run())
    assert (verdict.status, verdict.decided) == (Status.PASS, None)


def test_composite_parts_of_the_same_kind_are_numbered() -> None:
    part = {key: item for key, item in TRAJECTORY.items() if key != "id"}
    capture = {"kind": "capture", "candidate": "graphed"}
    claim = contract_of({"id": "C", "kind": "composite", "parts": [part, capture, part]}).claims[0]
    assert isinstance(claim, CompositeClaim)
    assert part_names(claim) == ["trajectory_match.1", "capture", "trajectory_match.2"]


def test_a_unit_that_the_plan_could_not_run_is_not_run_even_if_evidence_exists() -> None:
    contract = contract_of(TRAJECTORY)
    obstacle = Obstacle(reason="needs_cuda", message="needs CUDA: there is no device")
    verdict = judge_unit(contract, contract.claims[0], "w", [trajectory_run()], obstacle)
    assert (verdict.status, verdict.reason, verdict.message) == (
        Status.NOT_RUN, "needs_cuda", "needs CUDA: there is no device",
    )  # fmt: skip


def test_a_kind_whose_judge_cannot_be_imported_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(kind: str) -> registry.Judge:
        raise KindError("gone", where=f"the judge of {kind}")

    monkeypatch.setattr(registry, "judge_of", gone)
    verdict = captured()
    assert (verdict.status, verdict.reason) == (Status.NOT_RUN, "judge_missing")
    assert verdict.message == "no judge for `capture` is installed: the judge of capture: gone"
    assert verdict.mechanism == "cuda_graph"


@pytest.mark.parametrize("denominators", [{}, {"steps": 0}, {"steps": 5, "tensors": 0}])
def test_a_verdict_without_counted_items_never_passes(denominators: dict[str, int]) -> None:
    def judge(sheet: Sheet) -> Judgement:
        for name, number in denominators.items():
            sheet.count(name, number)
        return sheet.held("fine")

    judgement = concluded(judge, None)
    assert (judgement.status, judgement.reason) == (Status.FAIL, "vacuous_nothing_compared")


def test_a_judge_cannot_give_a_reason_code_that_is_not_listed() -> None:
    with pytest.raises(KeyError, match="invented"):
        Sheet().conclude("invented", "a sentence")


def test_figures_keep_their_types_and_are_rounded() -> None:
    sheet = Sheet()
    figures: dict[str, str | float | None] = {
        "count": 3, "share": 1 / 3, "flag": True, "text": "a", "none": None, "bad": math.inf,
    }  # fmt: skip
    for name, figure in figures.items():
        sheet.figure(name, figure)
    verdict = Verdict(contract="c", claim="d", workload="w", **dict(sheet.conclude("held", "fine")))
    values = {name: figure.value for name, figure in verdict.figures.items()}
    assert values == figures | {"share": 0.333333333333}
    assert [type(values[name]) for name in ("count", "share", "flag")] == [int, float, bool]


def test_exactly_the_reason_codes_of_the_harness_have_a_meaning_text() -> None:
    assert {code for code, text in reasons().items() if text.meaning} == set(REASONS)


def test_a_vacuous_comparison_is_violated() -> None:
    for reason in REASONS.values():
        assert reason.code.startswith("vacuous_") <= (reason.status is Status.FAIL)

"""What every verdict is made of: reason codes, counts, sheets, mechanisms, lists in sentences."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from evidence_builders import TRAJECTORY, contract_of, cuda_graph, graph, paired, trajectory_run
from judge_cases_capture import CAPTURE, TRACED
from judge_cases_kernels import PTX, inventory
from judge_cases_mechanisms import TRACED_RUN, bare, composed
from judge_cases_throughput import timed
from judge_cases_training import dead

from harness.evidence.base import Obstacle
from harness.evidence.run_evidence import RunEvidence
from harness.judging import reasons, registry
from harness.judging.launched import graphs_per_step
from harness.judging.reasons import Reason
from harness.judging.registry import judge_unit
from harness.judging.series import first_unequal
from harness.judging.sheet import Settled, Sheet, concluded, settle, some
from harness.judging.unread_ends import _holders
from harness.judging.verdict import Judgement, Status, Verdict, count

MAKERS = [
    (partial(reasons._code, status=Status.PASS), Status.PASS),
    (reasons._fails, Status.FAIL),
    (reasons._undecided, Status.INCONCLUSIVE),
    (reasons._not_run, Status.NOT_RUN),
    (reasons._error, Status.ERROR),
]


@pytest.mark.parametrize(("maker", "status"), MAKERS)
def test_a_newly_registered_reason_code_is_listed_with_its_status(
    maker: Any, status: Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reasons, "REASONS", {})
    assert maker("some_code") == "some_code"
    assert {"some_code": Reason("some_code", status)} == reasons.REASONS


STATUSES = {
    Status.PASS: "held",
    Status.INCONCLUSIVE: """baseline_idle baseline_not_repeatable candidate_not_captured candidate_stalls
        clip_unseen clock_contradicted counter_blind detectors_disagree device_memory_unseen device_work_unobserved
        driver_version_unknown end_state_unrecorded ends_uncompared ends_undecided ends_unexplained
        gradients_undecided graphs_differ host_value_unexplained host_waited launches_unobserved limits_exceeded
        measurements_overlap missing_cases no_noise noise_above_tolerance noise_hides one_detector operators_unseen
        optimization_off other_precision other_random_numbers peak_unknown peer_missing profiler_blind
        ran_as_written rank_draws_unseen rank_share_unseen replay_unproven replays_unwatched steps_unwatched
        telemetry_missing too_few_processes too_few_seeds trained_too_little undecided_difference undecided_ratio
        undecided_slowdown unknown_node_type updates_uncounted work_after_step works_outside_blocks""",
    Status.NOT_RUN: """capability_missing evidence_of_another_contract fault_not_offered judge_missing mechanism_missing
        module_missing needs_baseline needs_cuda needs_gpu needs_memory not_available not_in_contract not_planned
        one_commit_a_process one_rank_only""",
    Status.ERROR: """evidence_inconsistent evidence_missing judge_error system_not_described worker_exception
        worker_exit_code worker_garbage worker_heartbeat worker_incomplete worker_output_limit worker_signal
        worker_wall_limit""",
}


@pytest.mark.parametrize("status", STATUSES)
def test_each_reason_code_has_its_documented_status(status: Status) -> None:
    assert sorted(code for code, reason in reasons.REASONS.items() if reason.status is status) == (
        STATUSES[status].split()
    )
    assert {reason.status for reason in reasons.REASONS.values()} - set(STATUSES) == {Status.FAIL}


ORDER = ["evidence_missing", "differs", "one_detector", "needs_cuda", "held"]  # ERROR, FAIL, undecided, not run, PASS


@pytest.mark.parametrize(("worse", "better"), [(a, b) for index, a in enumerate(ORDER) for b in ORDER[index + 1 :]])
def test_the_verdict_of_two_parts_is_that_of_the_worse_part(
    worse: str, better: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judge_as(reason: str) -> registry.Judge:
        return lambda _part, _context, sheet: sheet.conclude(reason, reason)

    for first, second in ((worse, better), (better, worse)):
        judges = {"capture": judge_as(first), "ptx_target": judge_as(second)}
        monkeypatch.setattr(registry, "judge_of", judges.__getitem__)
        assert composed(bare(CAPTURE), bare(PTX), run=paired()).reason == worse


def verdicts(**numbers: int) -> list[Verdict]:
    """So many verdicts of each status."""
    return [
        Verdict(status=Status[name], reason="r", message="m", contract="c", claim="d", workload="w")
        for name, number in numbers.items()
        for _ in range(number)
    ]


def test_verdicts_are_counted_by_status() -> None:
    counts = count(verdicts(PASS=1, FAIL=2, INCONCLUSIVE=3, NOT_RUN=4, ERROR=5))
    assert counts.model_dump() == {
        "planned": 15, "held": 1, "violated": 2, "undecided": 3, "not_run": 4, "errors": 5,
    }  # fmt: skip
    assert counts.line() == "15 units · 1 held · 2 violated · 3 undecided · 4 not run · 5 errors"


def test_a_settled_judgement_prints_its_reason_and_message() -> None:
    with pytest.raises(Settled, match=r"^held: a sentence$") as caught:
        settle("held", "a sentence")
    assert (caught.value.reason, caught.value.message) == ("held", "a sentence")


@pytest.mark.parametrize(
    ("denominators", "what"),
    [({}, "values"), ({"tensors": 0, "steps": 1}, "tensors"), ({"tensors": 0, "groups": 0}, "groups, tensors")],
)
def test_a_denominator_of_zero_is_named_in_the_message(denominators: dict[str, int], what: str) -> None:
    def judge(sheet: Sheet) -> Judgement:
        for name, number in denominators.items():
            sheet.count(name, number)
        return sheet.held("fine")

    assert concluded(judge, None).message == f"nothing was compared: the evidence holds 0 {what}"


@pytest.mark.parametrize(
    ("names", "said"), [([], ""), (list("abc"), "a, b, c"), (list("abcd"), "a, b, c and 1 more"),
                        (list("abcdef"), "a, b, c and 3 more")]
)  # fmt: skip
def test_a_long_list_is_cut_and_counted(names: list[str], said: str) -> None:
    assert some(names) == said


def test_a_list_of_tensors_names_an_optimizers_moments_last() -> None:
    names = [
        "optimizer w.exp_avg",
        "optimizer group0.lr",
        "generators torch.cpu",
        "buffers mean",
        "parameters w",
        "tensors average.w (in one alone)",
    ]
    ordered = "tensors average.w (in one alone), parameters w, buffers mean, generators torch.cpu, "
    assert some(names, 6) == f"{ordered}optimizer group0.lr, optimizer w.exp_avg"
    # paths, and what is no state, keep their order: the rate that a capture froze stays first
    assert some(["optimizer.group0.lr", "schedule.last_epoch"]) == "optimizer.group0.lr, schedule.last_epoch"
    assert some(["w of step 3", "a"]) == "w of step 3, a"


@pytest.mark.parametrize(
    ("captures", "graphs", "pieces"), [(1, 1, 1), (1, 2, 2), (3, 3, 1), (3, 6, 2), (2, 3, 1), (1, 0, 1), (0, 2, 1)]
)
def test_graphs_per_step_follow_from_captures_and_graphs(captures: int, graphs: int, pieces: int) -> None:
    assert graphs_per_step(cuda_graph(captures=captures, nodes=[graph()] * graphs)) == pieces


def test_lists_of_unequal_lengths_are_not_compared() -> None:
    assert first_unequal(["a", "b"], ["a", "c"]) == 1
    with pytest.raises(ValueError, match="longer than"):
        first_unequal(["a"], ["a", "b"])


# --- the mechanism that a verdict is about ------------------------------------------------------------------


def test_a_verdict_without_evidence_has_the_mechanism_of_its_claim() -> None:
    named = contract_of(TRAJECTORY | {"mechanism": "cuda_graph"})
    obstacle = Obstacle(reason="needs_cuda", message="no device")
    assert judge_unit(named, named.claims[0], "w", [], obstacle).mechanism == "cuda_graph"
    assert judge_unit(named, named.claims[0], "w", []).mechanism == "cuda_graph"
    assert dead("signal").mechanism is None


def test_a_kernel_verdict_has_the_mechanism_of_its_claim() -> None:
    run = RunEvidence("run", "kernels", {}, kernels={"graphed": inventory()})
    for mechanism in (None, "cuda_graph"):
        contract = contract_of({"id": "C", "mechanism": mechanism} | PTX)
        assert judge_unit(contract, contract.claims[0], "w", [run]).mechanism == mechanism


def test_a_composite_verdict_has_the_common_mechanism_of_its_parts() -> None:
    trajectory, kernels = bare(TRAJECTORY), bare(PTX)
    assert composed(bare(TRACED), trajectory, run=TRACED_RUN).mechanism == "traced"
    assert composed(trajectory, kernels, run=trajectory_run()).mechanism == "cuda_graph"


def test_a_composite_of_several_mechanisms_has_the_mechanism_of_its_claim() -> None:
    parts = bare(CAPTURE), bare(TRACED)
    assert composed(*parts, run=paired()).mechanism is None
    assert composed(*parts, run=paired(), mechanism="traced").mechanism == "traced"
    assert composed(bare(PTX), bare(PTX), run=paired()).mechanism is None


def test_the_mechanism_of_a_timed_candidate_that_launched_graphs_is_cuda_graphs() -> None:
    assert timed(claim={"mechanism": None}).mechanism == "cuda_graph"


def test_names_of_unread_tensors_are_listed_with_two_before_ten() -> None:
    named = ["logs.10", "logs.2", "a10", "a2", "a1²"]
    assert _holders(named) == ["a1²", "a2", "a10", "logs (2)"]

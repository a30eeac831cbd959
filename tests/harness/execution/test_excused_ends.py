"""`may_end_apart`: counts that a claim lets end apart, in evidence that arms left."""

from __future__ import annotations

from pathlib import Path

from claims_in_process import CLAIM, contract_of, executed, planned_of, verdict_on

from harness.judging.registry import judge_unit
from harness.judging.verdict import Verdict

COUNT = "optimizer group0.count"
WHY = "Nothing reads it."


def excusing(system: str, excuses: dict[str, str], folder: Path) -> Verdict:
    return verdict_on(f"stateful_systems:{system}", folder, may_end_apart=excuses)


def test_an_excused_optimizer_count_may_end_different_and_is_counted_in_the_verdict(tmp_path: Path) -> None:
    verdict = excusing("CountsInItsGroup", {COUNT: WHY}, tmp_path)
    assert (verdict.reason, verdict.figures["excused_ends"].value) == ("held", 1), verdict.message
    assert verdict.message.endswith("; optimizer group0.count ended differently, which the contract allows")


def test_a_count_that_no_step_reads_is_undecided_and_not_a_failure(tmp_path: Path) -> None:
    verdict = verdict_on("stateful_systems:CountsInItsGroup", tmp_path)
    assert verdict.reason == "host_value_unexplained", verdict.message
    assert "different values of optimizer group0.count, which no replay changes and no step reads" in verdict.message


def test_a_count_explained_by_the_contract_may_differ_at_the_end_in_every_claim(tmp_path: Path) -> None:
    contract = contract_of("stateful_systems:CountsInItsGroup", CLAIM)
    [run] = planned_of(contract).runs
    explained = contract.model_copy(update={"host_values": {"built.optimizer.group0.count": WHY}})
    verdict = judge_unit(explained, explained.claims[0], "w", [executed(run, tmp_path / run.id)])
    assert (verdict.reason, verdict.figures["excused_ends"].value) == ("held", 1), verdict.message


def test_an_excuse_for_a_state_without_a_difference_is_a_warning(tmp_path: Path) -> None:
    verdict = excusing("Stateful", {COUNT: WHY}, tmp_path)
    assert (verdict.reason, verdict.figures["idle_excuses"].value) == ("held", COUNT)
    assert verdict.message.endswith("; warning: not needed in `may_end_apart`: optimizer group0.count")


def test_an_excuse_that_names_a_tensor_does_not_excuse_a_difference_of_the_tensor(tmp_path: Path) -> None:
    differing = verdict_on("stateful_systems:DriftsInItsAverage", tmp_path / "first").figures["first_differing_tensor"]
    verdict = excusing("DriftsInItsAverage", {str(differing.value): WHY}, tmp_path / "second")
    assert (verdict.reason, verdict.figures["first_differing_tensor"]) == ("end_differs", differing)

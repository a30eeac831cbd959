"""Python numbers that a captured step reads, and that no replay changes: what is said of them, in evidence of arms."""

from __future__ import annotations

from pathlib import Path

from claims_in_process import CLAIM, contract_of, executed, planned_of, verdict_on

from harness.judging.registry import judge_unit
from harness.judging.verdict import Status


def test_a_counter_that_a_later_step_reads_is_undecided_until_explained(tmp_path: Path) -> None:
    contract = contract_of("stateful_systems:SlowsLater", CLAIM)
    [run] = planned_of(contract).runs
    evidence = [executed(run, tmp_path / run.id)]
    verdict = judge_unit(contract, contract.claims[0], "w", evidence)
    assert (verdict.status, verdict.reason) == (Status.INCONCLUSIVE, "host_value_unexplained"), verdict.message
    assert "no replay of arm captured changes the host values `built.more.done` (compared at " in verdict.message
    explained = contract.model_copy(update={"host_values": {"built.more.done": "Nobody trains for so long."}})
    assert judge_unit(explained, explained.claims[0], "w", evidence).reason == "held"


def test_a_host_value_that_changes_compared_steps_is_a_violation(tmp_path: Path) -> None:
    assert verdict_on("stateful_systems:SlowsSoon", tmp_path).reason == "differs"


def test_a_passing_verdict_names_a_host_counter_that_no_replay_updates(tmp_path: Path) -> None:
    verdict = verdict_on("stateful_systems:KeepsItsLastLoss", tmp_path)
    assert verdict.reason == "held"
    assert verdict.message.endswith("; no replay changes built.more.steps, which no step reads")

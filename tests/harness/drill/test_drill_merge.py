"""Which arms a faulted run executes, and where the evidence of the others comes from."""

from __future__ import annotations

from typing import Any

from evidence_builders import arm, paired

from harness.contract.schema import Arm, Workload
from harness.drill.plan import arms_to_execute, donor_for, merged, reduced
from harness.evidence.plan_records import PlannedArm, Run
from harness.evidence.run_evidence import Death
from harness.system.wrappers import SWAPPED_ARMS

WORKLOAD = Workload(model="m", batch_size=4, seq_len=16, steps=3)


def planned(ranks: int = 1, **fields: Any) -> PlannedArm:
    return PlannedArm(arm=Arm(ranks=ranks), system="a.b:C", **fields)


def make(arms: dict[str, PlannedArm] | None = None, **fields: Any) -> Run:
    arms = arms or {"plain": planned(replicas=2), "traced": planned(), "untrained": planned()}
    values = {"id": "r", "contract": "c", "probe": "paired", "workload_name": "w", "workload": WORKLOAD, "arms": arms}
    return Run.model_validate({**values, **fields})


CONTROL = make()


def test_only_the_faulted_arm_executes() -> None:
    run = make(fault="f", fault_arms=["traced"])
    assert arms_to_execute(run) == {"traced"}
    assert list(reduced(run).arms) == ["traced"]
    assert donor_for(run, [CONTROL]) is CONTROL


def test_a_faulted_gradient_comparison_runs_both_arms_once() -> None:
    run = make(fault="f", fault_arms=["traced"], baseline_of={"traced": "plain"}, gradient_steps=[0])
    assert {name: arm.replicas for name, arm in reduced(run).arms.items()} == {"plain": 1, "traced": 1}
    assert reduced(run).baseline_of == {"traced": "plain"}


def test_a_fault_in_a_baseline_also_executes_its_compared_candidates() -> None:
    run = make(fault="f", fault_arms=["plain"], baseline_of={"traced": "plain"}, gradient_steps=[0])
    assert {name: arm.replicas for name, arm in reduced(run).arms.items()} == {"plain": 2, "traced": 1}


def test_a_fault_in_a_chain_of_comparisons_executes_every_arm_of_the_chain() -> None:
    chain = {"untrained": "traced", "traced": "plain"}
    assert arms_to_execute(make(fault="f", fault_arms=["untrained"], baseline_of=chain)) == {
        "plain",
        "traced",
        "untrained",
    }


def test_a_faulted_arm_of_ranks_is_executed_together_with_its_one_process_baseline() -> None:
    """Arms with equally many ranks are not executed again for a comparison, because their recorded digests suffice."""
    arms = {"plain": planned(2), "traced": planned(2), "one": planned(), "untrained": planned(2)}
    compared = [["traced", "plain"], ["traced", "one"]]
    assert arms_to_execute(make(arms, compared=compared, fault="f", fault_arms=["traced"])) == {"traced", "one"}
    assert arms_to_execute(make(arms, compared=compared, fault="f", fault_arms=["plain"])) == {"plain"}


def test_swapped_arms_and_non_paired_probes_execute_all_arms() -> None:
    assert arms_to_execute(make(fault=SWAPPED_ARMS, fault_arms=["traced"])) == {"plain", "traced", "untrained"}
    assert arms_to_execute(make(fault="f", fault_arms=["traced"], probe="throughput")) == {
        "plain",
        "traced",
        "untrained",
    }


def test_the_evidence_of_a_run_of_one_arm_comes_only_from_an_equal_run_without_a_fault() -> None:
    """Each of several processes of a claim about memory has an arm of its own."""
    plain, traced = (
        make({name: planned()}, id=name, probe="peak_memory", process=number)
        for number, name in enumerate(("plain", "traced"))
    )
    assert donor_for(traced.model_copy(update={"id": "traced+f"}), [plain, traced]) is traced
    assert donor_for(traced.model_copy(update={"process": 2}), [plain, traced]) is None
    assert donor_for(traced.model_copy(update={"fault": "f", "fault_arms": ["traced"]}), [plain, traced]) is None


def test_a_drill_takes_no_evidence_from_a_fault_free_run_that_lacks_a_needed_arm_or_comparison() -> None:
    run = make(fault="f", fault_arms=["traced"])
    fewer = make({"plain": planned(), "traced": planned(), "untrained": planned()})
    other_arms = make({"plain": planned(replicas=2), "traced": planned()})
    assert donor_for(run, [fewer]) is None
    assert donor_for(run, [other_arms]) is None
    assert donor_for(run, [make(workload_name="other")]) is None
    assert donor_for(run, [make(probe="recapture")]) is None
    watched = {"plain": planned(replicas=2, observe_syncs=True), "traced": planned(), "untrained": planned()}
    assert donor_for(make(watched, fault="f", fault_arms=["traced"]), [CONTROL]) is None
    compared = make(baseline_of={"traced": "plain"})
    assert donor_for(make(fault="f", fault_arms=["plain"]), [compared]) is compared
    graded = make(fault="f", fault_arms=["untrained"], baseline_of={"traced": "plain"}, gradient_steps=[0])
    assert donor_for(graded, [CONTROL]) is None


def test_the_faulted_arm_comes_from_the_faulted_run_and_the_rest_from_the_control() -> None:
    run = make(fault="f", fault_arms=["traced"], baseline_of={"traced": "plain"})
    faulted_arm, faulted_baseline = arm("traced"), arm("plain")
    control = paired(arm("plain"), arm("plain", replica=1), arm("traced"))
    found = merged(run, paired(faulted_baseline, faulted_arm), control)
    assert found.arms["traced"][0] is faulted_arm
    assert found.arms["plain"] is control.arms["plain"]
    assert len(found.arms["plain"]) == 2


def test_merging_a_drill_keeps_for_each_rank_its_evidence_from_either_run() -> None:
    run = make(fault="f", fault_arms=["traced"])
    first, second = arm("traced"), arm("traced")
    faulted = paired(first, ranks=(paired(second),))
    control = paired(arm("plain"), arm("traced"), ranks=(paired(arm("plain"), arm("traced")),))
    found = merged(run, faulted, control)
    assert found.arms["traced"][0] is first
    (other,) = found.ranks
    assert other.arms["traced"][0] is second
    assert other.arms["plain"] is control.ranks[0].arms["plain"]


def test_if_the_faulted_or_the_control_run_died_the_merged_run_counts_as_dead() -> None:
    death = Death(cause="signal", detail="SIGKILL", phase=None, stack="")
    run = make(fault="f", fault_arms=["traced"])
    alive, dead = paired(), paired(death=death)
    assert merged(run, dead, alive).death == merged(run, alive, dead).death == death
    assert merged(run, alive, alive).death is None

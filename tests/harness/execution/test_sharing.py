"""Equal arms of several contracts are executed once, and each contract sees what a process of its own would show."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from run_builders import make_contract
from small_drill import execute_here

from harness.contract.schema import Contract
from harness.devices.environment import Machine
from harness.evidence import layout
from harness.evidence.plan_records import Run
from harness.evidence.read_run import has_ended, read_run
from harness.evidence.run_evidence import RunEvidence
from harness.execution.sharing import Hosted, hosted, write_guests, write_run
from harness.execution.supervisor import execute
from harness.judging.registry import judge_unit
from harness.planning.plan import plan
from harness.system.resolve import resolve
from harness.system.wrappers import SWAPPED_ARMS

SYSTEM = "failing_arms:FailingArms"
PLAIN: dict[str, Any] = {"plain": {}, "again": {}, "untrained": {"learning_rate": 0.0}}
OTHER: dict[str, Any] = {"ungraphed": {}, "second": {}, "control": {"learning_rate": 0.0}}
WORKLOAD: dict[str, Any] = {"model": "m", "batch_size": 4, "seq_len": 16, "steps": 3}


def trajectory(candidate: str, baseline: str, control: str | None = None, **fields: Any) -> dict[str, Any]:
    effect = {"training_effect": {"control": control, "last": 1, "at_least": 1e-9}} if control else {}
    return {
        "id": f"{candidate.upper()}-{baseline.upper()}",
        "kind": "trajectory_match",
        "candidate": candidate,
        "baseline": baseline,
        "equality": "bitwise",
        "max_abs_difference": 0.1,
        "guards": {"steps": 3, **effect},
        **fields,
    }


def gradients(candidate: str, baseline: str, steps: list[int]) -> dict[str, Any]:
    return {
        "id": f"GRADIENTS-{candidate.upper()}",
        "kind": "gradient_match",
        "candidate": candidate,
        "baseline": baseline,
        "steps": steps,
        "equality": "bitwise",
    }


def repeated(arm: str, runs: int) -> dict[str, Any]:
    return {
        "id": "REPEATED",
        "kind": "repeatability",
        "candidate": arm,
        "runs": runs,
        "equality": "bitwise",
        "max_abs_difference": 0.1,
        "guards": {"steps": 3},
    }


@dataclass(frozen=True)
class Loaded:
    contract: Contract


def contract_of(name: str, *claims: dict[str, Any], arms: dict[str, Any], **workload: Any) -> Contract:
    return make_contract(*claims, id=name, system=SYSTEM, arms=arms, workloads={"w": {**WORKLOAD, **workload}})


def run_of(contract: Contract) -> Run:
    machine = Machine(False, "no GPU", (), 8.0)
    [run] = plan([Loaded(contract)], machine=machine, describe=lambda _: resolve(SYSTEM).describe()).runs
    return run


FIRST = contract_of("first", trajectory("again", "plain", "untrained"), arms=PLAIN)
SECOND = contract_of("second", trajectory("second", "ungraphed", "control"), arms=OTHER)


def shared(*contracts: Contract) -> list[Hosted]:
    return hosted([run_of(contract) for contract in contracts])


def executed(host: Hosted, root: Path) -> dict[str, RunEvidence]:
    """The evidence of the host and its guests, executed in this process."""
    directories = {run.id: root / run.id for run in (host.run, *(guest.run for guest in host.guests))}
    write_guests(host, directories)
    execute_here(host.run, directories[host.run.id])
    return {name: read_run(directory)[1] for name, directory in directories.items()}


def reasons(contract: Contract, evidence: RunEvidence) -> dict[str, str]:
    return {claim.id: judge_unit(contract, claim, "w", [evidence]).reason for claim in contract.claims}


def test_equal_arms_are_executed_once_under_any_name() -> None:
    [host] = shared(FIRST, SECOND)
    assert host.run.executions() == [("plain", 0), ("plain", 1), ("again", 0), ("untrained", 0)]
    assert [guest.arms for guest in host.guests] == [{"ungraphed": "plain", "second": "again", "control": "untrained"}]


def test_two_equal_arms_of_one_contract_are_executed_separately() -> None:
    """Otherwise an arm would be compared with itself."""
    [host] = shared(contract_of("one", repeated("plain", 2), arms=PLAIN), SECOND)
    assert host.run.executions() == [("plain", 0), ("plain", 1), ("second", 0), ("control", 0)]


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (contract_of("other", *[trajectory("second", "ungraphed", "control")], arms=OTHER, steps=4), "steps"),
        (contract_of("other", *[trajectory("second", "ungraphed", "control")], arms=OTHER, seed=1), "seed"),
        (
            contract_of("other", *[trajectory("second", "ungraphed", "control")], arms=OTHER, options={"a": 1}),
            "options",
        ),
        (
            contract_of(
                "other",
                trajectory("second", "ungraphed", "control"),
                arms={name: {**arm, "clip": 2.0} for name, arm in OTHER.items()},
            ),
            "settings",
        ),
    ],
    ids=["steps", "seed", "options", "settings"],
)
def test_contracts_with_different_work_do_not_share_a_run(other: Contract, why: str) -> None:
    assert [len(host.guests) for host in shared(FIRST, other)] == [0, 0], why


def test_runs_with_little_in_common_are_not_shared() -> None:
    arms: dict[str, Any] = {"a": {"learning_rate": 0.1}, "b": {"learning_rate": 0.2}, "control": {"learning_rate": 0.0}}
    assert len(shared(FIRST, contract_of("other", trajectory("b", "a", "control"), arms=arms))) == 2


def test_runs_with_different_faults_are_not_shared() -> None:
    one, other = run_of(FIRST), run_of(SECOND)
    faulted = other.model_copy(update={"fault": "nan_tail", "fault_arms": ["second"]})
    assert len(hosted([one, faulted])) == 2
    swapped = [run.model_copy(update={"fault": SWAPPED_ARMS}) for run in (one, other)]
    assert len(hosted(swapped)) == 2


def test_a_faulted_arm_is_shared_only_with_an_equally_faulted_arm() -> None:
    one = run_of(FIRST).model_copy(update={"fault": "nan_tail", "fault_arms": ["again"]})
    other = run_of(SECOND).model_copy(update={"fault": "nan_tail", "fault_arms": ["second"]})
    [host] = hosted([one, other])
    assert host.guests[0].arms == {"ungraphed": "plain", "second": "again", "control": "untrained"}
    crossed = run_of(SECOND).model_copy(update={"fault": "nan_tail", "fault_arms": ["ungraphed"]})
    [host] = hosted([one, crossed])
    assert host.guests[0].arms == {"ungraphed": "again", "second": "plain", "control": "untrained"}
    assert host.run.fault_arms == ["again"]


def test_a_shared_run_needs_the_larger_declared_memory_or_declares_none() -> None:
    one = contract_of("one", trajectory("again", "plain"), arms=PLAIN, needs={"memory_gib": 2})
    more = contract_of("more", trajectory("again", "plain"), arms=PLAIN, needs={"memory_gib": 3})
    none = contract_of("none", trajectory("again", "plain"), arms=PLAIN)
    assert shared(one, more)[0].run.workload.needs.memory_gib == 3
    assert shared(one, none)[0].run.workload.needs.memory_gib is None


def test_each_contract_that_shares_a_run_gets_the_same_evidence_as_from_a_separate_run(tmp_path: Path) -> None:
    """The contracts read gradients at different steps, and have different numbers of repetitions and different arm
    names.
    """
    contracts = [
        contract_of("first", trajectory("again", "plain", "untrained"), gradients("again", "plain", [0]), arms=PLAIN),
        contract_of(
            "second", trajectory("second", "ungraphed", "control"), gradients("second", "ungraphed", [1, 2]), arms=OTHER
        ),
        contract_of("third", repeated("second", 3), arms=OTHER),
    ]
    [host] = shared(*contracts)
    together = executed(host, tmp_path / "together")
    assert len(host.run.executions()) == 5
    for contract in contracts:
        run = run_of(contract)
        [alone] = executed(Hosted(run), tmp_path / f"alone-{contract.id}").values()
        seen = together[run.id]
        assert (seen.run_id, list(seen.arms)) == (run.id, list(alone.arms))
        for name, executions in alone.arms.items() if run.id != host.run.id else ():  # the host sees what guests asked
            assert [_shown(one) for one in seen.arms[name]] == [_shown(one) for one in executions]
        assert reasons(contract, seen) == reasons(contract, alone) == dict.fromkeys(reasons(contract, alone), "held")


def _shown(execution: Any) -> dict[str, Any]:
    """All that judges read of an execution of these arms."""
    return {
        "start": execution.start,
        "end": execution.end,
        "loss": execution.series.loss.tolist(),
        "batches": list(execution.series.batch_digest),
        "gradients": execution.gradients,
        "syncs": execution.syncs,
    }


@pytest.mark.usefixtures("warm")
def test_an_arm_that_dies_fails_the_claims_that_name_it_in_every_contract(tmp_path: Path) -> None:
    broken = {"fails": "killed"}
    contracts = [
        contract_of(
            "first",
            trajectory("again", "plain", id="SOUND"),
            trajectory("bad", "plain", id="BAD"),
            arms={**PLAIN, "bad": broken},
        ),
        contract_of(
            "second",
            trajectory("second", "ungraphed", id="SOUND"),
            trajectory("worse", "ungraphed", id="WORSE"),
            arms={**OTHER, "worse": broken},
        ),
    ]
    [host] = shared(*contracts)
    directories = {run.id: tmp_path / run.id for run in (host.run, host.guests[0].run)}
    write_guests(host, directories)
    assert not has_ended(directories[host.guests[0].run.id])
    assert execute(host.run, directories[host.run.id]) is None
    assert has_ended(directories[host.guests[0].run.id])
    seen = [read_run(directory)[1] for directory in directories.values()]
    assert reasons(contracts[0], seen[0]) == {"SOUND": "held", "BAD": "worker_signal"}
    assert reasons(contracts[1], seen[1]) == {"SOUND": "held", "WORSE": "worker_signal"}
    assert seen[1].failed["worse"].arm == "worse"


def _changed(path: Path, change: dict[str, Any]) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}), encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"run": "../first"}, "names a run that this directory does not hold"),
        ({"run": "nobody"}, "names a run that this directory does not hold"),
        ({"run": "second+w+paired"}, "has no evidence of its own"),
        ({"arms": {"ungraphed": "again", "second": "again", "control": "untrained"}}, "a separate arm for each"),
        ({"arms": {"ungraphed": "plain", "second": "untrained", "control": "again"}}, "the settings of arm second"),
        (
            {"arms": {"ungraphed": "again", "second": "plain", "control": "untrained"}},
            "the repetitions of arm ungraphed",
        ),
        ({"arms": {"ungraphed": "plain", "second": "again"}}, "a separate arm for each"),
        ({"arms": {"ungraphed": "plain", "second": "again", "control": "nobody"}}, "a separate arm for each"),
        ({"more": 1}, "Extra inputs are not permitted"),
    ],
)
def test_a_changed_reference_to_a_shared_run_counts_as_damaged_evidence(
    tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    [host] = shared(FIRST, SECOND)
    executed(host, tmp_path)
    _changed(tmp_path / "second+w+paired" / layout.SHARED, change)
    seen = read_run(tmp_path / "second+w+paired")[1]
    assert (seen.arms, seen.death is not None and seen.death.cause) == ({}, "garbage")
    assert seen.death is not None
    assert told in seen.death.detail


@pytest.mark.parametrize(
    "change", [{"workload": {"steps": 4}}, {"fault": "nan_tail"}, {"data": "elsewhere"}, {"probe": "throughput"}]
)
def test_a_contract_whose_demands_changed_after_a_shared_run_gets_no_evidence_of_the_run(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    [host] = shared(FIRST, SECOND)
    executed(host, tmp_path)
    path = tmp_path / "second+w+paired" / layout.RUN
    if "workload" in change:
        change = {"workload": {**json.loads(path.read_text())["workload"], **change["workload"]}}
    _changed(path, change)
    seen = read_run(tmp_path / "second+w+paired")[1]
    assert seen.death is not None
    assert "did not execute the arms of this run" in seen.death.detail


def test_records_next_to_a_reference_to_a_shared_run_are_refused(tmp_path: Path) -> None:
    [host] = shared(FIRST, SECOND)
    executed(host, tmp_path)
    (tmp_path / "second+w+paired" / layout.RECORDS).write_text("", encoding="utf-8")
    seen = read_run(tmp_path / "second+w+paired")[1]
    assert seen.death is not None
    assert "would count twice" in seen.death.detail


def _timed(identity: str, **fields: Any) -> Run:
    run = run_of(contract_of("first", trajectory("again", "plain"), arms=PLAIN))
    own = {"id": identity, "contract": identity, "probe": "throughput", "settings": {"blocks": 4}, **fields}
    return run.model_copy(update=own)


@pytest.mark.parametrize(
    "other",
    [
        {"process": 1},
        {"settings": {"blocks": 6}},
        {"fault": "slow_candidate"},
        {"arms": {}},
        {
            "workload_name": "v",
            "workload": run_of(contract_of("o", trajectory("again", "plain"), arms=PLAIN, steps=4)).workload,
        },
    ],
    ids=["process", "settings", "fault", "arms", "workload"],
)
def test_a_timing_is_shared_only_with_an_equal_timing(other: dict[str, Any]) -> None:
    [host] = hosted([_timed("one"), _timed("two")])
    assert [(guest.run.id, guest.arms) for guest in host.guests] == [("two", {"plain": "plain", "again": "again"})]
    assert [len(host.guests) for host in hosted([_timed("one"), _timed("two", **other)])] == [0, 0]


def test_a_second_contract_reads_the_timing_of_the_run_that_it_shares(tmp_path: Path) -> None:
    [host] = hosted([_timed("one"), _timed("two")])
    write_guests(host, {"two": tmp_path / "two"})
    (tmp_path / "one").mkdir()
    write_run(host.run, tmp_path / "one")
    timing = {"record": "timing", "process": 0, "candidate": "again", "baseline": "plain", "blocks": []}
    records = [{**timing, "observed_steps": 0, "observed_graph_launches": {}}, {"record": "complete", "seconds": 1.0}]
    text = "".join(json.dumps(record) + "\n" for record in records)
    (tmp_path / "one" / layout.RECORDS).write_text(text, encoding="utf-8")
    seen = read_run(tmp_path / "two")[1]
    assert (seen.run_id, seen.timing is not None and seen.timing.candidate, seen.death) == ("two", "again", None)
    _changed(tmp_path / "two" / layout.RUN, {"process": 3})
    seen = read_run(tmp_path / "two")[1]
    assert seen.death is not None
    assert "an equal run" in seen.death.detail

"""Which executions of a long run may stand apart, and that together they are what one process would have given."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from run_builders import make_contract
from small_drill import execute_here, in_lanes

from harness.contract.schema import Contract
from harness.devices.cuda_driver import Gpu
from harness.devices.environment import Machine
from harness.evidence.plan_records import Run
from harness.evidence.read_run import read_run
from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.execution import sharing as lanes_module
from harness.execution.sharing import as_one, lane_directories, lanes
from harness.execution.supervisor import execute
from harness.execution.watched_worker import Progress
from harness.judging.registry import judge_unit
from harness.planning.plan import plan
from harness.system.resolve import resolve
from harness.system.wrappers import SWAPPED_ARMS

SYSTEM = "failing_arms:FailingArms"
STEPS = 1000
ARMS = {"plain": {}, "again": {}, "other": {}, "untrained": {"learning_rate": 0.0}}


TRAINED = {"steps": 3, "training_effect": {"control": "untrained", "last": 1, "at_least": 1e-9}}


def trajectory(candidate: str = "again", baseline: str = "plain", **fields: Any) -> dict[str, Any]:
    return {
        "id": f"{candidate.upper()}-{baseline.upper()}",
        "kind": "trajectory_match",
        "candidate": candidate,
        "baseline": baseline,
        "equality": "bitwise",
        "max_abs_difference": 0.1,
        "guards": TRAINED,
        **fields,
    }


def repeated(arm: str, **fields: Any) -> dict[str, Any]:
    return {
        "id": f"REPEATED-{arm.upper()}",
        "kind": "repeatability",
        "candidate": arm,
        "runs": 3,
        "equality": "bitwise",
        "max_abs_difference": 0.1,
        "guards": {"steps": 3},
        **fields,
    }


def gradients(candidate: str, baseline: str) -> dict[str, Any]:
    return {
        "id": f"GRADIENTS-{candidate.upper()}",
        "kind": "gradient_match",
        "candidate": candidate,
        "baseline": baseline,
        "steps": [0, 2],
        "equality": "bitwise",
    }


@dataclass(frozen=True)
class Loaded:
    contract: Contract


def planned(
    *claims: dict[str, Any], arms: dict[str, Any] = ARMS, steps: int = STEPS, device: str | None = "cuda"
) -> tuple[Contract, Run]:
    workload = {"model": "m", "batch_size": 4, "seq_len": 16, "steps": steps, "needs": {"device": device}}
    contract = make_contract(*claims, system=SYSTEM, arms=arms, workloads={"w": workload})
    machine = Machine(True, "", (Gpu("H200", "GPU-1", "sm_90", 139.8),), 8.0)
    [run] = plan([Loaded(contract)], machine=machine, describe=lambda name: resolve(name).describe()).runs
    return contract, run


def apart(run: Run) -> list[list[tuple[str, int]]]:
    return [lane.executions() for lane in lanes(run)]


def within(candidate: str = "again", baseline: str = "plain") -> dict[str, Any]:
    """How far the ends of both lie apart is measured where both are."""
    return trajectory(candidate, baseline, equality="within")


def test_the_repetition_and_the_control_run_in_separate_lanes() -> None:
    """A lane is a part of a run with its own worker process."""
    _, run = planned(within())
    assert apart(run) == [[("plain", 0), ("again", 0)], [("plain", 1)], [("untrained", 0)]]


def test_arms_compared_in_bits_run_in_separate_lanes() -> None:
    """A lane is a part of a run with its own worker process."""
    _, run = planned(trajectory())
    assert apart(run) == [[("plain", 0)], [("plain", 1)], [("again", 0)], [("untrained", 0)]]


def test_candidates_of_the_same_baseline_share_its_lane() -> None:
    """A lane is a part of a run with its own worker process."""
    _, run = planned(within(), within("other", "again"))
    assert apart(run)[0] == [("plain", 0), ("again", 0), ("other", 0)]


def test_arms_whose_end_states_are_compared_share_a_lane() -> None:
    """A lane is a part of a run with its own worker process."""
    _, run = planned(within(), repeated("plain", equality="within"))
    assert apart(run) == [[("plain", 0), ("plain", 1), ("plain", 2), ("again", 0)], [("untrained", 0)]]


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_repetitions_run_in_a_separate_process_even_if_the_run_is_short(device: str) -> None:
    _, run = planned(within(), repeated("plain"), steps=4, device=device)
    assert apart(run) == [[("plain", 0), ("again", 0), ("untrained", 0)], [("plain", 1), ("plain", 2)]]
    assert [lane.repeats for lane in lanes(run)] == [False, True]


def test_repetitions_of_several_arms_share_a_process() -> None:
    _, run = planned(repeated("plain"), repeated("other"), steps=4)
    again = [(arm, replica) for arm in ("plain", "other") for replica in (1, 2)]
    assert apart(run) == [[("plain", 0), ("other", 0)], again]


def test_gradient_comparisons_share_the_baselines_lane_and_its_repetition_has_its_own_lane() -> None:
    """A lane is a part of a run with its own worker process."""
    _, run = planned(gradients("other", "plain"), repeated("other", equality="within"))
    assert apart(run) == [[("plain", 0), ("other", 0), ("other", 1), ("other", 2)], [("plain", 1)]]


def test_arms_with_a_planned_gradient_comparison_share_a_lane() -> None:
    """A lane is a part of a run with its own worker process.

    In a drill's reduced run, only the planned comparison of gradients shows that two arms belong together.
    """
    _, run = planned(gradients("other", "plain"))
    assert apart(run.model_copy(update={"compared": []})) == [[("plain", 0), ("other", 0)], [("plain", 1)]]


def test_arms_of_unrelated_claims_run_in_separate_lanes() -> None:
    """A lane is a part of a run with its own worker process."""
    _, run = planned(*(repeated(arm, equality="within") for arm in ("plain", "other")))
    assert apart(run) == [[("plain", index) for index in range(3)], [("other", index) for index in range(3)]]


def test_a_lane_has_all_settings_of_its_run_except_the_list_of_executions() -> None:
    """A lane is a part of a run with its own worker process."""
    _, run = planned(trajectory(), gradients("again", "plain"))
    for lane in lanes(run):
        assert lane.model_copy(update={"arms": run.arms}) == run
    assert lanes(run)[1].arms == {"plain": run.arms["plain"].model_copy(update={"first_replica": 1, "replicas": 1})}


@pytest.mark.parametrize(
    "change",
    [
        {"fault": SWAPPED_ARMS, "fault_arms": ["again"]},
        {"compared": None},
        {"probe": "throughput"},
    ],
    ids=[
        "arms that change places",
        "nothing is known of comparisons",
        "another probe",
    ],
)
def test_a_run_that_cannot_be_split_has_one_lane(change: dict[str, Any]) -> None:
    """A lane is a part of a run with its own worker process."""
    _, run = planned(trajectory())
    run = run.model_copy(update=change)
    assert lanes(run) == [run]


@pytest.mark.parametrize(
    ("steps", "processors", "expected"),
    [
        (125, 4, [["plain", "again", "untrained"], ["plain"]]),
        (188, 1, [["plain", "again", "untrained"], ["plain"]]),
        (188, 4, [["plain", "untrained"], ["plain"], ["again"]]),
        (188, 2, [["plain", "again", "untrained"], ["plain"]]),
    ],
)
def test_the_number_of_lanes_without_a_gpu_depends_on_cores_and_steps(
    steps: int, processors: int, expected: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lane is a part of a run with its own worker process.

    Runs of 250 steps and more are divided, and repetitions get one of the cores.
    """
    monkeypatch.setattr(lanes_module, "usable_cores", lambda: processors)
    _, run = planned(trajectory(guards=TRAINED | {"steps": 200}), steps=steps, device="cpu")
    assert [[arm for arm, _ in lane.executions()] for lane in lanes(run)] == expected


def test_without_a_gpu_a_candidate_shares_its_baselines_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lane is a part of a run with its own worker process."""
    monkeypatch.setattr(lanes_module, "usable_cores", lambda: 4)
    _, run = planned(within(), device="cpu")
    assert apart(run) == [[("plain", 0), ("again", 0)], [("plain", 1)], [("untrained", 0)]]


def test_a_drill_run_of_one_arm_has_no_lanes(tmp_path: Path) -> None:
    """A lane is a part of a run with its own worker process."""
    _, run = planned(trajectory())
    reduced = run.model_copy(update={"arms": {"again": run.arms["again"]}, "fault": "f", "fault_arms": ["again"]})
    assert lane_directories(reduced, tmp_path / "run") == [(reduced, tmp_path / "run")]
    assert not (tmp_path / "run").exists()  # the supervisor makes it


def executed(run: Run, directory: Path) -> RunEvidence:
    """The evidence of a run, each lane in this process."""
    for lane, folder in lane_directories(run, directory):
        execute_here(lane, folder)
    whole, evidence = read_run(directory)
    assert whole == run
    return evidence


def seen(execution: ArmEvidence) -> dict[str, Any]:
    """All that judges read of one execution, whose end no judge compares within the process."""
    assert execution.end is not None
    return {
        "start": execution.start,
        "end": execution.end.model_copy(update={"differences": None}),
        "loss": execution.series.loss.tolist(),
        "batches": list(execution.series.batch_digest),
        "clipped": execution.series.clip_active_groups.tolist(),
        "tokens": execution.series.tokens.tolist(),
        "gradients": execution.gradients,
    }


CLAIMS = (trajectory(), trajectory("other", "plain", equality="within"), gradients("again", "plain"))


def test_lanes_together_give_the_evidence_and_verdicts_of_a_single_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lane is a part of a run with its own worker process."""
    contract, run = planned(*CLAIMS, steps=4, device=None)
    whole = executed(run, tmp_path / "whole")
    in_lanes(monkeypatch)
    assert len(lanes(run)) == 3
    parts = executed(run, tmp_path / "parts")
    assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == ["lane.0", "lane.1", "lane.2", "run.json"]
    assert (tmp_path / "parts/lane.1/plain.1.csv").exists()
    assert {name: len(of) for name, of in parts.arms.items()} == {"again": 1, "other": 1, "plain": 2, "untrained": 1}
    assert list(parts.arms) == list(whole.arms)
    for name, executions in whole.arms.items():
        assert [seen(each) for each in parts.arms[name]] == [seen(each) for each in executions]
    assert parts.arms["other"][0].end == whole.arms["other"][0].end  # with how far it lies from its baseline
    judged = [[judge_unit(contract, claim, "w", [each]) for claim in contract.claims] for each in (whole, parts)]
    assert judged[0] == judged[1]
    assert {verdict.reason for verdict in judged[1]} == {"held"}


@pytest.mark.usefixtures("warm", "ends_alone")
def test_a_dying_lane_fails_only_its_own_arms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lane that loses its only arm ends, and a lane that loses one of several arms continues without this arm."""
    in_lanes(monkeypatch)
    arms = {**ARMS, "other": {"fails": "killed"}, "untrained": {"learning_rate": 0.0, "fails": "killed"}}
    sound = trajectory("again", id="SOUND", guards={"steps": 3}, equality="within")
    bad = trajectory("other", id="BAD", guards={"steps": 3}, equality="within")
    contract, run = planned(trajectory(id="UNTRAINED"), sound, bad, arms=arms, steps=3, device=None)
    for (lane, folder), start in zip(
        lane_directories(run, tmp_path / "run"), (execute, execute_here, execute), strict=True
    ):
        start(lane, folder)
    _, evidence = read_run(tmp_path / "run")
    verdicts = {each.id: judge_unit(contract, each, "w", [evidence]) for each in contract.claims}
    assert {name: verdict.reason for name, verdict in verdicts.items()} == {
        "UNTRAINED": "worker_signal",
        "SOUND": "held",
        "BAD": "worker_signal",
    }
    told = "arm untrained of run c+w+paired failed in phase untrained.0: steps: SIGKILL"
    assert verdicts["UNTRAINED"].message == told
    assert (evidence.death, set(evidence.failed)) == (None, {"untrained", "other"})
    assert (tmp_path / "run/lane.2/death.json").exists()
    assert (tmp_path / "run/lane.0/attempt.0/records.jsonl").exists()


def test_a_run_ends_when_its_last_lane_ends() -> None:
    """A lane is a part of a run with its own worker process."""
    heard: list[str] = []
    first, second = as_one(lambda progress: heard.append(progress.phase), 2)
    for tell, phase in [
        (first, "a.0: steps"),
        (second, "b.0: steps"),
        (second, ""),
        (second, "c.0: steps"),  # it began again without the arm in which it died
        (first, ""),
        (second, ""),
    ]:
        tell(Progress("r", phase, 1.0))
    assert heard == ["a.0: steps", "b.0: steps", "c.0: steps", ""]

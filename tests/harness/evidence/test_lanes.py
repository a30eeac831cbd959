"""Lanes on disk: what is missing, counted twice or changed is seen; the rest of the run stays evidence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_drill import execute_here, in_lanes

from harness.contract.schema import Arm, Workload
from harness.evidence.plan_records import PlannedArm, Run
from harness.evidence.read_run import has_ended, read_run, read_so_far, read_times
from harness.evidence.run_evidence import Death, RunEvidence
from harness.execution.sharing import lane_directories

SYSTEM = "step_function_systems:Regression"
RUN = Run(
    id="r",
    contract="c",
    probe="paired",
    workload_name="w",
    workload=Workload(model="m", batch_size=2, seq_len=4, steps=3),
    arms={
        "plain": PlannedArm(arm=Arm(), system=SYSTEM, replicas=2),
        "again": PlannedArm(arm=Arm(), system=SYSTEM),
        "untrained": PlannedArm(arm=Arm(learning_rate=0.0), system=SYSTEM),
    },
    compared=[["again", "plain"]],
)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("lanes") / "r"
    with pytest.MonkeyPatch.context() as patch:
        in_lanes(patch)
        for lane, folder in lane_directories(RUN, directory):
            execute_here(lane, folder)
    return directory


@pytest.fixture
def run(recorded: Path, tmp_path: Path) -> Path:
    """A run in three lanes: plain.0 with again.0, plain.1, untrained.0."""
    return Path(shutil.copytree(recorded, tmp_path / "r"))


def read(directory: Path) -> RunEvidence:
    return read_run(directory)[1]


def counted(evidence: RunEvidence) -> dict[str, int]:
    return {arm: len(executions) for arm, executions in evidence.arms.items()}


def failures(evidence: RunEvidence) -> dict[str, tuple[str, str]]:
    return {arm: (failure.cause, failure.detail) for arm, failure in evidence.failed.items()}


def edit(path: Path, change: Callable[[Any], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def cut_off(lane: Path) -> None:
    """As a worker that was killed leaves it."""
    lines = (lane / "records.jsonl").read_text().splitlines(keepends=True)
    (lane / "records.jsonl").write_text("".join(lines[:-1]))


def test_complete_lanes_give_the_executions_of_the_whole_run(run: Path) -> None:
    """A lane is a part of a run with its own worker process."""
    evidence = read(run)
    assert (counted(evidence), evidence.failed, evidence.death) == ({"again": 1, "plain": 2, "untrained": 1}, {}, None)
    assert [each.start.replica for each in evidence.arms["plain"]] == [0, 1]
    assert has_ended(run)


def test_the_worker_processes_of_all_lanes_are_counted(run: Path) -> None:
    """A lane is a part of a run with its own worker process."""
    (run / "lane.0/attempt.0").mkdir()
    shutil.copy(run / "lane.0/run.json", run / "lane.0/attempt.0")
    assert [list(worker.run.arms) for worker in read_times(run)] == [
        ["plain", "again"],
        ["plain", "again"],
        ["plain"],
        ["untrained"],
    ]
    assert [worker.complete is None for worker in read_times(run)] == [True, False, False, False]


def test_a_missing_lane_fails_its_arms(run: Path) -> None:
    """A lane is a part of a run with its own worker process."""
    shutil.rmtree(run / "lane.2")
    evidence = read(run)
    assert failures(evidence) == {"untrained": ("incomplete", "no lane has replica 0")}
    assert counted(evidence) == {"again": 1, "plain": 2}
    assert not has_ended(run)


def test_a_missing_repetition_lane_fails_its_arm(run: Path) -> None:
    """A lane is a part of a run with its own worker process, here for the repetitions of an arm."""
    shutil.rmtree(run / "lane.1")
    assert failures(read(run)) == {"plain": ("incomplete", "no lane has replica 1")}


def test_a_repetition_does_not_replace_the_missing_first_execution(run: Path) -> None:
    shutil.rmtree(run / "lane.0")
    evidence = read(run)
    assert failures(evidence) == dict.fromkeys(("plain", "again"), ("incomplete", "no lane has replica 0"))
    assert counted(evidence) == {"untrained": 1}


def test_a_lane_without_a_readable_run_fails_the_arm_that_no_other_lane_has(run: Path) -> None:
    """A lane is a part of a run with its own worker process."""
    (run / "lane.2/run.json").write_text("{")
    [(arm, (cause, detail))] = failures(read(run)).items()
    assert (arm, cause) == ("untrained", "garbage")
    assert detail.startswith("no lane has replica 0; lane.2/run.json: ")


def test_a_lane_that_was_cut_off_fails_its_arms(run: Path) -> None:
    """A lane is a part of a run with its own worker process."""
    cut_off(run / "lane.0")
    evidence = read(run)
    assert failures(evidence) == dict.fromkeys(("plain", "again"), ("incomplete", "the `complete` record is missing"))
    assert evidence.failed["plain"].phase == "again.0: end"
    assert evidence.death is None
    assert not has_ended(run)


def test_a_lane_whose_death_is_recorded_counts_as_ended(run: Path) -> None:
    """A lane is a part of a run with its own worker process."""
    cut_off(run / "lane.2")
    death = Death(cause="signal", detail="SIGKILL", phase="untrained.0: steps", stack="")
    (run / "lane.2/death.json").write_text(death.model_dump_json())
    assert failures(read(run)) == {"untrained": ("signal", "SIGKILL")}
    assert has_ended(run)


def test_a_damaged_series_fails_only_its_lane(run: Path) -> None:
    """A lane is a part of a run with its own worker process."""
    (run / "lane.1/plain.1.csv").write_text("nonsense\n")
    evidence = read(run)
    assert {arm: cause for arm, (cause, _) in failures(evidence).items()} == {"plain": "garbage"}
    assert counted(evidence) == {"again": 1, "plain": 1, "untrained": 1}


def twice(run: Path) -> None:
    shutil.copytree(run / "lane.2", run / "lane.3")


def beside(run: Path) -> None:
    shutil.copy(run / "lane.2/records.jsonl", run)


def more_replicas(run: Path) -> None:
    edit(run / "lane.1/run.json", lambda lane: lane["arms"]["plain"].update(replicas=2))


def another_arm(run: Path) -> None:
    edit(run / "lane.2/run.json", lambda lane: lane.update(arms={"other": lane["arms"]["untrained"]}))


def another_seed(run: Path) -> None:
    edit(run / "lane.2/run.json", lambda lane: lane["workload"].update(seed=1))


def another_setting(run: Path) -> None:
    edit(run / "lane.2/run.json", lambda lane: lane["arms"]["untrained"]["arm"].update(learning_rate=0.1))


def planted(run: Path) -> None:
    edit(run / "lane.2/run.json", lambda lane: lane.update(fault="f", fault_arms=["untrained"]))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (twice, "the evidence of two processes holds the same replica 0 of arm untrained"),
        (beside, "there is a records.jsonl next to the lanes, so arms would count twice"),
        (more_replicas, "the evidence of a process holds replica 2 of arm plain, which was not planned"),
        (another_arm, "lane.2/run.json describes a run that is not a part of this run"),
        (another_seed, "lane.2/run.json describes a run that is not a part of this run"),
        (another_setting, "lane.2/run.json describes a run that is not a part of this run"),
        (planted, "lane.2/run.json describes a run that is not a part of this run"),
    ],
)
def test_lanes_that_are_not_planned_for_the_run_count_as_damaged_evidence(
    run: Path, change: Callable[[Path], None], told: str
) -> None:
    change(run)
    evidence = read(run)
    assert evidence.death is not None
    assert (evidence.death.cause, evidence.death.detail, evidence.arms) == ("garbage", told, {})


def test_a_lane_with_more_executions_than_planned_counts_as_failed(run: Path) -> None:
    """According to its records, the worker of one lane also executed what was planned for another lane."""
    records = (run / "lane.0/records.jsonl").read_text()
    repeated = (run / "lane.1/records.jsonl").read_text().splitlines(keepends=True)
    [complete] = records.splitlines(keepends=True)[-1:]
    (run / "lane.0/records.jsonl").write_text(records.removesuffix(complete) + "".join(repeated))
    evidence = read(run)
    assert evidence.death is not None
    assert evidence.death.detail == "lane.0 holds more executions of arm plain than were planned"


def cut_in(worker: Path, phase: str) -> None:
    """As a worker leaves its records that has just come to this phase."""
    lines = (worker / "records.jsonl").read_text().splitlines(keepends=True)
    last = next(number for number, line in enumerate(lines) if json.loads(line).get("name") == phase)
    (worker / "records.jsonl").write_text("".join(lines[: last + 1]))


def test_executions_that_have_ended_are_evidence_while_their_lane_is_running(run: Path) -> None:
    """A lane is a part of a run with its own worker process."""
    assert counted(read_so_far(run)[1]) == counted(read(run))
    lanes = {lane: (lane / "records.jsonl").read_text() for lane in sorted(run.glob("lane.*"))}
    [together] = [lane for lane, records in lanes.items() if "again.0: open" in records]
    [last] = [lane for lane, records in lanes.items() if "untrained.0: open" in records]
    cut_in(together, "again.0: steps")
    shutil.rmtree(last)  # it has not begun
    evidence = read_so_far(run)[1]
    assert (counted(evidence), evidence.failed, evidence.death) == ({"plain": 2}, {}, None)


def test_in_a_running_process_an_execution_has_ended_when_the_next_one_begins(tmp_path: Path) -> None:
    directory = tmp_path / "r"
    execute_here(RUN, directory)
    records = (directory / "records.jsonl").read_text()
    ended = {
        "plain.0: end": {},
        "plain.1: open": {"plain": 1},
        "plain.1: end": {"plain": 1},
        "again.0: start": {"plain": 2},
        "untrained.0: end": {"again": 1, "plain": 2},
    }
    for phase, counts in ended.items():
        (directory / "records.jsonl").write_text(records)
        cut_in(directory, phase)
        evidence = read_so_far(directory)[1]
        assert (counted(evidence), evidence.failed, evidence.death) == (counts, {}, None)

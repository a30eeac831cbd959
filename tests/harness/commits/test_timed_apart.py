"""A timing of two commits: a process an arm, blocks in ABBA order, one run's evidence; and an arm that fails there."""

from __future__ import annotations

from pathlib import Path

import pytest
from two_commits import OTHER_UPDATE, UserRepository

from harness.commits.checkout import checked_out
from harness.contract.schema import Arm, Needs, Workload
from harness.evidence.plan_records import PlannedArm, Run
from harness.evidence.read_run import read_run
from harness.evidence.run_evidence import Death, RunEvidence
from harness.evidence.run_records import Block, TimingEvidence
from harness.execution.probes.timed_arm import joined_timing
from harness.execution.supervisor import Company, execute

pytestmark = pytest.mark.usefixtures("warm")
SYSTEM = "trainer:Trainer"


def make_run(commit: str, process: int = 0) -> Run:
    return Run(
        id="timed",
        contract="as-main",
        probe="throughput",
        workload_name="small",
        workload=Workload(model="any", batch_size=1, seq_len=4, steps=8, needs=Needs(device="cpu")),
        arms={
            "main": PlannedArm(arm=Arm(), system=SYSTEM, commit=commit),
            "here": PlannedArm(arm=Arm(), system=SYSTEM),
        },
        process=process,
        settings={"candidate": "here", "baseline": "main", "blocks": 4, "block_steps": 2},
    )


def executed(directory: Path, process: int = 0) -> tuple[RunEvidence, Death | None]:
    with checked_out("main", [SYSTEM], Path("harness-reports")) as checkout:
        run = make_run(checkout.commit, process)
        death = execute(run, directory, company=Company(checkout=checkout))
    return read_run(directory)[1], death


@pytest.mark.slow
def test_each_arm_is_timed_in_a_process_at_its_own_commit(repository: UserRepository, tmp_path: Path) -> None:
    """Two processes time the same steps in turn.

    The working tree has another learning rate, which shows in its losses.
    """
    repository.write("update.py", OTHER_UPDATE)
    evidence, death = executed(tmp_path / "run", process=1)
    assert death is None
    timing = evidence.timing
    assert timing is not None
    assert timing.own_processes
    order = [(block.arm, block.first_step) for block in timing.blocks[:8]]
    assert order == [
        ("here", 10), ("main", 10), ("main", 12), ("here", 12),
        ("here", 14), ("main", 14), ("main", 16), ("here", 16),
    ]  # fmt: skip
    assert timing.observed_graph_launches == {"here": 0, "main": 0}
    here, main = evidence.arms["here"][0], evidence.arms["main"][0]
    assert here.start.trainable_digest == main.start.trainable_digest
    assert list(here.series.batch_digest) == list(main.series.batch_digest)
    assert (here.series.loss != main.series.loss).any()
    opened = [
        line.split('"name":"')[1].split('"')[0]
        for line in (tmp_path / "run" / "records.jsonl").read_text().splitlines()
        if ": open" in line
    ]
    assert opened == ["here: open", "main: open"]  # the other way round in processes of even numbers


@pytest.mark.slow
def test_an_arm_that_fails_at_its_commit_is_named_with_its_stack(repository: UserRepository, tmp_path: Path) -> None:
    repository.write("update.py", "raise ValueError('not at this commit')\n")
    head = repository.commit("Broken")[:12]
    _, death = executed(tmp_path / "run")
    assert death is not None
    assert death.cause == "exception"
    assert f"arm main at {head}: " in death.detail
    assert "not at this commit" in death.detail
    assert "update.py" in death.stack


def block(arm: str) -> Block:
    return Block(arm=arm, round=0, position=0, steps=1, seconds=1.0, first_step=0)


def seen(arm: str, **changes: object) -> TimingEvidence:
    values = {
        "process": 3,
        "candidate": "here",
        "baseline": "main",
        "blocks": [],
        "observed_steps": 5,
        "observed_graph_launches": {arm: 5},
        "observed_device_seconds": {arm: 0.5},
        "profiler_sees_planted": True,
        "counter_sees_planted": True,
    }
    return TimingEvidence.model_validate(values | changes)


def test_joined_timings_lack_what_one_of_their_processes_did_not_observe() -> None:
    run = make_run("c0ffee", process=3)
    joined = joined_timing(run, [block("here")], [seen("main"), seen("here")])
    assert (joined.process, joined.own_processes, len(joined.blocks)) == (3, True, 1)
    assert joined.observed_graph_launches == {"main": 5, "here": 5}
    assert joined.observed_device_seconds == {"main": 0.5, "here": 0.5}
    assert (joined.observed_steps, joined.profiler_sees_planted, joined.counter_sees_planted) == (5, True, True)
    blind = {"profiler_sees_planted": False, "counter_sees_planted": False, "counter_failure": "status 39"}
    joined = joined_timing(run, [], [seen("main"), seen("here", observed_steps=0, **blind)])
    assert (joined.observed_steps, joined.profiler_sees_planted, joined.counter_sees_planted) == (0, False, False)
    assert joined.counter_failure == "status 39"

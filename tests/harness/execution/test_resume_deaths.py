"""Either process of a resumed training may come to a bad end: it is named, and nothing of the checkpoint is left."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from between_steps import RESUME
from planning import NO_GPU
from process_table import await_end
from run_builders import make_contract
from waiting import eventually

from harness.contract.schema import Contract
from harness.evidence.plan_records import Run
from harness.evidence.read_run import read_run
from harness.execution.job import remove_checkpoint, size_of
from harness.execution.supervisor import execute
from harness.execution.watched_worker import Progress, Stopped
from harness.judging.registry import judge_unit
from harness.judging.verdict import Verdict
from harness.planning.plan import plan
from harness.system.resolve import resolve

pytestmark = pytest.mark.usefixtures("warm")

SYSTEM = "checkpoint_systems:Dying"


@pytest.fixture(autouse=True)
def nothing_else_ends_with_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A supervisor waits a second behind a worker that a signal ended: test_supervisor.py has what comes then."""
    monkeypatch.setattr("harness.execution.supervisor.ENDED_TOGETHER_S", 0.05)


class Loaded:
    def __init__(self, contract: Contract) -> None:
        self.contract = contract


def planned(**settings: Any) -> tuple[Contract, Run]:
    workload = {"model": "m", "batch_size": 4, "seq_len": 16, "steps": 12}
    contract = make_contract(RESUME, system=SYSTEM, arms={"plain": settings}, workloads={"w": workload})
    [run] = plan([Loaded(contract)], machine=NO_GPU, describe=lambda name: resolve(name).describe()).runs
    return contract, run


def judged(directory: Path, **settings: Any) -> Verdict:
    contract, run = planned(**settings)
    execute(run, directory)
    return judge_unit(contract, contract.claims[0], "w", [read_run(directory)[1]])


# how: reason, what the message names
ENDS = {
    "save killed": ("worker_signal", "plain.0: save earlier: the process that was to save ended by SIGKILL"),
    "save raises": ("worker_exception", "plain.0: save earlier: "),
    "save leaves": ("worker_exit_code", "plain.0: save earlier: the process that was to save ended with exit status 0"),
    "save garbles": (
        "worker_exception",
        (
            "plain.0: save earlier: the process that was to save wrote something that is not a message on the "
            "harness's own line"
        ),
    ),
    "save unavailable": ("not_available", "this arm needs a part that is not here"),
    "load killed": ("worker_signal", "died in phase plain.1: load: SIGKILL"),
    "load raises": ("worker_exception", "died in phase plain.1: load: "),
}


@pytest.mark.parametrize("how", ENDS)
def test_a_resume_that_dies_is_reported_and_leaves_no_checkpoint(tmp_path: Path, how: str) -> None:
    verdict = judged(tmp_path / "run", dies=how)
    reason, message = ENDS[how]
    assert verdict.reason == reason, verdict.message
    assert message in verdict.message
    assert not (tmp_path / "run" / "checkpoint").exists()


def test_a_finished_resume_leaves_only_evidence_files(tmp_path: Path) -> None:
    assert judged(tmp_path / "run").reason == "held"
    left = {path.name for path in (tmp_path / "run").iterdir()}
    assert left == {"run.json", "records.jsonl", "process.json", "plain.0.csv", "plain.1.csv", "plain.2.csv"}


def test_a_stopped_command_leaves_neither_a_process_nor_a_checkpoint(tmp_path: Path) -> None:
    _, run = planned(dies="save hangs", note=str(tmp_path / "note"))
    stop = threading.Event()

    def stop_when_it_hangs(progress: Progress) -> None:
        if progress.phase == "plain.0: save earlier":
            eventually(lambda: (tmp_path / "note").exists() and (tmp_path / "note").read_text(), "it hangs")
            stop.set()

    with pytest.raises(Stopped):
        execute(run, tmp_path / "run", stop_when_it_hangs, stop=stop)
    await_end(int((tmp_path / "note").read_text()))
    assert not (tmp_path / "run" / "checkpoint").exists()


def test_the_size_of_a_checkpoint_excludes_files_behind_its_links(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"12345")
    (tmp_path / "saved" / "shards").mkdir(parents=True)
    (tmp_path / "saved" / "shards" / "one").write_bytes(b"123")
    (tmp_path / "saved" / "link").symlink_to(tmp_path / "elsewhere")
    assert size_of(tmp_path / "saved") == (1, 3)
    assert size_of(tmp_path / "elsewhere") == (1, 5)
    assert size_of(tmp_path / "nothing") == (0, 0)


def test_removing_a_checkpoint_that_is_a_link_keeps_the_link_target(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint").symlink_to(tmp_path / "kept")
    remove_checkpoint(tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoint").is_symlink()
    assert (tmp_path / "kept").is_dir()

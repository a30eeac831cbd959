"""Workers that tests fork in place of starting them: the same processes, exit codes and evidence."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from planning import NO_GPU
from run_builders import make_contract
from warm_start import Forked

from harness.contract.schema import Contract
from harness.evidence.plan_records import Run
from harness.runners import interpreters
from harness.runners.interpreters import Interpreter
from harness.runners.plan import plan
from harness.runners.supervisor import execute
from harness.system.resolve import resolve

pytestmark = pytest.mark.usefixtures("warm")
WORKLOAD = {"model": "m", "batch_size": 4, "seq_len": 4, "steps": 5, "needs": {"device": "cpu"}}


@dataclass(frozen=True)
class Loaded:
    contract: Contract


def planned() -> Run:
    claim = {"id": "A", "kind": "ranks_agree", "candidate": "two", "steps": 5}
    arms = {"two": {"ranks": 2}}
    contract = make_contract(claim, system="ranked_systems:Ranked", arms=arms, workloads={"w": WORKLOAD})
    [run] = plan([Loaded(contract)], machine=NO_GPU, describe=lambda name: resolve(name).describe()).runs
    return run


def series_below(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*.csv")}


@pytest.fixture
def waiting() -> Interpreter:
    """A worker that waits for a run."""
    return interpreters.start()


def parent_group_and_session(process: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1:4]]


def test_a_worker_leads_its_session_below_its_own_keeper(waiting: Interpreter) -> None:
    process = waiting.process
    keeper = process._keeper
    assert isinstance(keeper, Forked)
    assert parent_group_and_session(process.pid) == [keeper.pid, process.pid, process.pid]
    assert parent_group_and_session(keeper.pid)[1:] == [keeper.pid, keeper.pid]
    waiting.discard()


def test_its_exit_code_and_its_signal_are_told(waiting: Interpreter) -> None:
    waiting.line.close()  # nobody has a run for it
    assert waiting.process.wait() == 0
    waiting.discard()
    killed = interpreters.start()
    killed.discard()
    assert killed.process.returncode == -9


def test_no_handler_of_its_keeper_takes_its_signals(waiting: Interpreter) -> None:
    waiting.process.terminate()
    assert waiting.process.wait(10) == -15
    waiting.discard()


def test_it_leaves_the_evidence_that_a_started_one_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = planned()
    assert execute(run, tmp_path / "forked") is None
    monkeypatch.setattr("harness.processes.kept.subprocess", subprocess)
    monkeypatch.delenv("WARM_SERVER")
    assert execute(run, tmp_path / "started") is None
    forked, started = (series_below(tmp_path / how) for how in ("forked", "started"))
    assert forked == started
    assert set(forked) == {"two.0.csv", "rank.1/two.0.csv"}

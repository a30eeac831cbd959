"""The supervisor's word on a process, with real processes: one that ends well, one that dies, one begun again."""

from __future__ import annotations

import itertools
import select
import time
from pathlib import Path

import pytest
from run_builders import stand_in_run

from harness.evidence.read_run import WorkerTimes, read_times
from harness.execution.supervisor import Company, execute, start
from harness.run_directory.costs import spans

pytestmark = pytest.mark.usefixtures("stand_in")


def executed(behaviour: str, tmp_path: Path) -> WorkerTimes:
    execute(stand_in_run(behaviour), tmp_path / "run")
    [worker] = read_times(tmp_path / "run")
    return worker


@pytest.mark.parametrize("behaviour", ["one_arm", "killed"])
def test_a_process_starts_before_and_ends_after_its_phases(tmp_path: Path, behaviour: str) -> None:
    before = time.monotonic()
    worker = executed(behaviour, tmp_path)
    after = time.monotonic()
    assert worker.process is not None
    phases = [phase.began or 0.0 for phase in worker.phases]
    moments = [before, worker.process.started, *phases, worker.process.ended, after]
    assert moments == sorted(moments)
    assert (worker.process.gpu, worker.process.gpu_alone, worker.process.asked_for_gpu) == (None, None, None)


def test_a_worker_process_records_the_commit_of_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.devices.environment.checked_out_commit", lambda: "1" * 40)
    worker = executed("one_arm", tmp_path)
    assert worker.process is not None
    assert worker.process.commit == "1" * 40


def test_the_spans_of_a_process_cover_its_whole_time(tmp_path: Path) -> None:
    worker = executed("one_arm", tmp_path)
    assert worker.process is not None
    seen = spans(worker)
    assert (seen[0].began, seen[-1].ended) == (worker.process.started, worker.process.ended)
    assert all(first.ended == second.began for first, second in itertools.pairwise(seen))


def test_a_run_with_a_gpu_uuid_records_exclusive_gpu_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.execution.turns.private_folder", lambda: tmp_path)
    execute(stand_in_run("one_arm"), tmp_path / "run", gpu_uuid="GPU-of-a-test")
    process = read_times(tmp_path / "run")[0].process
    assert process is not None
    assert (process.gpu, process.gpu_alone) == ("GPU-of-a-test", True)
    assert process.asked_for_gpu is not None
    assert process.asked_for_gpu < process.started


def test_a_prestarted_interpreter_records_when_its_wait_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter, company = start(ahead=True), Company()
    assert select.select([interpreter.line], [], [], 60)[0]  # it has imported, and says so
    monkeypatch.setattr(company, "interpreter", lambda **_: interpreter)
    execute(stand_in_run("one_arm"), tmp_path / "run", company=company)
    process = read_times(tmp_path / "run")[0].process
    assert process is not None
    assert process.ready is not None
    assert process.given_run is not None
    assert process.started < process.ready < process.given_run

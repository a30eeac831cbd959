"""A worker's answers, and what becomes of one that fails, dies or hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from process_table import await_end, state
from waiting import eventually

from benchmarks import peer_worker
from benchmarks.arms.job import Job, OpenedArm
from benchmarks.peer_checkpoint import write_checkpoint
from benchmarks.peers import Running
from benchmarks.worker_process import WorkerFailedError, WorkerProcess
from reference_impl.config import MODEL_PRESETS

pytestmark = pytest.mark.usefixtures("warm")
LIMIT_S = 120.0


class Workers:
    """A worker that tests ask one after the other; a test that ends it says so, and the next one gets another."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._count = folder, 0
        self._asked: WorkerProcess | None = None
        self.all: list[WorkerProcess] = []

    def started(self) -> WorkerProcess:
        """A new one."""
        self._count += 1
        self.all.append(WorkerProcess("test", self._folder / f"worker-{self._count}"))
        return self.all[-1]

    def running(self) -> WorkerProcess:
        """One that answers; what a test before has opened in it is replaced by what this one opens."""
        if self._asked is None:
            self._asked = self.started()
        return self._asked

    def ended(self, worker: WorkerProcess) -> None:
        """It answers no more: it has failed, or is about to be killed."""
        if worker is self._asked:
            self._asked = None


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory, warm: None) -> Iterator[Workers]:
    found = Workers(tmp_path_factory.mktemp("workers"))
    yield found
    for worker in found.all:
        worker.close()


@pytest.fixture
def worker(workers: Workers) -> WorkerProcess:
    return workers.running()


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    directory = tmp_path_factory.mktemp("peers") / "checkpoint"
    tokenized = write_checkpoint(MODEL_PRESETS["tiny"], directory, torch.device("cpu"))
    return Job("ungraphed", "tiny", 2, 8, "cpu", str(directory), str(tokenized))


@pytest.mark.slow
def test_a_worker_arm_reproduces_the_reference_loss_of_the_first_step(worker: WorkerProcess, job: Job) -> None:
    reference = worker.ask({"do": "reference", "jobs": [job.as_dict()]}, LIMIT_S)["losses"][0]
    ready = worker.ask({"do": "open", "job": job.as_dict()}, LIMIT_S)
    assert ready["loss_step_0"] == pytest.approx(reference["nf4"]["all"], abs=1e-5)
    # What the comparison must be able to tell apart: weights that were not quantized, and another batch.
    assert abs(ready["loss_step_0"] - reference["unquantized"]["all"]) > 1e-4
    assert abs(ready["loss_step_0"] - reference["other_batch"]["all"]) > 1e-4


def test_steps_are_timed_one_by_one_and_as_a_block(worker: WorkerProcess, job: Job) -> None:
    worker.ask({"do": "open", "job": replace(job, arm="gemm_floor").as_dict()}, LIMIT_S)
    times = worker.ask({"do": "measure"}, LIMIT_S)
    assert len(times["milliseconds"]) == times["block_steps"] == 10
    assert min(*times["milliseconds"], times["block_ms"]) > 0
    # One first step, five to warm up, two before the measurement, ten single ones and a block of ten.
    assert worker.ask({"do": "finish"}, LIMIT_S)["steps"] == 28


@pytest.mark.parametrize(("seconds", "steps", "again"), [(0.001, 10, 2), (0.08, 7, 2), (0.12, 5, 1), (2.0, 5, 1)])
def test_a_round_of_a_slow_arm_has_fewer_steps(
    monkeypatch: pytest.MonkeyPatch, job: Job, seconds: float, steps: int, again: int
) -> None:
    """A round lasts at most 1.2 s but has at least five single steps and a block of five.

    If a step takes long, one warm-up step is enough.
    """
    now = 0.0

    def step(index: int) -> torch.Tensor:
        nonlocal now
        now += seconds
        return torch.zeros(())

    monkeypatch.setattr("time.perf_counter", lambda: now)
    monkeypatch.setattr(peer_worker, "open_arm", lambda _job: OpenedArm(step, {}))
    arm = peer_worker.ArmProcess(job)
    before = arm.finish()["steps"]
    times = arm.measure()
    assert (len(times["milliseconds"]), times["block_steps"]) == (steps, steps)
    assert arm.finish()["steps"] - before == again + 2 * steps
    # What the first round has, all have: an arm that slows down is not timed less.
    seconds *= 10
    assert arm.measure()["block_steps"] == steps


@pytest.mark.slow
def test_the_fp8_arm_multiplies_in_fp8(worker: WorkerProcess, job: Job) -> None:
    ready = worker.ask({"do": "open", "job": replace(job, arm="graphed_fp8").as_dict()}, LIMIT_S)
    assert ready["facts"]["products"] == "float8_e4m3fn"


@pytest.mark.slow
def test_an_arm_that_fell_back_from_fp8_fails(monkeypatch: pytest.MonkeyPatch, job: Job) -> None:
    counted = {"dtype": "bfloat16", "fp8_products": 31, "frozen_products": 34}
    monkeypatch.setattr("reference_impl.fp8_record.precision_facts", lambda _trainer: counted)
    with pytest.raises(RuntimeError, match="31 of 34 products run in FP8"):
        peer_worker.ArmProcess(replace(job, arm="graphed_fp8"))


def test_a_failing_arm_is_recorded_with_its_reason(worker: WorkerProcess, workers: Workers, job: Job) -> None:
    workers.ended(worker)
    running = Running(replace(job, checkpoint="/nowhere"), worker)
    assert running.ask({"do": "open", "job": running.job.as_dict()}, LIMIT_S) == {}
    assert running.failure is not None
    assert "/nowhere" in running.failure
    assert running.ask({"do": "measure"}, LIMIT_S) == {}


def test_the_error_of_a_killed_worker_names_the_signal(worker: WorkerProcess, workers: Workers) -> None:
    workers.ended(worker)
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(WorkerFailedError, match="SIGKILL"):
        worker.ask({"do": "finish"}, LIMIT_S)


def test_a_worker_that_sends_no_message_is_abandoned(worker: WorkerProcess) -> None:
    with pytest.raises(WorkerFailedError, match="did not answer within 0 s"):
        worker.receive(0.05)


def test_measuring_an_arm_before_opening_it_is_refused(workers: Workers) -> None:
    worker = workers.started()
    with pytest.raises(WorkerFailedError, match="'measure' is unknown, or was sent before 'open'"):
        worker.ask({"do": "measure"}, LIMIT_S)


STARTS_A_WORKER = """
import sys
from pathlib import Path
from benchmarks.worker_process import WorkerProcess
worker = WorkerProcess("test", Path(sys.argv[1]))
worker.ask({"do": "environment"}, 120.0)
with WorkerProcess("other", Path(sys.argv[2])) as other, other.alone([worker]):
    print(worker.pid, flush=True)
    sys.stdin.read()
"""


def test_a_stopped_worker_ends_when_its_benchmark_is_killed(tmp_path: Path) -> None:
    """Otherwise the worker would keep its GPU memory, and the next call on this machine would have none."""
    command = [sys.executable, "-c", STARTS_A_WORKER, str(tmp_path / "worker"), str(tmp_path / "other")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as benchmark:
        assert benchmark.stdout is not None
        worker = int(benchmark.stdout.readline())
        eventually(lambda: state(worker) == "T", "it is stopped", benchmark)
        benchmark.kill()
    try:
        await_end(worker)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(worker, signal.SIGKILL)


def test_the_other_workers_are_stopped_while_one_worker_is_timed(
    worker: WorkerProcess, workers: Workers, job: Job
) -> None:
    other = workers.started()
    other.ask({"do": "open", "job": replace(job, arm="gemm_floor").as_dict()}, LIMIT_S)
    with worker.alone([worker, other]):
        other.send({"do": "finish"})
        with pytest.raises(WorkerFailedError, match="did not answer within 1 s"):
            other.receive(1.0)
    assert other.receive(LIMIT_S)["steps"] == 6

"""Threads and child processes belong to the arm that began them, and their work outside of its blocks is seen."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from harness.contract.schema import Arm, Workload
from harness.evidence.plan_records import PlannedArm, Run
from harness.evidence.run_records import Block, TimingEvidence
from harness.execution.probes import throughput
from harness.execution.probes.throughput import Helpers
from harness.execution.recorder import Recorder
from harness.kinds.speed.disturbances import HELPERS_SHARE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone has a clock of each thread")
WORK_S = 0.05  # of processor time
BURN = f"import time\nwhile time.process_time() < {WORK_S}: pass\nprint('done', flush=True)\ninput()"


class Worker:
    """A thread that works for `WORK_S` seconds of processor time whenever it is asked."""

    def __init__(self) -> None:
        self._asked, self._answered = threading.Semaphore(0), threading.Semaphore(0)
        threading.Thread(target=self._serve, daemon=True).start()

    def work(self) -> None:
        self._asked.release()
        self._answered.acquire()

    def _serve(self) -> None:
        while True:
            self._asked.acquire()
            until = time.thread_time() + WORK_S
            while time.thread_time() < until:
                pass
            self._answered.release()


@pytest.fixture
def helpers() -> Helpers:
    return Helpers()


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    """A process below one below this one, which has worked for `WORK_S` seconds once it prints."""
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BURN!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as one:
        yield one
        one.communicate("\n")


def test_processor_time_of_an_arms_thread_between_its_blocks_is_reported(helpers: Helpers) -> None:
    worker = Worker()
    helpers.note("a")
    assert helpers.begin("a") == 0
    helpers.end("a")
    worker.work()
    assert helpers.begin("b") == 0
    helpers.end("b")
    assert helpers.begin("a") == pytest.approx(WORK_S, rel=0.5)
    assert helpers.begin("b") == 0


def test_processor_time_of_an_arms_thread_within_its_block_is_part_of_the_timing(helpers: Helpers) -> None:
    worker = Worker()
    helpers.note("a")
    helpers.begin("a")
    worker.work()
    helpers.end("a")
    untimed = helpers.begin("a")
    assert untimed is not None
    assert untimed < HELPERS_SHARE * WORK_S


def test_a_thread_started_within_an_arms_block_belongs_to_that_arm(helpers: Helpers) -> None:
    helpers.begin("a")
    worker = Worker()
    helpers.end("a")
    worker.work()
    assert helpers.begin("a") == pytest.approx(WORK_S, rel=0.5)


def test_work_of_a_thread_that_was_started_before_every_arm_counts_for_no_arm() -> None:
    worker = Worker()
    helpers = Helpers()
    for arm in ("a", "b"):
        helpers.note(arm)
        helpers.end(arm)
    worker.work()
    assert [helpers.begin(arm) for arm in ("a", "b")] == [0, 0]


def test_native_pool_threads_count_for_the_arm_that_calls_them(helpers: Helpers) -> None:
    """OpenMP starts its threads while arm a runs, and the threads then also work for arm b."""
    threads, matrix = torch.get_num_threads(), torch.randn(512, 512)
    torch.set_num_threads(2)
    try:
        matrix @ matrix
        helpers.end("a")
        for _ in range(10):
            matrix @ matrix
        assert helpers.begin("a") == 0
    finally:
        torch.set_num_threads(threads)


def test_a_native_thread_that_calls_python_counts_as_a_pool_thread() -> None:
    """Python creates a dummy `Thread` object for such a thread, such as a thread of autograd that calls a hook."""
    import _thread

    noted, over = threading.Event(), threading.Event()

    def serve() -> None:
        threading.current_thread()
        noted.set()
        over.wait()

    before = set(throughput._clocks())
    _thread.start_new_thread(serve, ())
    noted.wait()
    listed = set(throughput._clocks())
    over.set()
    assert listed <= before


def test_a_process_below_a_child_works_for_the_arm_that_began_the_child(
    helpers: Helpers, child: subprocess.Popen[str]
) -> None:
    assert child.stdout is not None
    helpers.end("a")  # sees the child at least; what that one begins is its own
    child.stdout.readline()
    helpers.note("b")
    helpers.end("b")
    worked = helpers.begin("a")
    assert worked is not None
    assert worked >= 0.5 * WORK_S
    assert helpers.begin("b") == 0


def test_helper_time_is_none_on_systems_without_clocks(monkeypatch: pytest.MonkeyPatch, helpers: Helpers) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    helpers.note("a")
    assert helpers.begin("a") is None
    helpers.end("a")


def timed(system: str, directory: Path) -> list[Block]:
    named = f"helped_systems:{system}"
    run = Run(
        id="t1",
        contract="c",
        probe="throughput",
        workload_name="small",
        workload=Workload(model="any", batch_size=2, seq_len=4, steps=20),
        arms={
            "plain": PlannedArm(arm=Arm(), system=named),
            "ahead": PlannedArm(arm=Arm.model_validate({"optimized": True}), system=named),
        },
        settings={"candidate": "ahead", "baseline": "plain", "blocks": 4, "block_steps": 5},
    )
    directory.mkdir()
    with Recorder(directory) as recorder:
        throughput.execute(run, recorder)
    lines = (directory / "records.jsonl").read_text().splitlines()
    (record,) = [line for line in lines if '"record":"timing"' in line]
    return TimingEvidence.model_validate_json(record).blocks


def untimed_share(blocks: list[Block], arm: str) -> float:
    of_arm = [block for block in blocks if block.arm == arm]
    return sum(block.untimed_helper_seconds or 0.0 for block in of_arm) / sum(block.seconds for block in of_arm)


def test_batches_prepared_ahead_by_an_arm_count_as_untimed_work(tmp_path: Path) -> None:
    blocks = timed("PreparesAhead", tmp_path / "run")
    assert untimed_share(blocks, "ahead") > HELPERS_SHARE
    assert untimed_share(blocks, "plain") == 0


def test_threads_that_work_only_within_their_arms_steps_are_timed(tmp_path: Path) -> None:
    blocks = timed("WaitsForItsPool", tmp_path / "run")
    assert {block.untimed_helper_seconds is None for block in blocks} == {False}
    assert max(untimed_share(blocks, arm) for arm in ("ahead", "plain")) < HELPERS_SHARE

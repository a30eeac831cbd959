"""Workers that share a machine: real processes, one of which is alone for a while."""

from __future__ import annotations

import io
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from run_builders import stand_in_run
from waiting import LIMIT_S

from harness.evidence.files import read_model
from harness.evidence.read_run import ProcessTimes
from harness.evidence.run_records import ArmFailed
from harness.execution import watched_worker
from harness.execution.sharing import without_the_arm
from harness.execution.supervisor import Company, execute
from harness.execution.watched_worker import WatchedWorker
from harness.processes.child import Child, pair

pytestmark = pytest.mark.usefixtures("stand_in")


def test_a_run_stopped_during_a_measurement_records_the_stopped_seconds(tmp_path: Path) -> None:
    moments_of, until_there = str(tmp_path / "moments"), str(tmp_path / "until")
    company = Company()
    # the limits count no second in which it was stopped
    ticking = stand_in_run("ticks", moments=moments_of, until=until_there)
    measuring = stand_in_run("measures_alone", moments=moments_of, until=until_there)
    beside = threading.Thread(target=execute, args=(ticking, tmp_path / "ticks"), kwargs={"company": company})
    beside.start()
    death = execute(measuring, tmp_path / "alone", company=company)
    beside.join(LIMIT_S)
    assert death is None
    at_first, at_last = (int(count) for count in (tmp_path / "until").read_text().split())
    assert 0 < at_first == at_last
    [(since, until)] = read_model(tmp_path / "ticks" / "process.json", ProcessTimes).stopped
    assert since < until


class Process:
    """A worker's process that lives on."""

    pid = -1

    def __init__(self) -> None:
        self.stdout = io.BytesIO()

    def poll(self) -> None:
        """It has not ended."""

    def send_signal(self, _number: int) -> None:
        """It takes any signal."""

    def kill(self) -> None:
        """It ends."""

    def wait(self) -> int:
        """It has ended."""
        return 0


@pytest.mark.parametrize(("wall_limit_s", "heartbeat_s", "overrun"), [(9, 99, "wall_limit"), (99, 9, "heartbeat")])
def test_time_while_a_worker_is_stopped_does_not_count_for_its_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wall_limit_s: float, heartbeat_s: float, overrun: str
) -> None:
    now = [0.0]
    monkeypatch.setattr(watched_worker, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(watched_worker, "is_compiling", lambda *_of_no_process: False)
    ours, theirs = pair()
    child = Child(cast("Any", Process()), ours, started=0.0)
    run = stand_in_run("ticks", wall_limit_s=wall_limit_s, heartbeat_s=heartbeat_s)
    worker = WatchedWorker(run, tmp_path, child, lambda _progress: None)
    with theirs:
        worker.begin({}, None)
        now[0] = 5.0
        worker.stop()
        now[0] = 100.0
        assert worker._overrun() is None
        worker.resume()
        now[0] = 103.0
        assert worker._overrun() is None
        now[0] = 110.0
        assert worker._overrun() == overrun
    worker.end()
    assert worker.stopped == [(5.0, 100.0)]


def test_a_worker_that_dies_while_it_has_the_machine_alone_releases_the_machine(tmp_path: Path) -> None:
    company = Company()
    death = execute(stand_in_run("dies_alone"), tmp_path / "dead", company=company)
    assert death is not None
    assert (death.cause, death.detail) == ("signal", "SIGKILL")
    assert execute(stand_in_run("one_arm"), tmp_path / "next", company=company) is None


def test_an_arm_that_dies_while_waiting_to_have_the_machine_alone_is_named(tmp_path: Path) -> None:
    """Work that was enqueued before fails while the worker waits for an idle device.

    The other arms are then executed again without this arm.
    """
    death = execute(stand_in_run("dies_as_it_waits"), tmp_path / "dead", company=Company())
    assert death is not None
    assert (death.phase, death.cause) == ("plain.0: wait to be alone", "signal")
    failed: dict[str, ArmFailed] = {}
    without_the_arm(stand_in_run("dies_as_it_waits"), tmp_path / "dead", death, failed)
    assert [(arm, failure.cause) for arm, failure in failed.items()] == [("plain", "signal")]

"""A signal that arrives while a thread is being started: its pool does not know the thread, and joins only others."""

from __future__ import annotations

import sys
import threading
import traceback
from pathlib import Path

import pytest
from run_builders import stand_in_run
from waiting import LIMIT_S, eventually

from harness.devices.environment import Machine
from harness.execution import schedule, supervisor
from harness.execution.schedule import Schedule, Work, tasks_of
from harness.execution.supervisor import Interpreters

MACHINE = Machine(False, "this machine has no CUDA device", (), 64.0)


class Supervisor:
    """In place of a worker's: notes that it began, and that it ended, which it does once it is waited for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.noted: list[str] = []
        self.began = threading.Event()
        self._schedules = threading.get_ident()
        monkeypatch.setattr(supervisor, "execute", self._execute)

    def _execute(self, *_: object, stop: threading.Event, **__: object) -> None:
        self.noted.append("began")
        self.began.set()
        assert stop.wait(LIMIT_S)
        eventually(self._is_waited_for, "the schedule waits for what is at work")
        self.noted.append("ended")

    def _is_waited_for(self) -> bool:
        frames = traceback.walk_stack(sys._current_frames()[self._schedules])
        return any(frame.f_code is threading.Condition.wait_for.__code__ for frame, _ in frames)


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    return Supervisor(monkeypatch)


def cut_off(monkeypatch: pytest.MonkeyPatch, until: threading.Event) -> None:
    """A schedule whose first thread is started; then, `until` that is set, a signal ends the starting."""
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        monkeypatch.setattr(threading.Thread, "start", start)
        assert until.wait(LIMIT_S)
        raise SystemExit(143)

    plan = Schedule(MACHINE, Interpreters(0))
    tasks = tasks_of([Work(stand_in_run("one_arm"), Path(), lambda _: None, lambda _: None)], MACHINE)
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(SystemExit):
        plan.execute(tasks)


def test_an_interrupted_start_of_a_thread_waits_for_the_task_that_the_thread_has_begun(
    worker: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_off(monkeypatch, until=worker.began)
    assert worker.noted == ["began", "ended"]


def test_a_thread_that_begins_after_an_interruption_runs_no_task(
    worker: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrived, over = threading.Event(), threading.Event()
    one = schedule.Schedule._one

    def late(plan: Schedule, task: schedule.Task) -> None:
        arrived.set()
        over.wait(LIMIT_S)
        one(plan, task)
        worker.noted.append("left")

    monkeypatch.setattr(schedule.Schedule, "_one", late)
    cut_off(monkeypatch, until=arrived)
    over.set()
    eventually(lambda: worker.noted, "the thread is over")
    assert worker.noted == ["left"]

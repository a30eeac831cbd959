"""The process that measures what a step's memory is: asked at the right time, alone, and clear about its end."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import kernel_systems
import pytest
from lost_streams import STREAMS

from harness.contract.schema import Arm, Workload
from harness.evidence.plan_records import PlannedArm, Run
from harness.execution import job
from harness.execution.job import ProcessFailed
from harness.execution.probes import step_memory
from harness.execution.probes.step_memory import MemoryAnswer, MemoryProbe, StepMemory
from harness.processes import child
from harness.processes.child import GO, Ending

MEMORY = StepMemory(large_bytes=1, small_bytes=2, outside_bytes=3, segments=[4])
RUN = Run(
    id="p1",
    contract="c",
    probe="prewarm",
    workload_name="w",
    workload=Workload(model="any", batch_size=2, seq_len=8, steps=12),
    arms={name: PlannedArm(arm=Arm(), system="kernel_systems:Healthy") for name in ("nf4", "full")},
    settings={"memory_filled": True},
    fault="odd_key",
    fault_arms=["nf4"],
)
OPEN, MEASURED = MemoryAnswer().model_dump_json(), MemoryAnswer(memory=MEMORY).model_dump_json()
PROLOGUE = (
    "import os, pathlib, sys, time; from harness.processes.child import take_standard_input; "
    "line = take_standard_input(); run = line.receive(None); "
)
SOUND = f"print('noise'); line.send({OPEN!r}); line.receive(None); print('noise'); line.send({MEASURED!r})"


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The program that is started in place of `step_memory`: its last entry."""
    program = [SOUND]
    monkeypatch.setattr(child, "child_command", lambda _module: [sys.executable, "-c", PROLOGUE + program[-1]])
    return program


def measured() -> StepMemory:
    with MemoryProbe(RUN, "nf4") as probe:
        probe.wait_until_ready()
        return probe.measure()


def test_the_memory_probe_process_returns_the_measured_memory(process: list[str]) -> None:
    assert (len(process), measured()) == (1, MEMORY)


def test_the_memory_probe_process_is_asked_for_one_arm_without_its_fault(process: list[str], tmp_path: Path) -> None:
    process.append(f"pathlib.Path({str(tmp_path / 'asked')!r}).write_text(run); {SOUND}")
    measured()
    asked = Run.model_validate_json((tmp_path / "asked").read_text())
    assert (asked.fault, asked.fault_arms, list(asked.arms)) == (None, [], ["nf4"])


def test_the_memory_process_has_ended_before_the_worker_continues(process: list[str]) -> None:
    """Otherwise the memory of the process would not have been released yet."""
    process.append(f"{SOUND}; line.receive(None)")
    with MemoryProbe(RUN, "nf4") as probe:
        probe.wait_until_ready()
        probe.measure()
        assert probe._child.poll() == Ending(0)


def test_the_memory_probe_process_is_killed_when_its_worker_cannot_open_the_arm(process: list[str]) -> None:
    process.append("time.sleep(600)")
    with pytest.raises(ValueError, match="an arm"), MemoryProbe(RUN, "nf4") as probe:
        raise ValueError("an arm")
    assert probe._child.poll() == Ending(-9)


WRONG = {
    "ends while it opens": ("os._exit(1)", "ended with exit status 1 before its work was done"),
    "is killed while it measures": (f"line.send({OPEN!r}); os.kill(os.getpid(), 9)", "ended by SIGKILL"),
    "ends early without an error": ("print('not ready')", "ended with exit status 0 before its work was done"),
    "says what is no answer": (f"line.send({OPEN!r}); line.send('nonsense')", "wrote something that is not a message"),
    "measures nothing": (f"line.send({OPEN!r}); line.send({OPEN!r})", "returned no measurement"),
    "hangs while it opens": ("time.sleep(600)", "its process did not answer within 0.5 s"),
    "hangs while it measures": (f"line.send({OPEN!r}); time.sleep(600)", "its process did not answer within 0.5 s"),
}


@pytest.mark.parametrize("how", WRONG)
def test_a_memory_probe_process_that_answers_nothing_is_reported_with_its_end(
    process: list[str], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    program, told = WRONG[how]
    process.append(program)
    with pytest.raises(ProcessFailed, match=told), MemoryProbe(RUN, "nf4") as probe:
        if how == "hangs while it opens":
            monkeypatch.setattr(step_memory, "LIMIT_S", 0.5)
        probe.wait_until_ready()
        if how == "hangs while it measures":
            monkeypatch.setattr(step_memory, "LIMIT_S", 0.5)
        probe.measure()


@pytest.mark.slow
def test_a_system_that_cannot_be_imported_is_named() -> None:
    arms = {"nf4": PlannedArm(arm=Arm(), system="no_such_module_at_all:System")}
    with (
        pytest.raises(ProcessFailed, match=r"measuring a step's memory: (?s:.*)no_such_module_at_all"),
        MemoryProbe(RUN.model_copy(update={"arms": arms}), "nf4") as probe,
    ):
        probe.wait_until_ready()


class Asking:
    """The process's line: notes what the process had done and sent each time that it reads on."""

    def __init__(self, *said: str) -> None:
        self._said = [*said]
        self.training = kernel_systems.Run()
        self.sent: list[MemoryAnswer] = []
        self.at_reading: list[tuple[int, int]] = []

    def receive(self, _timeout: float | None) -> str:
        self.at_reading.append((len(self.training.steps), len(self.sent)))
        return self._said.pop(0) if self._said else ""

    def send(self, text: str) -> None:
        self.sent.append(MemoryAnswer.model_validate_json(text))


class Left(BaseException):
    """In the place of the process's end."""


@pytest.fixture
def asking(monkeypatch: pytest.MonkeyPatch) -> Asking:
    alone = RUN.model_copy(update={"arms": {"nf4": RUN.arms["nf4"]}, "fault": None, "fault_arms": []})
    asking = Asking(alone.model_dump_json(), GO)

    @contextmanager
    def opened(_run: Run, _arm: str) -> Iterator[kernel_systems.Run]:
        yield asking.training

    def stepped(_run: Run, _arm: str, run: kernel_systems.Run) -> StepMemory:
        run.step(0)
        return MEMORY

    def end(_status: int) -> NoReturn:
        raise Left

    monkeypatch.setattr(step_memory, "opened", opened)
    monkeypatch.setattr(step_memory, "measured", stepped)
    monkeypatch.setattr(step_memory, "take_standard_input", lambda: asking)
    for module in (job, step_memory):
        monkeypatch.setattr(module, "end_process", end)
    return asking


def test_the_memory_process_takes_its_first_step_only_after_the_request(asking: Asking) -> None:
    with pytest.raises(Left):
        step_memory.main()
    assert asking.at_reading == [(0, 0), (0, 1)]
    assert asking.sent == [MemoryAnswer(), MemoryAnswer(memory=MEMORY)]


def test_without_a_connected_worker_no_memory_is_measured(asking: Asking) -> None:
    del asking._said[1:]
    with pytest.raises(Left):
        step_memory.main()
    assert asking.training.steps == []


def test_the_memory_process_answers_with_the_exception_that_the_system_raised(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking.training, "step", lambda _index: 1 / 0)
    with pytest.raises(Left):
        step_memory.main()
    assert "ZeroDivisionError" in str(asking.sent[-1].failed)


@pytest.mark.parametrize("stream", STREAMS)
def test_the_memory_process_answers_though_the_system_replaced_its_streams(
    asking: Asking, monkeypatch: pytest.MonkeyPatch, stream: str
) -> None:
    monkeypatch.setattr(sys, "stdout", sys.stdout)  # and back
    monkeypatch.setattr(asking.training, "step", lambda _index: vars(sys).update(stdout=STREAMS[stream]()))
    with pytest.raises(Left):
        step_memory.main()
    assert asking.sent[-1].memory == MEMORY

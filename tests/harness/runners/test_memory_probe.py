"""The process that measures what a step's memory is: asked at the right time, alone, and clear about its end."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import kernel_systems
import pytest
from lost_streams import STREAMS

from harness.contract.schema import Arm, Workload
from harness.evidence.plan_records import PlannedArm, Run
from harness.runners import memory_probe, step_memory
from harness.runners.memory_probe import MemoryProbe
from harness.runners.step_memory import READY, StepMemory

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
PROLOGUE = "import json, os, pathlib, sys, time; run = sys.stdin.readline(); "
SOUND = (
    f"print('noise\\n{READY}', flush=True); line = sys.stdin.readline(); "
    f"print('x' * 200_000, file=sys.stderr); print('noise'); print(json.dumps({MEMORY.model_dump()}))"
)


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The program that is started in place of `step_memory`: its last entry."""
    program = [SOUND]
    monkeypatch.setattr(memory_probe, "child_command", lambda _module: [sys.executable, "-c", PROLOGUE + program[-1]])
    return program


def measured() -> StepMemory:
    with MemoryProbe(RUN, "nf4") as probe:
        probe.wait_until_ready()
        return probe.measure()


def test_what_it_measured(process: list[str]) -> None:
    assert (len(process), measured()) == (1, MEMORY)


def test_it_is_asked_about_one_arm_without_a_fault(process: list[str], tmp_path: Path) -> None:
    process.append(f"pathlib.Path({str(tmp_path / 'asked')!r}).write_text(run); {SOUND}")
    measured()
    asked = Run.model_validate_json((tmp_path / "asked").read_text())
    assert (asked.fault, asked.fault_arms, list(asked.arms)) == (None, [], ["nf4"])


def test_it_is_over_before_the_worker_goes_on(process: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Only then has it given its memory back."""
    process.append(f"{SOUND}; sys.stdout.flush(); os.close(1); sys.stdin.read()")
    with MemoryProbe(RUN, "nf4") as probe:
        wait = probe._process.wait

        def let_it_end() -> int:
            probe._input.close()
            return wait()

        monkeypatch.setattr(probe._process, "wait", let_it_end)
        probe.wait_until_ready()
        probe.measure()
        assert probe._process.poll() == 0


def test_it_ends_with_a_worker_that_cannot_open_its_arm(process: list[str]) -> None:
    process.append("time.sleep(600)")
    with pytest.raises(ValueError, match="an arm"), MemoryProbe(RUN, "nf4") as probe:
        raise ValueError("an arm")
    assert probe._process.poll() == -9


WRONG = {
    "dies while it opens": ("sys.exit('no weights')", r"ended with 1: no weights"),
    "dies while it measures": (f"print('{READY}', flush=True); sys.exit('no memory')", r"ended with 1: no memory"),
    "ends early without an error": ("print('not ready')", r"ended with 0: not ready"),
    "prints no measurement": (
        f"print('{READY}', flush=True); sys.stdin.readline(); print('nonsense')",
        r"gave no result: 'nonsense'",
    ),
    "prints nothing": (f"print('{READY}', flush=True); sys.stdin.readline()", rf"gave no result: '{READY}'"),
    "hangs while it opens": ("time.sleep(600)", r"took more than 0.5 s: measuring a step's memory ended with -9: "),
    "hangs while it measures": (
        f"print('here', file=sys.stderr, flush=True); print('{READY}', flush=True); time.sleep(600)",
        r"took more than 0.5 s: measuring a step's memory ended with -9: here",
    ),
}


@pytest.mark.parametrize("how", WRONG)
def test_the_end_of_one_that_gives_nothing(process: list[str], monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    program, told = WRONG[how]
    process.append(program)
    with pytest.raises(RuntimeError, match=told), MemoryProbe(RUN, "nf4") as probe:
        if how == "hangs while it opens":
            monkeypatch.setattr(memory_probe, "LIMIT_S", 0.5)
        probe.wait_until_ready()
        if how == "hangs while it measures":
            monkeypatch.setattr(memory_probe, "LIMIT_S", 0.5)
        probe.measure()


@pytest.mark.slow
def test_a_system_that_cannot_be_imported_is_named() -> None:
    arms = {"nf4": PlannedArm(arm=Arm(), system="no_such_module_at_all:System")}
    with (
        pytest.raises(RuntimeError, match=r"ended with 1: (?s:.*)no_such_module_at_all"),
        MemoryProbe(RUN.model_copy(update={"arms": arms}), "nf4") as probe,
    ):
        probe.wait_until_ready()


class Asking(io.StringIO):
    """The worker's side of stdin: notes what the process had done when it read on."""

    def __init__(self, lines: str, training: kernel_systems.Run, capfd: pytest.CaptureFixture[str]) -> None:
        super().__init__(lines)
        self.training, self._capfd = training, capfd
        self.at_reading: list[tuple[int, list[str]]] = []

    def printed(self) -> list[str]:
        return self._capfd.readouterr().out.split()

    def readline(self, *_: object) -> str:  # type: ignore[override]
        self.at_reading.append((len(self.training.steps), self.printed()))
        return super().readline()


@pytest.fixture
def asking(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Asking:
    alone = RUN.model_copy(update={"arms": {"nf4": RUN.arms["nf4"]}, "fault": None, "fault_arms": []})
    training = kernel_systems.Run()

    @contextmanager
    def opened(_run: Run, _arm: str) -> Iterator[kernel_systems.Run]:
        yield training

    def stepped(_run: Run, _arm: str, run: kernel_systems.Run) -> StepMemory:
        run.step(0)
        return MEMORY

    asking = Asking(alone.model_dump_json() + "\n", training, capfd)
    monkeypatch.setattr(step_memory, "opened", opened)
    monkeypatch.setattr(step_memory, "measured", stepped)
    monkeypatch.setattr(sys, "stdin", asking)
    return asking


def test_no_step_is_made_before_it_is_told_to(asking: Asking) -> None:
    asking.write(asking.getvalue() + "measure\n")
    asking.seek(0)
    step_memory.main()
    assert asking.at_reading == [(0, []), (0, READY.split())]
    assert StepMemory.model_validate_json(asking.printed()[-1]) == MEMORY


def test_without_a_worker_nothing_is_measured(asking: Asking) -> None:
    with pytest.raises(SystemExit, match="the worker ended"):
        step_memory.main()
    assert asking.training.steps == []


@pytest.mark.parametrize("stream", STREAMS)
def test_a_system_may_do_away_with_its_streams(asking: Asking, monkeypatch: pytest.MonkeyPatch, stream: str) -> None:
    monkeypatch.setattr(sys, "stdout", sys.stdout)  # and back
    monkeypatch.setattr(asking.training, "step", lambda _index: vars(sys).update(stdout=STREAMS[stream]()))
    asking.write(asking.getvalue() + "measure\n")
    asking.seek(0)
    step_memory.main()
    assert StepMemory.model_validate_json(asking.printed()[-1]) == MEMORY

"""A child answers or comes to an end: nothing that it does raises in its parent, or hangs it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import LIMIT_S

from harness.execution.job import STACKS, LeftStacks
from harness.processes import child
from harness.processes.child import Child, Ending, start_child

BEGIN = """
import os, time
from harness.processes.child import take_standard_input
line = take_standard_input()
"""
FORKS = """
if os.fork() == 0:
    line.receive(None)
    os._exit(0)
"""
ENDS = {
    "answers": ("line.send('[1]')", [1]),
    "answers and is killed": ("line.send('[1]'); os.kill(os.getpid(), 9)", [1]),
    "ends": ("os._exit(3)", Ending(3)),
    "is killed": ("os.kill(os.getpid(), 9)", Ending(-9)),
    "is killed while its fork holds the line": (f"{FORKS}\nos.kill(os.getpid(), 9)", Ending(-9)),
    "closes the line first": ("line.close(); os._exit(0)", Ending(0)),
    "writes no message": ("line.send('...')", Ending(None, "Expecting value: line 1 column 1 (char 0)")),
    "writes an empty line": ("line.send('')", Ending(None, "Expecting value: line 1 column 1 (char 0)")),
    "writes no end of a line": (
        "import socket; socket.socket(fileno=line.fileno()).sendall(b'x' * (17 * 2**20))",
        Ending(None, "more than 16 MiB on the harness's own line, without a complete message"),
    ),
}


@pytest.fixture(params=[False, True], ids=["plain", "kept"])
def start(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Child]:
    def started(program: str) -> Child:
        monkeypatch.setattr(child, "LOOK_S", 0.1)
        monkeypatch.setattr(child, "child_command", lambda _module: [sys.executable, "-c", f"{BEGIN}{program}"])
        return start_child("program", kept=request.param)

    return started


@pytest.mark.parametrize("how", ENDS)
def test_receiving_from_a_child_returns_its_answer_or_its_end(start: Callable[[str], Child], how: str) -> None:
    program, received = ENDS[how]
    with start(program) as process:
        assert process.receive(json.loads, LIMIT_S) == received


def test_a_child_process_that_sends_nothing_is_not_waited_for_and_is_killed_at_the_end(
    start: Callable[[str], Child],
) -> None:
    with start("time.sleep(600)") as process:
        assert [process.receive(json.loads, 0.0), process.wait(0.0), process.poll()] == [None, None, None]
    assert process.poll() == Ending(-9)


def test_a_child_process_may_end_by_itself_after_its_message_line_is_closed(start: Callable[[str], Child]) -> None:
    with start("line.receive(None); os._exit(5)") as process:
        process.close(LIMIT_S)
        assert process.poll() == Ending(5)


@pytest.mark.parametrize(
    ("ending", "cause", "name", "sentence"),
    [
        (Ending(-9), "signal", "SIGKILL", "ended by SIGKILL"),
        (Ending(-40), "signal", "signal 40", "ended by signal 40"),
        (Ending(0), "exit_code", "exit status 0", "ended with exit status 0 before its work was done"),
        (Ending(None, "odd"), "exception", "odd", "wrote something that is not a message on the harness's own line"),
    ],
)
def test_the_end_of_a_child_process_is_described_by_a_cause_and_a_name(
    ending: Ending, cause: str, name: str, sentence: str
) -> None:
    assert (ending.cause, ending.name, str(ending)) == (cause, name, sentence)


def test_a_process_reads_its_own_stack_and_not_that_of_an_earlier_process(tmp_path: Path) -> None:
    (tmp_path / STACKS).write_text("of another process\n")
    stacks = LeftStacks(tmp_path)
    assert stacks.read() == ""
    with (tmp_path / STACKS).open("a") as file:
        file.write("its own\n")
    assert stacks.read() == "its own\n"


def test_reading_a_stack_does_not_wait_for_a_pipe_in_the_place_of_the_stack_file(tmp_path: Path) -> None:
    stacks = LeftStacks(tmp_path)
    os.mkfifo(tmp_path / STACKS)
    assert stacks.read() == ""

"""Signals end a command with the table's codes: at its start, when something swallows them, and once only."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

CONTRACT = Path(__file__).parents[2] / "contracts" / "repeatability-v1.yaml"
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 143}
# a shell's number for a signal that came before the first line of the command was reached
BEFORE_IT = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
COMMAND = "import os, signal, sys, time\nfrom harness.commands import interruption\n"


def ended(program: str, *, before: str = "") -> tuple[int, str]:
    """The exit code and what was printed, of a program that has the command's handlers within `with`."""
    body = "\n".join(f"    {line}" for line in program.splitlines())
    whole = f"{COMMAND}{before}\nwith interruption.watched():\n{body}\n"
    done = subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout


def shell_code(code: int) -> int:
    return code if code >= 0 else 128 - code


@pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)
@pytest.mark.parametrize("seconds", [0.08, 0.25, 0.5])
def test_a_signal_at_the_start_of_a_command_has_its_code(number: signal.Signals, seconds: float) -> None:
    command = [sys.executable, "-m", "harness", "check", str(CONTRACT)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        time.sleep(seconds)
        was_there = process.poll() is None
        process.send_signal(number)
        code = process.wait(30)
    assert shell_code(code) in ({CODES[number], BEFORE_IT[number]} if was_there else {0})


@pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)
def test_a_swallowed_signal_still_ends_the_command_with_its_code(number: signal.Signals) -> None:
    swallow = f"try:\n    os.kill(os.getpid(), {int(number)}); time.sleep(9)\nexcept BaseException: pass"
    program = f"{swallow}\nsys.exit(0)"
    assert ended(program) == (CODES[number], "")


def test_nothing_is_judged_after_a_swallowed_signal() -> None:
    swallow = "try:\n        os.kill(os.getpid(), 15); time.sleep(9)\n    except BaseException: pass"
    program = f"with interruption.interruptible():\n    {swallow}\nprint('HELD')"
    assert ended(program) == (143, "")


def test_a_second_signal_cuts_off_nothing() -> None:
    program = (
        "try:\n    os.kill(os.getpid(), 15); time.sleep(9)\n"
        "finally:\n    os.kill(os.getpid(), 15); os.kill(os.getpid(), 2); time.sleep(0.05); print('kept')"
    )
    assert ended(program) == (143, "kept\n")


def test_a_command_that_does_not_end_is_ended() -> None:
    program = (
        "while True:\n    try:\n        os.kill(os.getpid(), 15); time.sleep(0.01)\n    except BaseException: pass"
    )
    assert ended(program, before="interruption._grace[0] = 0.3") == (143, "")


def test_a_hangup_that_was_ignored_stays_so() -> None:
    """`nohup harness verify …`"""
    ignored = "signal.signal(signal.SIGHUP, signal.SIG_IGN)"
    assert ended("os.kill(os.getpid(), 1); time.sleep(0.05); print('on')", before=ignored) == (0, "on\n")


def test_handlers_are_as_they_were_found_afterwards() -> None:
    program = "    pass\nprint(signal.getsignal(15) is signal.SIG_DFL, signal.getsignal(2).__name__)"
    whole = f"{COMMAND}with interruption.watched():\n{program}"
    done = subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, check=True)
    assert done.stdout == "True default_int_handler\n"

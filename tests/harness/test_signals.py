"""Signals end a command with the table's codes: at its start, when something swallows them, and once only."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
from contextlib import suppress
from pathlib import Path

import pytest
import warm_start
from marked_processes import left_after, marked
from waiting import LIMIT_S, eventually

ROOT = Path(__file__).parents[2]
HELD_START = ROOT / "tests" / "support" / "held_start"
CONTRACT = ROOT / "contracts" / "repeatability-v1.yaml"
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 143}
# a shell's number for a signal that came before the first line of the command was reached
BEFORE_IT = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
PYTEST_ALLOWED = {signal.SIGINT: {130, 2}, signal.SIGTERM: {143}, signal.SIGHUP: {129}}  # 2: pytest was interrupted
OWN_FILES = (f"{ROOT}/harness/", f"{ROOT}/reference_impl/")
COMMAND = "import os, signal, sys, time\nfrom harness.cli import interruption\n"


def ended(program: str, *, before: str = "") -> tuple[int, str]:
    """The exit code and what was printed, of a program that has the command's handlers within `with`."""
    body = "\n".join(f"    {line}" for line in program.splitlines())
    whole = f"{COMMAND}{before}\nwith interruption.watched():\n{body}\n"
    done = subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, check=False, timeout=LIMIT_S)
    return done.returncode, done.stdout


def is_pythons(code: int, number: signal.Signals, printed: str) -> bool:
    """Return True if Python's own start met SIGINT, by what it printed: it failed, or ignored the exception.

    Before the first line of the harness it ends with 1 where it cannot go on, and may swallow the signal in a callback
    of its import system: the command then knows of none.
    """
    said = "KeyboardInterrupt" in printed and (code == 1 or (code == 0 and "Exception ignored in" in printed))
    return number is signal.SIGINT and said and not any(file in printed for file in OWN_FILES)


def has_a_worker(mark: str) -> bool:
    """Return True once a marked process is a worker of the harness."""
    lines = []
    for process in marked(mark):
        with suppress(OSError):
            lines.append(Path(f"/proc/{process}/cmdline").read_bytes())
    return any(b"harness.execution.worker" in line for line in lines)


def shell_code(code: int) -> int:
    return code if code >= 0 else 128 - code


# Before it imports each of these a command is held. Python's own start; the first line of the harness; what follows
# once signals are held; the last library; the system that is to be described, which another process imports.
BEFORE_IT_HOLDS = ("site", "harness.cli.first_signals")
MOMENTS = (*BEFORE_IT_HOLDS, "harness.cli.application", "yaml", "reference_impl.system")


@pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_signal_at_the_start_of_a_command_determines_the_exit_code(
    number: signal.Signals, moment: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "harness", "check", str(CONTRACT)]
    variables = {**os.environ, "PYTHONPATH": f"{HELD_START}:{ROOT}", "HOLD_AT": moment}
    nothing, pipe = subprocess.DEVNULL, subprocess.PIPE
    with subprocess.Popen(command, stdout=nothing, stderr=pipe, text=True, cwd=tmp_path, env=variables) as process:
        eventually((tmp_path / f"{moment}.held").exists, f"a command is to import {moment}", process)
        process.send_signal(number)
        (tmp_path / f"{moment}.go").touch()
        _, printed = process.communicate(timeout=LIMIT_S)
    allowed = BEFORE_IT[number] if moment in BEFORE_IT_HOLDS else CODES[number]
    assert shell_code(process.returncode) == allowed or is_pythons(process.returncode, number, printed)


@pytest.mark.parametrize(
    ("code", "printed", "pythons"),
    [
        (1, "Fatal Python error: init_import_site\nKeyboardInterrupt", True),
        (0, "Exception ignored in: <function _get_module_lock.<locals>.cb>\nKeyboardInterrupt", True),
        (0, "", False),
        (0, "KeyboardInterrupt", False),
        (1, f'File "{ROOT}/harness/cli/check.py", line 1\nKeyboardInterrupt', False),
        (12, "KeyboardInterrupt", False),
    ],
)
def test_an_interrupt_during_pythons_own_start_is_recognized(code: int, printed: str, pythons: bool) -> None:
    assert is_pythons(code, signal.SIGINT, printed) is pythons
    assert not is_pythons(code, signal.SIGTERM, printed)


@pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)
def test_a_signal_caught_by_user_code_still_sets_the_exit_code(number: signal.Signals) -> None:
    swallow = f"try:\n    os.kill(os.getpid(), {int(number)}); time.sleep(600)\nexcept BaseException: pass"
    program = f"{swallow}\nsys.exit(0)"
    assert ended(program) == (CODES[number], "")


def test_nothing_is_judged_after_a_signal_whose_exception_was_swallowed() -> None:
    swallow = "try:\n        os.kill(os.getpid(), 15); time.sleep(600)\n    except BaseException: pass"
    program = f"with interruption.interruptible():\n    {swallow}\nprint('HELD')"
    assert ended(program) == (143, "")


def test_a_second_signal_does_not_interrupt_the_cleanup() -> None:
    program = (
        "try:\n    os.kill(os.getpid(), 15); time.sleep(600)\n"
        "finally:\n    os.kill(os.getpid(), 15); os.kill(os.getpid(), 2); print('kept')"
    )
    assert ended(program) == (143, "kept\n")


def test_a_command_that_does_not_end_after_a_signal_is_killed() -> None:
    program = "while True:\n    try:\n        os.kill(os.getpid(), 15); time.sleep(600)\n    except BaseException: pass"
    assert ended(program, before="interruption._grace[0] = 0.3") == (143, "")


def test_an_ignored_hangup_signal_stays_ignored() -> None:
    """A user can start `nohup harness verify`, which ignores this signal."""
    ignored = "signal.signal(signal.SIGHUP, signal.SIG_IGN)"
    assert ended("os.kill(os.getpid(), 1); print('on')", before=ignored) == (0, "on\n")


def test_signal_handlers_are_restored_after_the_watched_block() -> None:
    program = "    pass\nprint(signal.getsignal(15) is signal.SIG_DFL, signal.getsignal(2).__name__)"
    whole = f"{COMMAND}with interruption.watched():\n{program}"
    done = subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, check=True)
    assert done.stdout == "True default_int_handler\n"


EARLY = "import os, signal, sys\nfrom harness.cli import first_signals\n{before}\nfirst_signals.hold()\n{signal}\n"
LATER = "from harness.cli import interruption\nwith interruption.watched():\n    print('judged')\n"


def ended_early(number: signal.Signals, *, before: str = "", later: str = LATER) -> tuple[int, str]:
    """What becomes of a program that gets a signal between its first line and the command's handlers."""
    program = EARLY.format(before=before, signal=f"os.kill(os.getpid(), {int(number)})") + later
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=LIMIT_S)
    return done.returncode, done.stdout


@pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)
def test_a_signal_during_the_first_imports_ends_the_command_with_its_code(number: signal.Signals) -> None:
    """The signal raises no exception there, because an exception during an import may be ignored in a callback."""
    assert ended_early(number) == (CODES[number], "")


def test_a_signal_ignored_before_the_start_stays_ignored() -> None:
    assert ended_early(signal.SIGHUP, before="signal.signal(signal.SIGHUP, signal.SIG_IGN)") == (0, "judged\n")


def ended_late(number: signal.Signals, first: str = "pass") -> tuple[int, str]:
    """What becomes of a command that gets a signal while the interpreter ends; `first` happens within the command."""
    send = f"lambda: os.kill(os.getpid(), {int(number)})"
    program = EARLY.format(before=f"import threading\nthreading._register_atexit({send})", signal="")
    program += f"from harness.cli import interruption\nwith interruption.watched():\n    {first}\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=LIMIT_S)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)
def test_a_second_signal_while_a_command_ends_does_not_change_its_exit_code(number: signal.Signals) -> None:
    assert ended_late(number, "os.kill(os.getpid(), 15)") == (143, "")


@pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)
def test_the_first_signal_while_a_command_ends_sets_its_exit_code_silently(number: signal.Signals) -> None:
    assert ended_late(number) == (CODES[number], "")


def test_the_command_holds_signals_before_it_imports_the_application() -> None:
    """Both `python -m harness` and the installed command must do this early: importing `signal` and `typing` already
    takes 10 ms.
    """
    watch = "import sys, harness.__main__\nprint([name for name in ('signal', 'typing') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-S", "-c", watch], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "[]\n"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["scripts"]["harness"] == "harness.__main__:main"


@pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)
def test_pytest_ended_by_a_signal_keeps_its_own_code_and_leaves_no_process(
    number: signal.Signals, scripted: Path, tmp_path: Path, command_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal comes while a worker sleeps. `.ci/long kills` sends signals at random moments of every phase."""
    monkeypatch.setenv(warm_start.COMMANDS, command_server)
    from scripted_system import contract_text

    contract = tmp_path / "scripted-v1.yaml"
    contract.write_text(contract_text("sleeps"), encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\ncontract_paths = .\n", encoding="utf-8")
    mark = f"TEST_SIGNALS={number.name}-{tmp_path}"
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **dict([mark.split("=", 1)])}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "harness.pytest_plugin", str(contract)]
    nothing = subprocess.DEVNULL
    with warm_start.popen(command, cwd=tmp_path, env=environment, stdout=nothing, stderr=nothing) as process:
        eventually(lambda: has_a_worker(mark), "a worker", process)
        process.send_signal(number)
        code = process.wait(LIMIT_S)
    assert shell_code(code) in PYTEST_ALLOWED[number]
    assert left_after(mark, LIMIT_S) == []

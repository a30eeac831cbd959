"""Processes under a keeper: how their end reads, and that nothing which came of them is ever left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from process_table import await_end, pending, state
from waiting import LIMIT_S, eventually

from harness.processes.kept import KeptProcess

# A daemon, as a trainer's data loader might leave one: a session of its own, a second fork, an empty environment.
DAEMON = """
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        code = "import os, time; open(os.sys.argv[1], 'a').write(f'{os.getpid()}\\\\n'); time.sleep(600)"
        os.execve(sys.executable, [sys.executable, "-S", "-c", code, sys.argv[1]], {})
    os._exit(0)
os.wait()
"""
WAIT_FOR_IT = """
import pathlib, time
while not pathlib.Path(sys.argv[1]).exists() or not pathlib.Path(sys.argv[1]).read_text().endswith("\\n"):
    time.sleep(0.01)
"""
PARENT = """
import sys, time
from harness.processes.kept import KeptProcess
kept = KeptProcess([sys.executable, "-S", "-c", sys.argv[2], sys.argv[1]])
time.sleep(600)
"""


def python(program: str, *arguments: str | Path) -> list[str]:
    return [sys.executable, "-S", "-c", program, *map(str, arguments)]


@pytest.fixture
def ids(tmp_path: Path) -> Path:
    """Where daemons write their process ids."""
    return tmp_path / "ids"


def await_end_of(ids: Path) -> None:
    """Wait until the daemon that came of a command has ended; it has been there."""
    [process] = map(int, ids.read_text().split())
    await_end(process)


def await_line(path: Path, lines: int = 1) -> None:
    eventually(lambda: path.exists() and path.read_text().count("\n") >= lines, f"{path.name} has lines")


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("pass", 0),
        ("import os; os._exit(70)", 70),
        ("import os; os._exit(139)", 139),  # what a shell makes of SIGSEGV: not the same here
        ("import os; os.kill(os.getpid(), 11)", -signal.SIGSEGV),
        ("import os; os.kill(os.getppid(), 9); import time; time.sleep(600)", -signal.SIGKILL),
    ],
)
def test_a_kept_command_ends_with_the_commands_exit_code(program: str, code: int) -> None:
    """A kept command runs below a keeper, the process that ends the command and its children."""
    with KeptProcess(python(program)) as kept:
        assert kept.wait(LIMIT_S) == code
        assert kept.poll() == code


def test_a_kept_command_has_its_own_streams_session_and_known_id(tmp_path: Path) -> None:
    """A kept command runs below a keeper, the process that ends the command and its children."""
    program = "import os, sys; print(os.getpid(), os.getsid(0), sys.stdin.read()); print('e', file=sys.stderr)"
    (tmp_path / "in").write_text("given")
    with (tmp_path / "in").open() as stdin, (tmp_path / "err").open("wb") as errors:
        command = python(program)
        with KeptProcess(command, stdin=stdin.fileno(), stdout=subprocess.PIPE, stderr=errors) as kept:
            assert kept.stdout is not None
            with kept.stdout as output:
                assert output.read().decode() == f"{kept.pid} {kept.pid} given\n"
    assert (tmp_path / "err").read_text() == "e\n"


def test_the_output_pipe_closes_with_the_command_while_the_keeper_lives() -> None:
    """The keeper is the process that ends the command and its children.

    If it kept the pipe open, a reader would wait for the keeper.
    """
    program = "import os, time; os.close(1); time.sleep(600)"
    with KeptProcess(python(program), stdout=subprocess.PIPE) as kept:
        assert kept.stdout is not None
        with kept.stdout as output:
            assert output.read() == b""
        assert kept.poll() is None


def test_a_kept_command_starts_with_default_signal_handling() -> None:
    """Python ignores SIGPIPE, and a command that it starts would inherit this."""
    with KeptProcess(["sh", "-c", "grep SigIgn /proc/self/status"], stdout=subprocess.PIPE) as kept:
        assert kept.stdout is not None
        with kept.stdout as output:
            ignored = int(output.read().split()[1], 16)
    assert not ignored & (1 << (signal.SIGPIPE - 1))
    assert not ignored & (1 << (signal.SIGCHLD - 1))


def test_a_command_that_cannot_start_is_an_error_with_its_name() -> None:
    with pytest.raises(FileNotFoundError, match="no-such-command"):
        KeptProcess(["no-such-command"])


def test_a_daemon_ends_with_its_command(ids: Path) -> None:
    with KeptProcess(python(f"{DAEMON}{WAIT_FOR_IT}\nos._exit(3)", ids)) as kept:
        assert kept.wait(LIMIT_S) == 3
        await_end_of(ids)


def test_a_daemon_ends_when_the_command_is_killed(ids: Path) -> None:
    with KeptProcess(python(f"{DAEMON}{WAIT_FOR_IT}\ntime.sleep(600)", ids)) as kept:
        await_line(ids)
        assert kept.poll() is None
        kept.kill()
        assert kept.returncode == -signal.SIGKILL
        await_end_of(ids)


def test_a_command_that_stops_its_keeper_is_still_killed(ids: Path) -> None:
    """The keeper is the process that ends the command and its children."""
    program = f"{DAEMON}{WAIT_FOR_IT}\nos.kill(os.getppid(), 19); time.sleep(600)"
    with KeptProcess(python(program, ids)) as kept:
        await_line(ids)
        kept.kill()
        await_end_of(ids)


def test_a_keeper_that_is_stopped_once_more_is_resumed_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keeper is the process that ends the command and its children.

    Its command is killed after the first signal.
    """
    with KeptProcess(python("import time; time.sleep(600)")) as kept:
        send, sent = kept._keeper.send_signal, list[int]()

        def and_stop(number: int) -> None:
            send(number)
            sent.append(number)
            if len(sent) < 3:
                send(signal.SIGSTOP)

        monkeypatch.setattr(kept._keeper, "send_signal", and_stop)
        kept.kill()
        assert {*sent} - {signal.SIGKILL} == {signal.SIGCONT}  # its report of the end ends the keeper


def test_a_process_left_by_a_killed_keeper_is_found_by_its_token(ids: Path) -> None:
    """The command killed its keeper, and its child runs in a separate session.

    Only the token in the environment shows that the child belongs to the command.
    """
    marked = DAEMON.replace(", {})", ", dict(os.environ))")
    program = f"{marked}{WAIT_FOR_IT}\nos.kill(os.getppid(), 9); time.sleep(600)"
    with KeptProcess(python(program, ids)) as kept:
        assert kept.wait(LIMIT_S) == -signal.SIGKILL
        await_end_of(ids)


def test_a_command_without_a_token_dies_with_its_keeper(tmp_path: Path) -> None:
    """The keeper ends the command and its children. It normally finds them by a token in their environment."""
    note = tmp_path / "note"
    writes = "import os, time; open(os.sys.argv[1], 'w').write(f'{os.getpid()}\\n')"
    kills = f"{writes}; os.kill(os.getppid(), 9); time.sleep(600)"
    program = f"import os, sys; os.execve(sys.executable, [sys.executable, '-S', '-c', {kills!r}, sys.argv[1]], {{}})"
    with KeptProcess(python(program, note)) as kept:
        assert kept.wait(LIMIT_S) == -signal.SIGKILL
        await_end_of(note)


def test_processes_that_fork_without_end_are_ended(ids: Path) -> None:
    """Each process starts a new session, so no process group contains all of them."""
    note = "open(os.sys.argv[1], 'a').write('forked\\n')"
    program = f"import os\nwhile True:\n    if os.fork(): os._exit(0)\n    os.setsid()\n    {note}"
    with KeptProcess(python(f"import os, time\nif os.fork():\n    time.sleep(600)\n{program}", ids)) as kept:
        await_line(ids, 20)
        kept.kill()
        assert kept.returncode == -signal.SIGKILL


def test_terminate_reaches_the_command_and_a_group_can_be_stopped() -> None:
    waits = "import signal, time; print('up', flush=True); time.sleep(600)"
    with KeptProcess(python(waits), stdout=subprocess.PIPE) as kept:
        assert kept.stdout is not None
        with kept.stdout as output:
            assert output.readline() == b"up\n"
            kept.signal_group(signal.SIGSTOP)
            eventually(lambda: state(kept.pid) == "T", "it is stopped")  # else SIGTERM may come first
            kept.terminate()
            eventually(lambda: signal.SIGTERM in pending(kept.pid), "SIGTERM has come")
            with pytest.raises(subprocess.TimeoutExpired):
                kept.wait(0.0)
            kept.signal_group(signal.SIGCONT)
            assert kept.wait(LIMIT_S) == -signal.SIGTERM
        kept.terminate()  # what has ended gets no signal
        kept.signal_group(signal.SIGKILL)


@pytest.fixture
def parent(ids: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that keeps a command, which left a daemon."""
    program = f"{DAEMON}{WAIT_FOR_IT}\ntime.sleep(600)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", PARENT, ids, program], env=environment) as process:
        yield process
        process.kill()


def test_all_child_processes_end_when_their_parent_is_killed(ids: Path, parent: subprocess.Popen[bytes]) -> None:
    await_line(ids)
    parent.kill()
    await_end_of(ids)

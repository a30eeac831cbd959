"""One GPU, one run."""

from __future__ import annotations

import ast
import errno
import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import LIMIT_S

from harness.errors import HarnessError
from harness.execution.turns import ALONE, POLL_S, GpuTurn, gpu_lock, lock_path

HOLD = """
import sys
from harness.execution.turns import gpu_lock
with gpu_lock("GPU-a", print):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)


def _holder() -> subprocess.Popen[bytes]:
    """Return a process that holds the lock until its stdin is closed."""
    holder = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    return holder


def test_a_run_does_not_wait_for_a_free_gpu() -> None:
    said: list[str] = []
    with gpu_lock("GPU-a", said.append), gpu_lock("GPU-b", said.append):
        assert said == []


def test_a_run_waits_for_a_gpu_in_use_and_announces_the_wait() -> None:
    said: list[str] = []
    with _holder() as holder:
        assert holder.stdin is not None
        release = holder.stdin.close

        def say(text: str) -> None:
            said.append(text)
            release()

        with gpu_lock("GPU-a", say):
            assert holder.wait(LIMIT_S) == 0  # its block is over
        assert said == [f"waiting for GPU-a behind process {holder.pid} (-c)"]


TURN = """
import sys, time
from harness.execution.turns import ALONE, GpuTurn
turn = GpuTurn(["GPU-a"], lambda waiting: None)
def used(share):
    turn.take(share)
    began = time.monotonic()
    print("untimed" if share else "timed", flush=True)
    sys.stdin.readline() if share else sum(range(3_000_000))
    return began, time.monotonic()
print(used(0.25), used(ALONE))
"""


def test_commands_share_a_gpu_while_untimed_and_take_turns_while_timed() -> None:
    commands = [
        subprocess.Popen([sys.executable, "-c", TURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    for each in commands:  # all are within their untimed part before one may leave it
        assert each.stdout is not None
        assert each.stdout.readline() == "untimed\n"
    for each in commands:
        assert each.stdin is not None
        each.stdin.write("\n")
        each.stdin.flush()
    ended = [each.communicate(timeout=LIMIT_S)[0].splitlines()[-1] for each in commands]
    intervals = [ast.literal_eval(f"[{line.replace(') (', '), (')}]") for line in ended]
    timed = sorted(each[1] for each in intervals)
    assert all(earlier[1] <= later[0] for earlier, later in itertools.pairwise(timed))
    assert max(each[0][1] for each in intervals) <= timed[0][0]
    assert POLL_S <= 1


def test_an_exclusive_gpu_request_is_served_before_later_shared_requests() -> None:
    order: list[str] = []
    sharing = GpuTurn(["GPU-a"], print)
    sharing.take(0.25)
    asked = {"alone": threading.Event(), "later": threading.Event()}

    def ask(name: str, share: float | None) -> None:
        with gpu_lock("GPU-a", lambda _waiting: asked[name].set(), share):
            order.append(name)

    threads = []
    for name, share in (("alone", ALONE), ("later", 0.25)):
        threads.append(threading.Thread(target=ask, args=(name, share)))
        threads[-1].start()
        assert asked[name].wait(LIMIT_S)
    sharing.close()
    for thread in threads:
        thread.join(LIMIT_S)
    assert order == ["alone", "later"]


def test_a_shared_gpu_request_waits_while_the_memory_shares_are_used_up() -> None:
    said: list[str] = []
    first, second, third = (GpuTurn(["GPU-a"], said.append) for _ in range(3))
    first.take(0.6)
    second.take(0.4)
    assert said == []
    waiting = threading.Thread(target=third.take, args=(0.1,))
    waiting.start()
    second.close()
    waiting.join(LIMIT_S)
    assert third.held
    first.close()
    third.close()


def test_a_killed_process_that_held_the_gpu_leaves_the_gpu_free() -> None:
    with _holder() as holder:
        holder.kill()
    said: list[str] = []
    with gpu_lock("GPU-a", said.append):
        assert said == []


def test_a_gpu_uuid_cannot_point_outside_of_the_lock_directory() -> None:
    assert lock_path("../../GPU/x").name == "______GPU_x.lock"


def test_a_gpu_lock_directory_that_is_a_link_is_refused(tmp_path: Path) -> None:
    directory = lock_path("GPU-a").parent
    directory.rmdir()
    (tmp_path / "elsewhere").mkdir()
    directory.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(
        HarnessError, match="must belong to this user; found a link; remove the directory, or set TMPDIR"
    ):
        lock_path("GPU-a")


def refusal() -> str:
    with pytest.raises(HarnessError) as refused, gpu_lock("GPU-a", print):
        pass
    return str(refused.value)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL, errno.EIO])
def test_a_file_system_without_locks_is_reported_without_waiting(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", flock)
    path = lock_path("GPU-a")
    assert refusal() == (
        f"{path}: the lock of a GPU must be a file that this user can write and lock; found {os.strerror(number)}; "
        "set TMPDIR to your own folder on a file system that supports locks"
    )


@pytest.mark.parametrize("mode", [0o600, 0o000])
def test_a_lock_file_without_permission_is_named(monkeypatch: pytest.MonkeyPatch, mode: int) -> None:
    """The file may belong to another user.

    The test raises the error itself, because the user root may open every file.
    """
    path = lock_path("GPU-a")
    path.touch(mode=mode)
    opened = os.open

    def denied(name: str | Path, *rest: int) -> int:
        if Path(name) == path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return opened(name, *rest)

    monkeypatch.setattr("os.open", denied)
    assert "found Permission denied; set TMPDIR" in refusal()


@pytest.mark.parametrize("make", [Path.mkdir, lambda path: path.symlink_to(path)], ids=["folder", "link"])
def test_an_unusable_lock_path_is_reported(make: Callable[[Path], object]) -> None:
    make(lock_path("GPU-a"))
    assert "the lock of a GPU must be a file that this user can write and lock" in refusal()


def test_an_unusable_folder_for_locks_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = lock_path("GPU-a").parent
    directory.rmdir()
    directory.touch()
    assert "found File exists; set TMPDIR" in refusal()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    assert "found No such file or directory; set TMPDIR" in refusal()

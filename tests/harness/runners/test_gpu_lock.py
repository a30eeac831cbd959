"""One GPU, one run."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import LIMIT_S

from harness.errors import HarnessError
from harness.runners.gpu_lock import gpu_lock, lock_path

HOLD = """
import sys
from harness.runners.gpu_lock import gpu_lock
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


def test_a_free_gpu_is_not_waited_for() -> None:
    said: list[str] = []
    with gpu_lock("GPU-a", said.append), gpu_lock("GPU-b", said.append):
        assert said == []


def test_a_gpu_in_use_is_waited_for_and_the_wait_is_announced() -> None:
    said: list[str] = []
    with _holder() as holder:
        assert holder.stdin is not None
        release = holder.stdin.close

        def say(text: str) -> None:
            said.append(text)
            release()

        with gpu_lock("GPU-a", say):
            assert holder.wait(LIMIT_S) == 0  # its block is over
        assert said == ["waiting for GPU-a: another run is using this GPU"]


def test_a_killed_holder_leaves_the_gpu_free() -> None:
    with _holder() as holder:
        holder.kill()
    said: list[str] = []
    with gpu_lock("GPU-a", said.append):
        assert said == []


def test_a_uuid_cannot_lead_out_of_the_directory() -> None:
    assert lock_path("../../GPU/x").name == "______GPU_x.lock"


def test_a_lock_directory_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    directory = lock_path("GPU-a").parent
    directory.rmdir()
    (tmp_path / "elsewhere").mkdir()
    directory.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(HarnessError, match="must belong to this user; found a link; remove it, or set TMPDIR"):
        lock_path("GPU-a")


def refusal() -> str:
    with pytest.raises(HarnessError) as refused, gpu_lock("GPU-a", print):
        pass
    return str(refused.value)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL, errno.EIO])
def test_a_file_system_without_locks_is_named_and_nobody_waits(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def flock(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", flock)
    path = lock_path("GPU-a")
    assert refusal() == (
        f"{path}: the lock of a GPU is a file that this user can write and lock; found {os.strerror(number)}; "
        "set TMPDIR to a folder of yours on a file system with locks"
    )


@pytest.mark.parametrize("mode", [0o600, 0o000])
def test_a_lock_without_permission_is_named(monkeypatch: pytest.MonkeyPatch, mode: int) -> None:
    """Of another user in a folder that all may write; nothing is refused to root, so that it is asked for by hand."""
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
def test_a_lock_that_is_no_file_is_named(make: Callable[[Path], object]) -> None:
    make(lock_path("GPU-a"))
    assert "the lock of a GPU is a file that this user can write and lock" in refusal()


def test_a_folder_for_locks_that_is_a_file_or_has_no_parent_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = lock_path("GPU-a").parent
    directory.rmdir()
    directory.touch()
    assert "found File exists; set TMPDIR" in refusal()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    assert "found No such file or directory; set TMPDIR" in refusal()

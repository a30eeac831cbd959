"""One GPU, one run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import HarnessError
from harness.runners.gpu_lock import gpu_lock, lock_path

HOLD = """
import sys, time
from harness.runners.gpu_lock import gpu_lock
with gpu_lock("GPU-a", print):
    print("held", flush=True)
    time.sleep(float(sys.argv[1]))
"""


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)


def _holder(seconds: float) -> subprocess.Popen[bytes]:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(seconds)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    return holder


def test_a_free_gpu_is_not_waited_for() -> None:
    said: list[str] = []
    with gpu_lock("GPU-a", said.append), gpu_lock("GPU-b", said.append):
        assert said == []


def test_a_gpu_in_use_is_waited_for_and_the_wait_is_announced() -> None:
    said: list[str] = []
    with _holder(1.0) as holder:
        with gpu_lock("GPU-a", said.append):
            assert holder.poll() is not None or holder.wait(5) == 0  # its block is over
        assert said == ["waiting for GPU-a: another run is using this GPU"]


def test_a_killed_holder_leaves_the_gpu_free() -> None:
    with _holder(600.0) as holder:
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
    with pytest.raises(HarnessError, match="must belong to this user"):
        lock_path("GPU-a")

"""Processes that leave their stacks in one directory, where none may take another's file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.execution.job import SHOW

# The second process begins between the first one's two looks at its file.
BEGINS_BETWEEN = """
import os, sys
from pathlib import Path
from harness.execution.job import leave_stacks

directory, rename, own = Path(sys.argv[1]), Path.rename, os.getpid()

def after_another(path, target):
    Path.rename = rename
    os.getpid = lambda: own + 1
    leave_stacks(directory)
    return rename(path, target)

Path.rename = after_another
leave_stacks(directory)
print(own)
"""


@pytest.mark.skipif(SHOW is None, reason="this system has no signal by which a process shows its threads")
def test_concurrent_processes_of_one_run_write_separate_stack_files(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BEGINS_BETWEEN, str(tmp_path)]
    own = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert {path.name for path in tmp_path.glob("threads.*")} == {f"threads.{own}", f"threads.{own + 1}"}


# In a process of its own, because faulthandler's handlers belong to the whole process. It raises the signal in C code
# that leaves errno alone, so that only the signal's handler can change errno.
PROGRAM = """
import ctypes, os, pathlib, sys
from harness.execution.job import SHOW, THREADS, leave_stacks

def errno_after_a_signal():
    libc = ctypes.CDLL(None)
    libc.__errno_location.restype = ctypes.POINTER(ctypes.c_int)
    errno = libc.__errno_location()
    errno[0] = 2
    getattr(libc, "raise")(SHOW)
    return errno[0]

folder = pathlib.Path(sys.argv[1])
leave_stacks(folder)
first = errno_after_a_signal()
leave_stacks(folder)  # a forked process calls it again
print(first, errno_after_a_signal(), (folder / f"{THREADS}.{os.getpid()}").read_text().count("errno_after_a_signal"))
"""


@pytest.mark.skipif(SHOW is None, reason="this system has no signal by which a process shows its threads")
def test_a_request_for_stacks_does_not_change_the_error_number_of_user_code(tmp_path: Path) -> None:
    """Regression: `Path.exists` raised OSError with errno 0 in a worker that was asked for its stack."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["2", "2", "1"]

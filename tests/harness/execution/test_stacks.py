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

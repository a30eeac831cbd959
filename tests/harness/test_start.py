"""What Python finds in the place of a module that the harness needs gives an error, and no code of a verdict."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def checked(folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-P", "-m", "harness", "check", str(ROOT / "contracts" / "traced-step-v1.yaml")]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("random.py", "import sys; sys.exit(0)", "error: the harness cannot start: SystemExit: 0\n"),
        (
            "yaml.py",
            "import sys; sys.exit(0)",
            "error: the command was ended before it had finished: SystemExit(0)\n",
        ),
        ("yaml.py", "1 / 0", "ZeroDivisionError: division by zero\n"),
    ],
)
def test_a_module_that_ends_the_process_gives_no_verdict(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(f"{text}\n")
    done = checked(tmp_path)
    assert (done.returncode, done.stderr.endswith(said)) == (12, True), done.stderr


def test_an_error_at_the_start_of_a_command_is_printed_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "random.py").write_text(r"raise RuntimeError('a\x1b[31m\n::error::b')" + "\n")
    assert checked(tmp_path).stderr == r"error: the harness cannot start: RuntimeError: a\x1b[31m\n::error::b" + "\n"

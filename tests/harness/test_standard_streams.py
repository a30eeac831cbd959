"""A stdout that takes no characters, or that nobody reads, changes no exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from budget import is_long

ROOT = Path(__file__).parents[2]
CONTRACT = "contracts/ptx-target-parity-v1.yaml"
HARNESS = f"{sys.executable} -m harness"
ARGUMENTS = {
    "judge": ("judge {run}", 0),
    "judge --json": ("judge --json {run}", 0),
    "judge --check": ("judge --check {run}", 0),
    "check": (f"check {CONTRACT}", 0),
    "doctor": (f"doctor {CONTRACT}", 0),
    "explain": ("explain F-GRAPH-BWD-001", 0),
    "explain, an unknown claim": ("explain NONE", 2),
    "schema": ("schema", 0),
    "help": ("--help", 0),
    "help of a command": ("verify --help", 0),
    "a usage error": ("check --none", 2),
    "no command": ("", 2),
}
READERS = {
    "no reader": "{command} | true",
    "a reader of a line": "{command} | head -1",
    "closed": "{command} >&-",
    "both closed": "{command} >&- 2>&-",
    "all closed": "{command} <&- >&- 2>&-",
    "both go to a reader of a line": "{command} 2>&1 | head -1",
    "a full disk": "{command} > /dev/full",
    "a full disk for both": "{command} > /dev/full 2>&1",
}
ENCODINGS = {
    "ASCII": {"PYTHONIOENCODING": "ascii"},
    "strict ASCII": {"PYTHONIOENCODING": "ascii:strict"},
    "C without coercion": {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
    "Latin-1": {"PYTHONIOENCODING": "latin-1"},
    "UTF-16": {"PYTHONIOENCODING": "utf-16"},
}


def run(command: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """The command's own exit code, whatever the end of the pipe says."""
    program = f"set -o pipefail; {command}"
    environment = {**os.environ, **variables}
    return subprocess.run(
        ["bash", "-c", program], cwd=ROOT, env=environment, capture_output=True, check=False, timeout=120
    )


def published() -> Path:
    """A published run of which every unit held, the smallest."""
    return min(ROOT.glob("reports/*/run.tar.xz"), key=lambda path: path.stat().st_size).parent


# A process takes a third of a second: all commands with one reader, all readers with one of the shortest commands that
# print lines. `.ci/long fuzz` takes all.
PAIRS = [
    pytest.param(name, reader, marks=() if name == "explain" else pytest.mark.slow)
    for name in ARGUMENTS
    for reader in READERS
    if is_long() or name == "explain" or reader == "a reader of a line"
]


@pytest.mark.parametrize(("name", "reader"), PAIRS)
def test_a_closed_output_pipe_does_not_change_the_exit_code(name: str, reader: str) -> None:
    arguments, code = ARGUMENTS[name]
    done = run(READERS[reader].format(command=f"{HARNESS} {arguments.format(run=published())}"))
    assert done.returncode == code
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr
    if reader == "a full disk":
        assert done.stderr.decode().splitlines()[-1] == "stdout: No space left on device: all further output is lost"


ENCODED = [
    (name, encoding)
    for name in ("judge", "judge --json", "check")
    for encoding in ENCODINGS
    if is_long() or (name == "check" and encoding != "ASCII") or encoding == "strict ASCII"  # see the test below
]


@pytest.mark.parametrize(("name", "encoding"), ENCODED)
def test_an_encoding_that_lacks_characters_changes_no_exit_code(name: str, encoding: str) -> None:
    arguments, code = ARGUMENTS[name]
    done = run(f"{HARNESS} {arguments.format(run=published())}", **ENCODINGS[encoding])
    assert done.returncode == code
    assert b"Traceback" not in done.stderr


def test_a_character_that_the_encoding_lacks_is_printed_as_its_number() -> None:
    done = run(f"{HARNESS} check {CONTRACT}", PYTHONIOENCODING="ascii")
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False)
    assert done.stdout.decode("ascii").split(r" \xb7 ")[1:] != []


def test_a_file_opened_after_stdout_was_closed_does_not_become_stdout(tmp_path: Path) -> None:
    """With descriptor 1 closed, the next opened file would get descriptor 1."""
    source = (
        "from harness.platform.standard_streams import print_line, surviving_streams\n"
        "with surviving_streams():\n"
        f"    with open({str(tmp_path / 'file')!r}, 'w') as file:\n"
        "        print_line('a line')\n        import os; os.write(1, b'more')\n        file.write('mine')\n"
    )
    done = run(f"{sys.executable} -c {subprocess.list2cmdline([source])} >&-")
    assert done.returncode == 0
    assert (tmp_path / "file").read_text() == "mine"

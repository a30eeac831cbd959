"""The size of the tree has a budget: who needs more changes its number in the same commit, and says what it buys."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Python files and their lines, at most.
BUDGET = {"harness": (350, 72_430), "tests": (652, 94_788), "reference_impl": (149, 17_867), "tools": (55, 6_980)}


def size(folder: str) -> tuple[int, int]:
    """The Python files below a folder that git has or would take, and their lines."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", f"{folder}/*.py"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    ).stdout.splitlines()
    files = [ROOT / name for name in listed if (ROOT / name).is_file()]
    return len(files), sum(len(file.read_bytes().splitlines()) for file in files)


@pytest.mark.parametrize("folder", BUDGET)
def test_a_folder_stays_within_its_size_limit(folder: str) -> None:
    most_files, most_lines = BUDGET[folder]
    files, lines = size(folder)
    assert files <= most_files, f"{folder} has {files} files, {most_files} at most: BUDGET, and what the others buy"
    assert lines <= most_lines, f"{folder} has {lines} lines, {most_lines} at most: BUDGET, and what the others buy"

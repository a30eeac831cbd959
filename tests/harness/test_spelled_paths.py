"""Every command does the same for a path however it is spelled: absolute, relative, through a link, with `..`."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from command_here import called

SPELLINGS = {
    "absolute": "{folder}",
    "relative": ".",
    "through its parent": "../project",
    "through a link": "../elsewhere/linked",
    "behind a link": "../elsewhere/inner/..",  # `inner` leads to project/inner, so this is `project`
}
# each with its exit code and what it makes
COMMANDS: tuple[tuple[str, int, list[str]], ...] = (
    ("check {}/contracts", 0, []),
    ("verify {}/contracts --gate --reports {}/parts --name part-0", 0, ["parts/part-0"]),
    ("verify {}/contracts --waivers {}/waivers.yaml --reports {}/parts --name part-1", 0, ["parts/part-1"]),
    ("verify {}/contracts --reports {}/parts --name part-0", 2, []),  # which exists
    ("drill {}/contracts --reports {}/drills --name drill", 1, ["drills/drill"]),  # a claim without faults
    ("judge --gate --out {}/merged --badge {}/badge.json {}/parts/part-0", 0, ["badge.json", "merged/report.html"]),
    ("report {}/parts/part-0 {}/parts/part-1 --out {}/pages", 0, ["pages/report.html"]),
    ("compare {}/parts/part-0 {}/parts/part-1", 0, []),
    ("history {}/parts --out history.html", 0, ["history.html"]),
    ("pack {}/parts/part-0 --out {}/published/part-0", 0, ["published/part-0"]),
    ("judge --check {}/published/part-0", 0, []),
    ("attest --unsigned --file {}/statement.json {}/parts/part-0", 0, ["statement.json"]),
)


def newest_mkdtemp(made: Callable[..., str]) -> Callable[..., str]:
    """Return `tempfile.mkdtemp` as Python 3.12 and newer have it, whichever Python this is."""
    return lambda *arguments, **options: os.path.abspath(made(*arguments, **options))  # noqa: PTH100


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_each_command_accepts_relative_absolute_and_other_spellings_of_a_path(
    spelling: str, run_that_held: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, played: None
) -> None:
    folder, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    shutil.copytree(run_that_held, folder)
    (folder / "waivers.yaml").write_text("schema: waivers/v1\nwaivers: []\n")
    (folder / "inner").mkdir()
    elsewhere.mkdir()
    (elsewhere / "linked").symlink_to(folder)
    (elsewhere / "inner").symlink_to(folder / "inner")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(tempfile, "mkdtemp", newest_mkdtemp(tempfile.mkdtemp))
    for command, code, made in COMMANDS:
        words = command.replace("{}", SPELLINGS[spelling].format(folder=folder)).split()
        ended, said = called(*words)
        assert (ended, [name for name in made if not (folder / name).exists()]) == (code, []), said
    assert 'href="parts/part-0/report.html"' in (folder / "history.html").read_text()
    unfinished = [path for path in tmp_path.rglob("*") if ".incomplete-" in path.name]
    assert [*unfinished, *elsewhere.glob("[!il]*")] == []


def test_only_one_module_creates_temporary_folders_next_to_paths_that_users_named() -> None:
    """`mkdtemp(dir=...)` changes the spelling of a path, and `temporary_folder` keeps the user's spelling."""
    sources = (Path(__file__).parents[2] / "harness").rglob("*.py")
    found = [
        path.name for path in sources if re.search(r"mk[ds]temp\(.*\bdir=|Temporary.*\(.*\bdir=", path.read_text())
    ]
    assert found == ["places.py"]

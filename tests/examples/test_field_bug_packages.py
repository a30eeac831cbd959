"""Releases of other projects that entries of the museum try: how they are listed, found, imported, and tried."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import field_bugs
import field_bugs_page
import pytest
from answer_field_bugs import needed_by
from budget import slow_but
from field_bug_results import Said
from field_bug_server import Ask, assert_recorded

from examples.field_bugs import packages
from examples.field_bugs.bug import Bug
from harness.errors import HarnessError

PINNED = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*==[0-9]+(\.[0-9]+)*(\.post[0-9]+)?")
LISTED = {
    f"{entry.stem}, {form}": releases
    for entry, bug in field_bugs.entries().items()
    for form, releases in bug.installed.items()
}


@pytest.mark.parametrize("releases", LISTED.values(), ids=LISTED)
def test_an_entry_lists_releases_by_the_registrys_name_and_one_version(releases: Sequence[str]) -> None:
    assert [release for release in releases if not PINNED.fullmatch(release)] == []


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An entry that needs two releases, neither of which is installed."""
    monkeypatch.setattr(packages, "FOLDER", tmp_path / "installed")
    monkeypatch.setattr(sys, "path", list(sys.path))
    installed = {"buggy": ["first-release==1.0", "second-release==2.0"]}
    bug = Bug("a title", "owner/name#1", "what users saw", "a cause", "a fix", installed=installed)
    facts = ", ".join(f"{name}={value!r}" for name, value in vars(bug).items())
    (tmp_path / "entry.py").write_text(f"BUG = Bug({facts})\n")
    return tmp_path / "entry.py"


def install(release: str, module: str) -> Path:
    folder = packages.folder_of(release)
    folder.mkdir(parents=True)
    (folder / f"{module}.py").write_text("")
    return folder


def test_a_missing_package_release_is_named_with_the_command_that_installs_it(entry: Path) -> None:
    install("first-release==1.0", "first_release")
    with pytest.raises(HarnessError) as caught:
        packages.use_packages(str(entry), "buggy")
    assert str(caught.value) == (
        f"entry.py, buggy: an entry runs with the releases that it lists; found no second-release==2.0 in "
        f"{packages.FOLDER}; run `python tools/museum/install_field_bug_packages.py`"
    )


def test_releases_listed_first_precede_later_releases_and_the_environment_on_the_path(entry: Path) -> None:
    folders = [install("first-release==1.0", "first_release"), install("second-release==2.0", "second_release")]
    packages.use_packages(str(entry), "buggy")
    assert sys.path[:2] == [str(folder) for folder in folders]


def test_a_process_that_has_imported_another_release_is_refused(entry: Path) -> None:
    install("first-release==1.0", "first_release")
    install("second-release==2.0", "json")
    with pytest.raises(HarnessError, match="imports its packages before anything else does; found json of"):
        packages.use_packages(str(entry), "buggy")


# They share what they need imported with the releases.
WITH_LIBRARIES = [entry for entry in field_bugs.recorded() if needed_by(entry)]


@pytest.mark.parametrize("form", field_bugs.FORMS)
@pytest.mark.slow
@pytest.mark.parametrize("entry", WITH_LIBRARIES, ids=lambda entry: entry.stem)
def test_a_field_bug_of_a_library_repeats_its_recorded_verdicts(entry: Path, form: str, ask: Ask) -> None:
    assert_recorded(entry, form, ask)


INSTALLED = {entry.path.stem: entry for entry in field_bugs_page.entries() if entry.bug.installed and entry.records}
QUICK = "pytorch_optimizer_lookahead_resume"


# Without a GPU their kernels are interpreted, 6 ms a row; what they do wrong they do at the first steps (`is_told_by`).
INTERPRETED, FEW_STEPS = "TRITON_INTERPRET", 8


def is_told_by(few_steps: int, said: Said) -> bool:
    """Whether what is recorded of a form shows within so many steps."""
    return said.step is None or said.step < few_steps


@pytest.mark.parametrize("form", field_bugs.FORMS)
@pytest.mark.parametrize("name", slow_but([QUICK], INSTALLED))
def test_an_installed_release_repeats_its_recorded_verdicts(name: str, form: str, ask: Ask) -> None:
    """Only the claim that found the bug is judged again, and only if the affected release is installed."""
    entry = INSTALLED[name]
    missing = [release for release in entry.bug.installed.get(form, []) if not packages.folder_of(release).is_dir()]
    if missing:
        pytest.skip(f"no {', '.join(missing)}: {packages.INSTALL}")
    claim = entry.found[0].claim
    recorded = [each for each in entry.records[0][form] if each.claim == claim]
    interpreted = INTERPRETED in entry.path.read_text(encoding="utf-8")
    assert not interpreted or all(is_told_by(FEW_STEPS, each) for each in recorded)
    said = ask(entry.path, f"{form}:{FEW_STEPS}" if interpreted else form, claim)
    assert [(each.status, each.reason) for each in said] == [(each.status, each.reason) for each in recorded], said

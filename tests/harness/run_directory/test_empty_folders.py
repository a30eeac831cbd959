"""A part in which nothing could be executed has empty folders. Artifacts of CI systems lose them, and nothing else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from harness.api import session
from harness.api.rejudge import rejudged
from harness.cli import judge as judge_command
from harness.cli.pack import published
from harness.cli.report import render
from harness.run_directory.seal import read_manifest

SUPPORT = Path(__file__).parents[2] / "support"


@pytest.fixture
def uploaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run directory with nothing executed, as an upload of files brings it back: without folders that hold none."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(SUPPORT / "scripted"))
    import scripted_system

    Path("scripted-v1.yaml").write_text(scripted_system.contract_text("not_run"), encoding="utf-8")
    here = session.verify([Path("scripted-v1.yaml")], session.VerifyOptions(reports=Path("runs"), name="1-part"))
    assert here.run_directory is not None
    (here.run_directory / "evidence").rmdir()  # which raises where it holds anything
    return here.run_directory


def test_a_run_uploaded_without_its_empty_folders_is_judged_as_before(
    uploaded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rejudged(uploaded).problems == []
    code = judge_command.print_verdicts([uploaded], gate=True, as_json=False)
    assert (code, capsys.readouterr().out.splitlines()[0]) == (
        10,
        "1 unit · 1 not run",
    )


def test_judging_and_rendering_a_run_without_its_empty_folders_keeps_the_manifest(uploaded: Path) -> None:
    before = read_manifest(uploaded)
    assert judge_command.replace_recorded([uploaded]) == 0
    assert render(uploaded) == []
    assert read_manifest(uploaded) == before


def test_publishing_a_run_without_its_empty_folders_keeps_its_evidence(uploaded: Path) -> None:
    published(uploaded, Path("published"))
    assert rejudged(Path("published")).problems == []
    assert read_manifest(Path("published"))[0].seen == read_manifest(uploaded)[0].seen
    assert judge_command.replace_recorded([Path("published")]) == 0


def test_a_file_or_link_in_place_of_an_empty_run_folder_is_reported(uploaded: Path) -> None:
    (uploaded / "evidence").write_text("{}")
    assert "1-part: evidence: a file instead of a folder" in rejudged(uploaded).problems
    (uploaded / "evidence").unlink()
    (uploaded / "evidence").symlink_to(shutil.copytree(uploaded / "contracts", "other"))
    assert "1-part: evidence: a symbolic link" in rejudged(uploaded).problems


def test_a_folder_added_to_a_run_without_its_empty_folders_is_reported(uploaded: Path) -> None:
    (uploaded / "evidence" / "run").mkdir(parents=True)
    assert "1-part: evidence/run: not recorded with the run" in rejudged(uploaded).problems

import os
from pathlib import Path

import pytest

from harness import session


@pytest.fixture
def run(played: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run directory of two units, one violated; the working directory is a folder of the test's own."""
    from scripted_system import contract_text

    monkeypatch.chdir(tmp_path)
    contract = tmp_path / "scripted-v1.yaml"
    contract.write_text(contract_text("held", "violated"), encoding="utf-8")
    directory = session.verify([contract], session.Options(reports=Path("runs"), name="1-run")).run_directory
    assert directory is not None
    return directory


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where archives are unpacked: a folder that a test can look into."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", os.fspath(folder))
    monkeypatch.setenv("TMPDIR", os.fspath(folder))
    return folder

import os
import shutil
import tarfile
from pathlib import Path

import pytest

from harness.api import session
from harness.cli.pack import published

SUPPORT = Path(__file__).parents[2] / "support"


@pytest.fixture(scope="session")
def finished_run(loaded: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run directory of two units, one violated; nothing changes it."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SUPPORT / "scripted"))
        import scripted_system

        patch.setattr("harness.execution.supervisor.execute", scripted_system.play)
        patch.setattr("harness.execution.sharing._repetitions", lambda _run: [])
        contract = folder / "scripted-v1.yaml"
        contract.write_text(scripted_system.contract_text("held", "violated"), encoding="utf-8")
        directory = session.verify([contract], session.VerifyOptions(reports=folder, name="1-run")).run_directory
    assert directory is not None
    return directory


@pytest.fixture(scope="session")
def published_run(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, published, and `inside` beside it what its archive holds; nothing changes them."""
    folder = tmp_path_factory.mktemp("published")
    published(finished_run, folder / "published")
    with tarfile.open(folder / "published" / "run.tar.xz") as archive:
        archive.extractall(folder / "inside", filter="data")
    return folder / "published"


@pytest.fixture
def run(finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, below the working directory of the test."""
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(finished_run, Path("runs/1-run")))


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where archives are unpacked: a folder that a test can look into."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", os.fspath(folder))
    monkeypatch.setenv("TMPDIR", os.fspath(folder))
    return folder

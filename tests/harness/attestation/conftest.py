from pathlib import Path

import pytest


@pytest.fixture
def folder(loaded: None, played: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, in which runs are played."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("harness.api.session.write_reports", lambda *_, **__: None)  # reports have tests of their own
    return tmp_path

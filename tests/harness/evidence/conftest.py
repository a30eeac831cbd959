from pathlib import Path

import pytest
from recorded import RUN

from harness.numbers import dump_json


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """An evidence directory that holds its run and no record yet."""
    (tmp_path / "run.json").write_text(dump_json(RUN.model_dump()))
    return tmp_path

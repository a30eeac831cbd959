import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "support"))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """An evidence directory that holds its run and no record yet."""
    from recorded import RUN  # found in the folder that this file puts on the path

    from harness.numbers import dump_json

    (tmp_path / "run.json").write_text(dump_json(RUN.model_dump()))
    return tmp_path

import os
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parents[2] / "support"
sys.path.insert(0, str(SUPPORT))


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers started in this test execute `stand_in/worker_behaviours.py` in place of the paired probe."""
    monkeypatch.syspath_prepend(str(SUPPORT / "stand_in"))
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT / "stand_in"), prepend=os.pathsep)

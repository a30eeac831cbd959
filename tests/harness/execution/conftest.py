import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parents[2] / "support"
sys.path.insert(0, str(SUPPORT))


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers started in this test execute `stand_in/worker_behaviours.py` in place of the paired probe."""
    monkeypatch.syspath_prepend(str(SUPPORT / "stand_in"))
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT / "stand_in"), prepend=os.pathsep)  # on a worker's path at its start


@pytest.fixture(scope="module")
def ends_alone() -> Iterator[None]:
    """What ends a worker of a module's tests is not to end this process, too: a death is not held back for that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.execution.supervisor.ENDED_TOGETHER_S", 0.0)
        yield

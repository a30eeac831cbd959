from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def ends_alone() -> Iterator[None]:
    """What ends a worker of a module's tests is not to end this process, too: a death is not held back for that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.execution.supervisor.ENDED_TOGETHER_S", 0.0)
        yield


@pytest.fixture
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long replay's turns with a fresh run have blocks of one step of each shape: a tenth of a thousand steps."""
    monkeypatch.setattr("harness.execution.opening.REPLAY_BLOCK_STEPS", 1)

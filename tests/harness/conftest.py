import os
import sys
from pathlib import Path

import one_day
import pytest
from two_commits import UserRepository

SUPPORT = Path(__file__).parents[1] / "support"
SCRIPTED = SUPPORT / "scripted"


@pytest.fixture(scope="session")
def loaded() -> None:
    """Loaded before any test: `pytester` unloads what was imported beside it, and numpy cannot be loaded twice."""
    import filelock
    import matplotlib.backends.backend_svg
    import matplotlib.pyplot as plt
    import numpy as np
    import rich.console
    import typer.completion

    import harness.api.session
    import harness.cli.application
    import harness.cli.forecast
    import harness.cli.verify
    import harness.execution.schedule
    import harness.execution.sharing
    import harness.judging.registry
    import harness.pytest_plugin.fixtures
    import harness.report.html
    import harness.system.wrappers

    assert all((filelock, matplotlib, plt, np, rich, typer, harness))


@pytest.fixture
def scripted(loaded: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Contracts of `scripted_system` resolve, here and in the processes that a test starts; the directory."""
    monkeypatch.syspath_prepend(str(SCRIPTED))
    monkeypatch.setenv("PYTHONPATH", f"{SCRIPTED}:{Path(__file__).parents[2]}")
    return SCRIPTED


@pytest.fixture
def played(scripted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are played and systems described in this process: evidence as a worker leaves it, without the worker."""
    import scripted_system

    monkeypatch.setattr("harness.execution.supervisor.execute", scripted_system.play)
    monkeypatch.setattr("harness.execution.sharing._repetitions", lambda _run: [])  # of one process there is no other
    # `verify` starts an interpreter ahead, which nobody would take, and which imports torch until it is killed
    monkeypatch.setattr("harness.execution.supervisor.Interpreters.begin", lambda _: None)
    monkeypatch.setattr("harness.system.described._ask", scripted_system.describe_here)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)


@pytest.fixture
def described_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Systems are described in this process."""
    from described_here import described_here

    monkeypatch.setattr("harness.system.described._ask", described_here)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers started in this test execute `stand_in/worker_behaviours.py` in place of the paired probe."""
    monkeypatch.syspath_prepend(str(SUPPORT / "stand_in"))
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT / "stand_in"), prepend=os.pathsep)  # on a worker's path at its start


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UserRepository:
    """A user's repository of two commits, in which the test works."""
    made = UserRepository.make(tmp_path / "repository")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(made.root)
    return made


@pytest.fixture
def noon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness takes it for noon of `one_day.TODAY`."""
    for module in ("api.session", "cli.check", "cli.verify", "pytest_plugin.shared_runs"):
        monkeypatch.setattr(f"harness.{module}.datetime", one_day.Noon)


@pytest.fixture(scope="session")
def run_that_held(tmp_path_factory: pytest.TempPathFactory, loaded: None) -> Path:
    """A folder with `contracts` and `runs/run`, a finished run directory of them that held; nothing changes it."""
    folder = tmp_path_factory.mktemp("held")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTED))
        import scripted_system
        from command_here import called

        patch.setattr("harness.execution.supervisor.execute", scripted_system.play)
        patch.setattr("harness.execution.sharing._repetitions", lambda _run: [])
        patch.setattr("harness.execution.supervisor.Interpreters.begin", lambda _: None)
        patch.setattr("harness.system.described._ask", scripted_system.describe_here)
        patch.chdir(folder)
        Path("contracts").mkdir()
        Path("contracts/scripted-v1.yaml").write_text(scripted_system.contract_text("held"))
        assert called("verify", "contracts", "--reports", "runs", "--name", "run")[0] == 0
    return folder

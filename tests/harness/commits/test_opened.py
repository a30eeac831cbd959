"""An arm of another commit is opened in a process of that commit alone, and all that it imports comes from there."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from two_commits import UserRepository

from harness.commits import import_path
from harness.commits.checkout import checked_out
from harness.contract.schema import Arm, Workload
from harness.errors import SystemResolutionError, UsageError
from harness.evidence.plan_records import PlannedArm, Run
from harness.execution.opening import opened

SYSTEM = "lab.trainer:Trainer"


@pytest.fixture
def commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of a baseline whose process this is, as far as modules go."""
    repository = UserRepository.make(tmp_path / "repository", package="lab.")
    (repository.root / "helper.py").touch()
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(repository.root)
    with checked_out("main", [SYSTEM], Path("harness-reports")) as checkout:
        monkeypatch.setattr(sys, "path", checkout.import_path.path)
        monkeypatch.setattr(import_path, "_in_use", [checkout.import_path])
        yield checkout.commit
    for name in ("helper", "lab", "lab.trainer", "lab.update"):
        sys.modules.pop(name, None)


def run_of(commit: str | None) -> Run:
    return Run(
        id="one",
        contract="c",
        probe="paired",
        workload_name="small",
        workload=Workload(model="any", batch_size=1, seq_len=4, steps=1),
        arms={"main": PlannedArm(arm=Arm(), system=SYSTEM, commit=commit)},
    )


def test_a_working_tree_module_imported_while_a_commit_arm_is_open_is_refused(commit: str) -> None:
    with opened(run_of(commit), "main"):
        pass
    sys.path.insert(0, str(Path.cwd()))
    found = r"found `helper` of the working tree \(.*/repository/helper.py\)"
    with pytest.raises(SystemResolutionError, match=found), opened(run_of(commit), "main"):
        importlib.import_module("helper")


def test_an_arm_that_belongs_to_a_different_commit_is_not_opened(commit: str) -> None:
    found = f"can open only arms of its commit, {commit[:12]}; found the working tree's"
    with pytest.raises(UsageError, match=found), opened(run_of(None), "main"):
        pass

"""The commit of a system's own repository, whatever repository the harness lies in."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from report_views import header as report_header
from report_views import small_view

from harness.api.session import VerifyOptions, header_of
from harness.contract.load import load_contract
from harness.devices import environment
from harness.evidence.sources import trainers
from harness.planning.plan import Plan
from harness.report.first_screen import identity
from harness.system.described import describe_all


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=ada", "-c", "user.email=ada@example.org"]
    done = subprocess.run(["git", *identity, "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a package `a_trainers_package`, on the import path."""
    package = tmp_path / "a_trainers_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (package / "system.py").write_text("raise RuntimeError('imported')\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "A trainer")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


TRAINER = "reference_impl.system:QLoRASystem"


def commit_of(system: str) -> str | None:
    return trainers([system])[system].commit


def test_a_trainer_in_its_own_repository_has_the_commit_of_that_repository(repository: Path) -> None:
    found = commit_of("a_trainers_package.system:Trainer")
    assert found == git(repository, "rev-parse", "HEAD")
    assert found != environment.checked_out_commit()


@pytest.mark.parametrize("changed", ["a_trainers_package/system.py", "a_trainers_package/__init__.py"])
def test_an_uncommitted_change_is_marked_in_the_commit(repository: Path, changed: str) -> None:
    (repository / changed).write_text("changed = True\n")
    head = git(repository, "rev-parse", "HEAD")
    assert commit_of("a_trainers_package.system:Trainer") == f"{head}+changes"


def test_an_uncommitted_change_outside_the_package_marks_its_commit_as_changed(repository: Path) -> None:
    (repository / "beside.txt").write_text("one\n")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--message", "More")
    (repository / "beside.txt").write_text("two\n")
    assert str(commit_of("a_trainers_package.system:Trainer")).endswith("+changes")


def test_an_untracked_file_marks_the_commit_as_changed(repository: Path) -> None:
    (repository / "a_trainers_package" / "new.py").write_text("")
    assert commit_of("a_trainers_package.new:Trainer") == f"{commit_of('a_trainers_package.system:Trainer')}+changes"


def test_a_package_installed_inside_a_checkout_has_no_commit(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = repository / "env" / "site-packages"
    installed.mkdir(parents=True)
    (installed / "an_installed_trainer.py").write_text("")
    monkeypatch.syspath_prepend(str(installed))
    assert commit_of("an_installed_trainer:Trainer") is None


@pytest.mark.parametrize("system", ["a_trainers_package.lost:Trainer", "no_such_package_at_all:Trainer", "sys:exit"])
def test_a_module_that_has_no_file_has_no_commit(repository: Path, system: str) -> None:
    assert repository.is_dir()
    assert commit_of(system) is None


def test_reading_the_commit_starts_no_program_configured_in_the_repository(repository: Path) -> None:
    started = repository / "started"
    program = repository / "monitor.sh"
    program.write_text(f"#!/bin/sh\ntouch {started}\n")
    program.chmod(0o755)
    git(repository, "config", "core.fsmonitor", str(program))
    assert commit_of("a_trainers_package.system:Trainer") is not None
    assert not started.exists()


def test_a_run_records_the_commit_of_every_system_that_its_contracts_name() -> None:
    contract = load_contract(Path(__file__).parents[3] / "contracts" / "step-accuracy-v1.yaml")
    header = header_of([contract], Plan([], []), VerifyOptions(), datetime(2026, 11, 22, tzinfo=UTC))
    assert set(header.environment.trainers) == set(contract.contract.systems())
    assert len(contract.contract.systems()) == 2
    assert {facts.commit for facts in header.environment.trainers.values()} == {header.environment.git.commit}


def test_a_run_records_the_name_that_a_wrapped_trainer_gives_itself() -> None:
    """Regression: a drill's page showed the name of the wrapper, `with_faults:Faulty`, which users do not know."""
    contract = load_contract(Path(__file__).parents[3] / "examples" / "ranks" / "fsdp2" / "contract.yaml")
    describe_all(contract.contract.systems())  # as the plan does; a header asks no system itself
    header = header_of([contract], Plan([], []), VerifyOptions(), datetime(2026, 11, 22, tzinfo=UTC))
    [(system, facts)] = header.environment.trainers.items()
    assert (system, facts.name) == ("examples.ranks.fsdp2.with_faults:Faulty", "fsdp2")
    shown = dict(identity(small_view(header=report_header(environment={"trainers": {TRAINER: {"name": "ours"}}}))))
    assert shown["Whose"].startswith(f"ours ({TRAINER});")
    assert shown["Commit"].startswith("of no repository;")

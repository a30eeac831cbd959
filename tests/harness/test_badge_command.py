"""`harness judge --badge`: of a split gate, of a contract that moved on, of files that were changed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cli import application

Called = Callable[..., int]


@pytest.fixture
def called(played: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Called:
    """Call the command line in a folder of its own; the exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("harness.api.session.write_reports", lambda *_: None)

    def call(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["harness", *arguments])
        with pytest.raises(SystemExit) as left:
            application.main()
        assert isinstance(left.value.code, int)
        return left.value.code

    return call


@pytest.fixture
def parts(called: Called) -> list[str]:
    """The run directories of a gate in two parts, both of which held."""
    Path("contracts").mkdir()
    write("held", "also_held")
    for part in ("held", "also_held"):
        called("verify", "contracts", "--gate", "--workload", part, "--reports", "parts", "--name", part)
    return ["parts/held", "parts/also_held"]


def write(*behaviours: str) -> None:
    from scripted_system import contract_text

    Path("contracts/scripted-v1.yaml").write_text(contract_text(*behaviours))


def badge() -> tuple[str, str]:
    written = json.loads(Path("badge.json").read_text())
    return written["message"], written["color"]


def test_the_badge_of_all_parts_is_green_and_that_of_a_single_part_is_yellow(called: Called, parts: list[str]) -> None:
    assert called("judge", "--gate", "--badge", "badge.json", *parts) == 0
    assert badge() == ("HELD · 2 of 2 held", "brightgreen")
    assert called("judge", "--gate", "--badge", "badge.json", parts[0]) == 0
    assert badge() == ("HELD · 1 of 1 held · a part", "yellow")


def test_the_badge_is_not_green_if_the_contract_changed_after_the_run(called: Called, parts: list[str]) -> None:
    path = Path("contracts/scripted-v1.yaml")
    path.write_text(path.read_text().replace("steps: 5,", "steps: 6,"))
    assert called("judge", "--gate", "--contracts", "contracts", "--badge", "badge.json", *parts) == 10
    assert badge() == ("NOT DECIDED · 0 of 2 held", "lightgrey")


def test_the_badge_of_a_run_with_a_changed_file_is_not_green(called: Called, parts: list[str]) -> None:
    (Path(parts[0]) / "verdicts.json").write_text("[]")
    assert called("judge", "--gate", "--badge", "badge.json", *parts) == 12
    assert badge() == ("ERROR", "red")


@pytest.mark.parametrize("option", ["--check", "--write"])
def test_the_badge_option_is_refused_without_printed_verdicts(called: Called, parts: list[str], option: str) -> None:
    assert called("judge", option, "--badge", "badge.json", *parts) == 2
    assert not Path("badge.json").exists()


@pytest.mark.parametrize("option", ["--check", "--write"])
def test_contracts_are_refused_with_options_that_judge_by_the_runs_own_contracts(
    called: Called, parts: list[str], option: str
) -> None:
    """Regression: the contracts were ignored, so a gate by the current contracts was judged by those of the run."""
    path = Path("contracts/scripted-v1.yaml")
    path.write_text(path.read_text().replace("steps: 5,", "steps: 6,"))
    assert called("judge", "--gate", "--contracts", "contracts", *parts) == 10
    assert called("judge", "--gate", option, "--contracts", "contracts", *parts) == 2


def test_judge_refuses_check_together_with_write(called: Called, parts: list[str]) -> None:
    assert called("judge", "--check", "--write", *parts) == 2

"""Exit codes and count lines of every combination of verdicts: from the command line, pytest, and pytest -n 2."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from itertools import chain, combinations
from pathlib import Path

import pytest
from budget import is_long, slow_but

from harness.cli import application as cli
from harness.devices.environment import collect
from harness.evidence.environment_records import Environment
from harness.numbers import counted

VERDICTS = ("held", "violated", "undecided", "not_run", "error")
COMBINATIONS = list(chain.from_iterable(combinations(VERDICTS, size) for size in range(1, len(VERDICTS) + 1)))
Row = tuple[tuple[str, ...], bool]
TABLE: list[Row] = [(combination, gate) for combination in COMBINATIONS for gate in (False, True)]
# Two processes more take seconds a row: a row of each exit code, one of them with every verdict, and under the gate
# what it changes. `.ci/long fuzz` takes each combination; in one process each is taken here.
SHORT_TABLE: list[Row] = [
    (("held",), False),
    (("violated",), False),
    (VERDICTS, False),
    (("held", "undecided"), True),
    (("held", "not_run"), True),
]


def exit_code(verdicts: tuple[str, ...], *, gate: bool) -> int:
    """The table of docs/reference/exit-codes.md, the first row that applies from the top."""
    if "error" in verdicts:
        return 12
    if "violated" in verdicts:
        return 1
    if "held" not in verdicts or (gate and {"undecided", "not_run"} & set(verdicts)):
        return 10
    return 0


def count_line(verdicts: tuple[str, ...]) -> str:
    told = [f"1 {name.replace('_', ' ')}" for name in VERDICTS if name in verdicts]
    return " · ".join([counted(len(verdicts), "unit"), *told])


def word(verdicts: tuple[str, ...], *, gate: bool) -> str:
    """The table of docs/reading-a-report.md: HELD only where everything did."""
    code = exit_code(verdicts, gate=gate)
    if code in {12, 1}:
        return "ERROR" if code == 12 else "VIOLATED"
    if "held" not in verdicts:
        return "NOT DECIDED"
    return "HELD" if verdicts == ("held",) else "PARTLY DECIDED"


def name_of(row: Row) -> str:
    return "+".join(row[0]) + ("-gate" if row[1] else "")


@cache
def found_here() -> Environment:
    return collect()


@pytest.fixture
def contract(
    pytester: pytest.Pytester, scripted: Path, played: None, monkeypatch: pytest.MonkeyPatch
) -> Callable[[tuple[str, ...]], Path]:
    """Write the contract of a combination where the command line and pytest find it."""
    from scripted_system import contract_text

    monkeypatch.setattr("harness.api.session.write_reports", lambda *_: None)  # reports have tests of their own
    # and so has what a header says of machine and sources: it was most of a row, and is that of the first one here
    monkeypatch.setattr("harness.devices.environment.collect", lambda *_: found_here())
    monkeypatch.setattr("harness.evidence.sources.listed_sources", lambda *_: {"harness": "here"})
    monkeypatch.setattr("harness.api.session.trainers", lambda *_: {})
    pytester.makeini("[pytest]\ncontract_paths = contracts\n")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # hypothesis alone takes half a second of each process
    # xdist gives its workers the path that this process began with
    pytester.makeconftest(f"import sys\nsys.path.insert(0, {str(scripted)!r})\nimport played_runs\n")

    def write(verdicts: tuple[str, ...]) -> Path:
        folder = pytester.mkdir("contracts")
        (folder / "scripted-v1.yaml").write_text(contract_text(*verdicts))
        return folder

    return write


def from_command_line(contracts: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, list[str]]:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as left:
        patch.setattr(sys, "argv", ["harness", "verify", str(contracts), *options])
        cli.main()
    assert isinstance(left.value.code, int)
    return left.value.code, capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("row", TABLE, ids=name_of)
def test_the_command_line_exits_by_the_table_of_exit_codes(
    row: Row, contract: Callable[[tuple[str, ...]], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    verdicts, gate = row
    code, lines = from_command_line(contract(verdicts), capsys, *(["--gate"] if gate else []))
    assert (code, lines[0]) == (exit_code(verdicts, gate=gate), count_line(verdicts))
    assert lines[-1].startswith(f"{word(verdicts, gate=gate)}: ")


def check_pytest(result: pytest.RunResult, verdicts: tuple[str, ...], *, gate: bool) -> None:
    open_units = sum(name in verdicts for name in ("undecided", "not_run"))
    result.assert_outcomes(
        passed=int("held" in verdicts),
        failed=int("violated" in verdicts) + open_units * gate,
        errors=int("error" in verdicts),
        skipped=open_units * (not gate),
    )
    result.stdout.fnmatch_lines([count_line(verdicts), f"{word(verdicts, gate=gate)}: *"])
    assert result.ret == exit_code(verdicts, gate=gate)


@pytest.mark.parametrize("row", slow_but(SHORT_TABLE, TABLE), ids=name_of)
def test_pytest_exits_by_the_table_of_exit_codes(
    row: Row, contract: Callable[[tuple[str, ...]], Path], pytester: pytest.Pytester
) -> None:
    verdicts, gate = row
    folder = contract(verdicts)
    result = pytester.runpytest_inprocess(
        "-p", "harness.pytest_plugin", str(folder), *(["--contract-gate"] if gate else [])
    )
    check_pytest(result, verdicts, gate=gate)


def test_the_short_table_of_exit_codes_has_each_exit_code() -> None:
    assert {exit_code(verdicts, gate=gate) for verdicts, gate in SHORT_TABLE} == {
        exit_code(verdicts, gate=gate) for verdicts, gate in TABLE
    }


@pytest.mark.parametrize("row", slow_but(SHORT_TABLE[2:3], TABLE if is_long() else SHORT_TABLE), ids=name_of)
def test_pytest_in_two_processes_exits_by_the_table_of_exit_codes(
    row: Row, contract: Callable[[tuple[str, ...]], Path], pytester: pytest.Pytester
) -> None:
    verdicts, gate = row
    folder = contract(verdicts)
    options = ["-p", "harness.pytest_plugin", "-p", "xdist.plugin", "-n", "2", *(["--contract-gate"] if gate else [])]
    result = pytester.runpytest_inprocess(*options, str(folder))
    check_pytest(result, verdicts, gate=gate)

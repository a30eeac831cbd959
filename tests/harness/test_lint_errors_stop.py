"""What `check` calls an error stops `verify`, `drill` and pytest's collection, with the same place and sentence."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cli import application

Write = Callable[[str], Path]
SHARED = "schema: shared/v2\narms: {spare: {capture: non}}\n"
WAIVER = (
    "schema: waivers/v1\nwaivers:\n"
    "  - {contract: CONTRACT, claim: NOBODYS-001, workload: held, owner: ada, reason: known, expires: 2999-01-01}\n"
)
UNKNOWN_FAULT = "neither the system nor the harness offers fault 'nan_tial'; did you mean 'nan_tail'?"
UNMATCHED = "contracts/waivers.yaml:3:5: a waiver must name a unit that a contract plans; found "


@pytest.fixture
def folder(pytester: pytest.Pytester, scripted: Path, played: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`contracts/` with a contract of one unit that holds, which pytest collects, too."""
    from scripted_system import contract_text

    monkeypatch.setattr("harness.api.session.write_reports", lambda *_: None)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]\ncontract_paths = contracts\naddopts = -p harness.pytest_plugin\n")
    pytester.makeconftest(f"import sys\nsys.path.insert(0, {str(scripted)!r})\nimport played_runs\n")
    pytester.mkdir("contracts")
    (Path("contracts") / "one.yaml").write_text(contract_text("held"))
    return Path("contracts")


def unknown_fault(folder: Path) -> str:
    """A contract beside the good one, which names a fault that nobody offers; the error."""
    from scripted_system import contract_text

    text = contract_text("held", identity="two-v1", claim="OTHER-001")
    assert text.count("nan_tail") == 1
    (folder / "two.yaml").write_text(text.replace("nan_tail", "nan_tial"))
    line, column = text[: text.index("nan_tail")].count("\n") + 1, text.splitlines()[-1].index("nan_tail") + 1
    return f"contracts/two.yaml:{line}:{column}: {UNKNOWN_FAULT}"


def waiver_of_no_claim(folder: Path) -> str:
    (folder / "waivers.yaml").write_text(WAIVER.replace("CONTRACT", "scripted-v1"))
    return f"{UNMATCHED}claim 'NOBODYS-001'; use one of: SCRIPT-001; or remove the waiver"


def waiver_of_no_contract(folder: Path) -> str:
    (folder / "waivers.yaml").write_text(WAIVER.replace("CONTRACT", "nobodys-v1"))
    return f"{UNMATCHED}contract 'nobodys-v1'; use one of: scripted-v1; or remove the waiver"


def wrong_shared_file(folder: Path) -> str:
    (folder / "spare.yaml").write_text(SHARED)
    expected = "'capture' must be one of: none, step, backward; found 'non'; did you mean 'none'?"
    return f"contracts/spare.yaml:2:25: {expected}"


# Two processes more take seconds each time.
OPTIONS = [
    (),
    ("--contract-gate",),
    ("--continue-on-collection-errors",),
    pytest.param(("-n", "2"), marks=pytest.mark.slow),
]
WRONG = [unknown_fault, waiver_of_no_claim, waiver_of_no_contract, wrong_shared_file]
RUNNING = [
    ("verify",),
    ("verify", "--gate"),
    ("verify", "--plan"),
    ("verify", "--claim", "SCRIPT-001"),
    ("verify", "--on", "local"),
    ("drill",),
    ("drill", "--plan"),
    ("drill", "--on", "local"),
]

STOPPED = [  # a drill reads no waivers
    pytest.param(command, wrong, id=f"{' '.join(command)}-{wrong.__name__}")
    for command in RUNNING
    for wrong in ([unknown_fault, wrong_shared_file] if command[0] == "drill" else WRONG)
]


def harness(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as left:
        patch.setattr(sys, "argv", ["harness", *arguments])
        application.main()
    assert isinstance(left.value.code, int)
    return left.value.code, capsys.readouterr().err


@pytest.mark.parametrize(("command", "wrong"), STOPPED)
def test_commands_stop_at_contract_errors_that_check_reports(
    folder: Path, capsys: pytest.CaptureFixture[str], wrong: Callable[[Path], str], command: tuple[str, ...]
) -> None:
    error = wrong(folder)
    assert harness(capsys, "check", "contracts")[0] == 11
    code, said = harness(capsys, command[0], "contracts", *command[1:])
    assert (code, said.splitlines()[-1]) == (11, f"error: {error}")
    assert not Path("harness-reports").exists()


def test_an_error_in_a_file_that_check_skips_stops_no_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unknown_fault(folder)
    for command, options in (("check", []), ("verify", []), ("drill", ["--plan"])):
        assert harness(capsys, command, "contracts/one.yaml", *options)[0] == 0


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("options", OPTIONS)
def test_pytest_does_not_collect_contracts_that_check_refuses(
    folder: Path, pytester: pytest.Pytester, wrong: Callable[[Path], str], options: tuple[str, ...]
) -> None:
    error = wrong(folder)
    parallel = ("-p", "xdist") if "-n" in options else ()
    result = pytester.runpytest_inprocess("contracts", *parallel, *options)
    assert error.removeprefix("contracts/") in result.stdout.str()
    assert result.ret == 11


def test_an_invalid_contract_ends_pytest_with_the_commands_code(folder: Path, pytester: pytest.Pytester) -> None:
    (folder / "two.yaml").write_text("schema: contract/v2\nid: x\n")
    assert pytester.runpytest_inprocess("contracts").ret == 11


def test_pytest_collects_a_folder_of_valid_contracts(folder: Path, pytester: pytest.Pytester) -> None:
    (folder / "spare.yaml").write_text(SHARED.replace("non}", "none}"))
    result = pytester.runpytest_inprocess("contracts")
    result.assert_outcomes(passed=1)
    assert result.ret == 0


def test_a_test_file_that_cannot_be_imported_keeps_pytests_exit_code(folder: Path, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import no_such_module\n")
    assert pytester.runpytest_inprocess().ret == pytest.ExitCode.INTERRUPTED

"""What a stranger's contract says reaches pytest's terminal and its XML as text."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from obeyed import HOSTILE, obeyed
from scripted_contract import hostile_contract

BEHAVIOURS = ("held", "violated", "undecided", "not_run", "error")
PLAY = "import sys\nsys.path.insert(0, {scripted!r})\nimport played_runs\n"


@pytest.fixture
def contracts(pytester: pytest.Pytester, scripted: Path, played: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("harness.api.session.write_reports", lambda *_: None)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]\ncontract_paths = contracts\naddopts = -p harness.pytest_plugin\n")
    pytester.makeconftest(PLAY.format(scripted=str(scripted)))
    return pytester.mkdir("contracts")


def printed(done: pytest.RunResult) -> str:
    """But for the sequences of pytest's own colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join([*done.outlines, *done.errlines]))


@pytest.mark.parametrize("options", [["-v", "-rx"], ["-rA", "--contract-gate"], ["-vv", "--color=yes", "--tb=long"]])
def test_hostile_text_in_verdicts_and_reasons_is_escaped_by_pytest(
    pytester: pytest.Pytester, contracts: Path, options: list[str]
) -> None:
    (contracts / "c.yaml").write_text(hostile_contract(HOSTILE, *BEHAVIOURS))
    (contracts / "waivers.yaml").write_text(
        "schema: waivers/v1\nwaivers:\n  - {contract: scripted-v1, claim: SCRIPT-001, workload: violated, "
        'owner: "a\\n::error::b\\e[31m", reason: "c\\r##[error]d", expires: 2199-01-01}\n'
    )
    done = pytester.runpytest_inprocess(*options, "contracts")
    assert done.ret == 12
    assert obeyed(printed(done)) == []
    assert r"a\n::error::b" in printed(done)


def test_hostile_text_in_a_contract_error_is_escaped_by_pytest(pytester: pytest.Pytester, contracts: Path) -> None:
    text = hostile_contract(HOSTILE, "held").replace("kind: trajectory_match", 'kind: "x\\n::set-output a::b\\e[31m"')
    (contracts / "c.yaml").write_text(text)
    done = pytester.runpytest_inprocess("contracts")
    assert obeyed(printed(done)) == []
    assert r"unknown kind; found 'x\n::set-output a::b\x1b[31m'" in printed(done)


def test_a_hostile_contract_file_name_is_escaped_by_pytest(pytester: pytest.Pytester, contracts: Path) -> None:
    (contracts / "x\n::set-output a::b\x1b[31m.yaml").write_text(hostile_contract(HOSTILE, "held"))
    done = pytester.runpytest_inprocess("-v")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert obeyed(printed(done)) == []
    assert r"contracts/x\n::set-output a::b\x1b[31m.yaml: the name of a contract file must be" in printed(done)


@pytest.mark.parametrize("behaviour", BEHAVIOURS[1:])
def test_hostile_text_in_a_test_that_verifies_a_claim_is_escaped(
    pytester: pytest.Pytester, contracts: Path, behaviour: str
) -> None:
    (contracts / "c.yaml").write_text(hostile_contract(HOSTILE, behaviour))
    text = f"def test_it(verify_contract):\n    verify_contract('SCRIPT-001', workload={behaviour!r})\n"
    done = pytester.runpytest_inprocess("-rA", pytester.makepyfile(text).name, "--junit-xml=own.xml")
    assert sum(done.parseoutcomes().values()) == 1
    assert obeyed(printed(done)) == []
    ET.parse(pytester.path / "own.xml")  # noqa: S314
    assert obeyed((pytester.path / "own.xml").read_text(encoding="utf-8")) == []


def test_a_hostile_name_of_an_unknown_claim_is_escaped_under_pytest(pytester: pytest.Pytester, contracts: Path) -> None:
    (contracts / "c.yaml").write_text(hostile_contract(HOSTILE, "held"))
    file = pytester.makepyfile(f"def test_it(verify_contract):\n    verify_contract({HOSTILE!r})\n")
    done = pytester.runpytest_inprocess("--tb=line", file.name)
    assert obeyed(printed(done)) == []
    assert "no contract has this claim" in printed(done)

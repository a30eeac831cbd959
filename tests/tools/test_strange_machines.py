"""What a strange machine lacks is really missing there, and what differs is found. The whole is `.ci/long machines`."""

from __future__ import annotations

from pathlib import Path

import pytest
import strange_machines
from strange_machines import CIRCUMSTANCES, CLOSED, WITHOUT_COMPILERS, run, set_up, wrong_of_own_claim

ORDINARY = next(iter(CIRCUMSTANCES))
HARNESS = """#!/bin/sh
case "$1" in
    verify) mkdir -p harness-reports/run; echo "${VERDICTS:-same}" > harness-reports/run/verdicts.json ;;
    report) [ -z "$BROKEN" ] || { echo "$BROKEN"; exit 12; } ;;
    doctor) echo "$PRINTED" ;;
esac
"""


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "harness").write_text(HARNESS)
    (tmp_path / "harness").chmod(0o755)
    set_up(tmp_path)
    return tmp_path


def test_the_circumstance_without_compilers_offers_no_compiler(work: Path) -> None:
    programs = {path.name for path in (work / WITHOUT_COMPILERS).iterdir()}
    assert programs >= {"sh", "git", "ls", "make"}
    assert not programs & {"cc", "gcc", "c++", "g++", "clang", "ld", "as", "x86_64-linux-gnu-gcc-12", "gcc-12"}
    code, _ = run(CIRCUMSTANCES["no compiler"], ["sh", "-c", "command -v cc gcc c++"], work, work)
    assert code != 0


def test_all_strange_circumstances_together_remove_user_home_network_and_locale(work: Path) -> None:
    strange = CIRCUMSTANCES["all at once"]
    if not strange.can_be_made():
        pytest.skip("this machine has no namespaces for users")
    program = "id -u; touch $HOME/x $TMPDIR/x; locale charmap; cat /proc/net/dev | wc -l"
    _, printed = run(strange, ["sh", "-c", program], work, work)
    assert printed.split("\n")[0] == "54321"
    assert f"{CLOSED}/x': Permission denied" in printed
    assert "nowhere/x': No such file" in printed
    assert printed.split("\n")[-3:] == ["ANSI_X3.4-1968", "3", ""]  # two lines of headings, and `lo`


def test_an_ordinary_machine_has_no_problem(work: Path) -> None:
    assert wrong_of_own_claim(ORDINARY, [str(work / "harness")], work) == []


@pytest.mark.parametrize(
    ("variables", "problem"),
    [
        ({"BROKEN": "no"}, "report copied ended with 12:\nno\n"),
        ({"PRINTED": "x.py:1: UserWarning: y"}, "doctor contracts ended with 0:\nx.py:1: UserWarning: y\n"),
        ({"VERDICTS": "other"}, "the verdicts differ from those of an ordinary machine"),
    ],
    ids=["exit code", "warning", "verdicts"],
)
def test_a_machine_circumstance_that_changes_the_result_is_reported(
    variables: dict[str, str | None], problem: str, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CIRCUMSTANCES, "strange", strange_machines.Circumstance(variables))
    assert wrong_of_own_claim(ORDINARY, [str(work / "harness")], work) == []
    assert wrong_of_own_claim("strange", [str(work / "harness")], work) == [problem]

"""The gates that `reports/README.md` gives are judged as the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.api.rejudge import judged

REPORTS = Path(__file__).parents[2] / "reports"
COMMAND = re.compile(
    r"^harness judge --gate (\S+(?: \S+)*) +"
    r"# (\d+) of (\d+) held, (\d+) violated, (\d+) undecided: exit code (\d+)$",
    re.MULTILINE,
)


def written() -> list[tuple[str, ...]]:
    return COMMAND.findall((REPORTS / "README.md").read_text())


def test_every_published_gate_has_the_command_that_judged_it() -> None:
    assert len(written()) == (REPORTS / "README.md").read_text().count("harness judge --gate") >= 1


@pytest.mark.parametrize("gate", written(), ids=lambda gate: gate[0].split()[0].rpartition("/")[2])
def test_a_published_gate_has_the_documented_counts_and_exit_code(gate: tuple[str, ...]) -> None:
    names, held, planned, violated, undecided, code = gate
    _, judgement = judged([REPORTS.parent / name for name in names.split()], gate=True)
    counts = judgement.counts
    assert [counts.planned, counts.held, counts.violated, counts.undecided] == [
        int(number) for number in (planned, held, violated, undecided)
    ]
    assert judgement.exit_code == int(code)

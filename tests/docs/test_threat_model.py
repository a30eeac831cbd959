"""Each row of the threat model's catalogue is backed by a test that exists, or says why the cheat is not stopped."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "threat-model.md"
MOST_OPEN = 5


def rows() -> list[list[str]]:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


STOPPED = [row for row in rows() if row[1] != "**opens**"]
OPEN = [row for row in rows() if row[1] == "**opens**"]


def test_the_threat_model_lists_enough_prevented_and_few_open_attacks() -> None:
    assert len(STOPPED) >= 20
    assert 0 < len(OPEN) <= MOST_OPEN


@pytest.mark.parametrize("row", STOPPED, ids=[row[0][:40] for row in STOPPED])
def test_a_prevented_attack_names_its_test_and_its_honest_counterpart(row: list[str]) -> None:
    _, verdict, mechanism, twin, test = row
    assert all((verdict, mechanism, twin))
    file, _, name = test.strip("`").partition("::")
    text = (ROOT / "tests" / "harness" / file).read_text(encoding="utf-8")
    assert re.search(rf"^def {re.escape(name)}\(", text, re.MULTILINE)


@pytest.mark.parametrize("row", OPEN, ids=[row[0][:40] for row in OPEN])
def test_an_attack_that_opens_the_gate_explains_why(row: list[str]) -> None:
    assert row[2].startswith("not in this mode: ")

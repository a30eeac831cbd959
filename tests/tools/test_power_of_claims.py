"""The table of the chances that timed claims are decided."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import power_of_claims
import pytest


class Recorded:
    """Stands for processes by which a claim is decided at 1.15 times what it demands, and not at 1.05."""

    def power(self, part: Any, true_ratio: float) -> float:
        return float(true_ratio > 1.1 * part.at_least)


def timing(claim: str) -> Any:
    part = SimpleNamespace(at_least=2.0, process_count=lambda: 8)
    return SimpleNamespace(contract="c", claim=claim, workload="small", run="one-run", part=part, recorded=Recorded())


def test_a_unit_has_a_row_and_one_without_a_run_says_so() -> None:
    rows = power_of_claims.table([timing("A")], [("c", "A", "small"), ("c", "B", "small")]).splitlines()
    assert rows[2:] == [
        "| A | small | 2 | 8 | one-run | 0 % | 100 % | 100 % |",
        "| B | small | – | – | none published | – | – | – |",
    ]


def test_a_page_keeps_its_words_around_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(power_of_claims, "published", lambda: "the table")
    page = f"before\n{power_of_claims.BEGIN}\nnothing\n{power_of_claims.END}\nafter"
    assert power_of_claims.filled(page) == (
        f"before\n{power_of_claims.BEGIN}\n\nthe table\n\n{power_of_claims.END}\nafter"
    )

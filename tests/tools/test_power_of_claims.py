"""The table of the chances that timed claims are decided."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import power_of_claims
import pytest
from page_tables import filled


class Recorded:
    """Stands for processes by which a claim is decided at 1.15 times what it demands, and not at 1.05."""

    def power(self, part: Any, true_ratio: float) -> float:
        return float(true_ratio > 1.1 * part.at_least)


def timing(claim: str) -> Any:
    part = SimpleNamespace(at_least=2.0, process_count=lambda: 8)
    return SimpleNamespace(contract="c", claim=claim, workload="small", run="one-run", part=part, recorded=Recorded())


def test_each_unit_has_a_row_of_its_power_or_the_note_that_no_run_is_published() -> None:
    rows = power_of_claims.chances([timing("A")], [("c", "A", "small"), ("c", "B", "small")]).splitlines()
    assert rows[2:] == [
        "| A | small | 2 | 8 | one-run | 0 % | 100 % | 100 % |",
        "| B | small | – | – | none published | – | – | – |",
    ]


@pytest.mark.parametrize("old", ["", "nothing\n", "\nthe table\n\n"])
def test_filling_a_table_keeps_the_text_around_it(old: str) -> None:
    page = f"before\n<!-- tables: by a command -->\n{old}<!-- end of tables -->\nafter"
    expected = "before\n<!-- tables: by a command -->\n\nthe table\n\n<!-- end of tables -->\nafter"
    assert filled(page, "the table") == expected


def test_a_page_without_table_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="has 0"):
        filled("before\nafter", "the table")

"""The scorecard: which answer to a bug and to a correct trainer counts as right."""

from __future__ import annotations

from pathlib import Path

import pytest
from field_bug_results import Said
from scorecard import RIGHT, UNDECIDED, WRONG, answer_to_bug, answer_to_correct, first_dates, keep_date, release_of

HELD = Said("REPEATS", "PASS", "held")
FAILED = Said("WITHIN", "FAIL", "exceeds_tolerance")
OPEN = Said("WITHIN", "INCONCLUSIVE", "other_random_numbers")


@pytest.mark.parametrize(
    ("buggy", "mended", "of_bug", "of_correct"),
    [
        ([HELD, FAILED], [HELD], RIGHT, RIGHT),
        ([HELD], [HELD], WRONG, RIGHT),
        ([HELD, FAILED], [HELD, FAILED], WRONG, WRONG),
        ([HELD, OPEN], [HELD, OPEN], UNDECIDED, UNDECIDED),
        ([FAILED, OPEN], [FAILED, OPEN], WRONG, WRONG),
    ],
    ids=["found", "missed", "failed in the same words", "undecided", "accused and undecided"],
)
def test_the_scorecard_answers_follow_from_the_verdicts(
    buggy: list[Said], mended: list[Said], of_bug: str, of_correct: str
) -> None:
    assert answer_to_bug({"buggy": buggy, "mended": mended}) == of_bug
    assert answer_to_correct(mended) == of_correct


def test_a_release_applies_from_its_date_on() -> None:
    changelog = "## Unreleased\n\n## 0.2.0 (2026-12-01)\n\n## 0.1.0 (2026-11-20)\n"
    days = ("2026-11-19", "2026-11-20", "2026-12-05")
    assert [release_of(day, changelog) for day in days] == ["none", "0.1.0", "0.2.0"]


def test_a_new_date_is_added_to_the_stored_dates(tmp_path: Path) -> None:
    path = tmp_path / "first_tries.csv"
    path.write_text("name,date\nb,2026-11-23\n")
    keep_date("a", "2026-11-29", path)
    assert path.read_text() == "name,date\na,2026-11-29\nb,2026-11-23\n"
    assert first_dates(path) == {"a": "2026-11-29", "b": "2026-11-23"}

"""A column of digests behaves as the list of its texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from harness.evidence.files import Damaged
from harness.evidence.read_run import DigestColumn, distinct, read_series

TEXTS = ["b0", "b1", "", "b1"]


def column(texts: Sequence[str]) -> DigestColumn:
    return DigestColumn(np.array(texts, dtype="S4"))


def test_a_digest_column_reads_like_the_list_of_its_texts() -> None:
    digests = column(TEXTS)
    assert list(digests) == TEXTS
    assert (digests[0], digests[-1], len(digests)) == ("b0", "b1", 4)
    assert list(digests[1:3]) == ["b1", ""]


def test_a_digest_column_contains_only_its_own_digests() -> None:
    assert "" in column(TEXTS)
    assert "" not in column(["b0"])
    assert "b2" not in column(TEXTS)
    assert "\xe9" not in column(TEXTS)


def test_a_digest_column_equals_columns_and_lists_of_the_same_digests() -> None:
    assert column(TEXTS) == column(TEXTS)
    assert column(TEXTS) == TEXTS
    assert column(TEXTS) != column(["b0", "b1", "", "b2"])
    assert column(TEXTS) != column(TEXTS[:3])
    assert column(TEXTS) != ["b0"]


@pytest.mark.parametrize("texts", [column(TEXTS), TEXTS], ids=["column", "list"])
def test_the_distinct_digests_of_a_column_are_counted(texts: Sequence[str]) -> None:
    assert distinct(texts) == 3


HEADER = "step,loss,batch_digest,clip_active_groups,tokens\n"


@pytest.mark.parametrize(
    ("rows", "digests", "kind"),
    [
        ("0,1.5,ab,0,1\n1,2.5,cd,0,1\n", ["ab", "cd"], DigestColumn),
        ("0,1.5,ab,0,1\n1,2.5,c,0,1\n", ["ab", "c"], DigestColumn),
        ("0,1.5,ab,0,1\n1,2.5,abc,0,1\n", ["ab", "abc"], list),  # longer than the first: never cut
        ("0,1.5,,0,1\n1,2.5,,0,1\n", ["", ""], DigestColumn),
    ],
    ids=["equal widths", "a shorter one", "a longer one", "no digests"],
)
def test_digests_of_any_width_are_read_completely(tmp_path: Path, rows: str, digests: list[str], kind: type) -> None:
    (tmp_path / "a.csv").write_text(HEADER + rows)
    series = read_series(tmp_path / "a.csv")
    assert list(series.batch_digest) == digests
    assert type(series.batch_digest) is kind
    assert series.loss.tolist() == [1.5, 2.5]


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ("0,1.5,ab,0,1\n\n", "6 fields in 2 rows"),
        ("0,1.5,ab,0,1.0\n", "invalid literal for int"),
        ("0,1.5,ab,0,1\r1,2.5,ab,0,1\n", "9 fields in 1 row,"),
        ("0,1.5,ab,0,1\n1,2.5,ab,0,1\r2,3.5,ab,0,1\n", "14 fields in 2 rows"),
        ("0,1.5,ab,0,1\n1,,ab,0,1\n", "could not convert"),
    ],
    ids=["an empty line", "a float for an integer", "a carriage return", "one in a later row", "no loss"],
)
def test_a_series_that_a_fast_parser_would_accept_is_reported_as_damaged(tmp_path: Path, rows: str, found: str) -> None:
    (tmp_path / "a.csv").write_text(HEADER + rows)
    with pytest.raises(Damaged, match=found):
        read_series(tmp_path / "a.csv")

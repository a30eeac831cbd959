"""A number with its noun is `numbers.counted`: `1 unit`, `2 units`, in what commands print and reports show."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise

import pytest
from import_statements import ROOT
from syntax_trees import parsed

FOLDERS = ("cli", "drill", "forecast", "extras/fleet", "pytest_plugin", "report")
SOURCES = sorted(
    [path for folder in FOLDERS for path in (ROOT / "harness" / folder).rglob("*.py")]
    + list((ROOT / "harness" / "kinds").rglob("*section.py"))
)
# words that end as plurals do, behind a value that is no number
NO_NOUNS = {
    "has",
    "differs",
    "is",
    "was",
    "this",
    "does",
    "says",
    "needs",
    "lacks",
    "holds",
    "as",
    "its",
    "names",
    "side",
}
NEVER_ONE = {
    "{asked} runs": "a verb, behind the name of an option",
    "{run.processes} processes": "said of several alone",
    "{figure.value} processes": "an estimate beyond those that there were",
    "{size} bytes": "of an archive",
    "{violated} units": "said of several alone",
    "{foreign} other processes": "said of none or several",
    "{parts} parts": "said of several alone",
    "{of} arms": "said of several alone",
    "{len(cells)} parts": "of a page of several",
    "{claim.last} steps": "said of several alone",
    "{tokens} tokens": "of sequences",
    "{FEWEST} steps": "a constant of several",
    "{number(ratio)} times": "a ratio, of 1.5 or more",
    "{bound} times": "a ratio",
    "{apart} times": "a ratio",
    "{claim.at_most_ratio} times": "a ratio",
    "{len(text)} characters": "said of what is too long",
}


def uncounted(source: str) -> Iterator[str]:
    """`line: {value} nouns` for each f-string that puts a plural behind a value that may be one."""
    for node in ast.walk(parsed(source)):
        if not isinstance(node, ast.JoinedStr):
            continue
        for value, text in pairwise(node.values):
            if not isinstance(value, ast.FormattedValue) or not isinstance(text, ast.Constant):
                continue
            noun = re.match(r" (?:[a-z]+ )??([a-z]{2,}s)\b", str(text.value))
            shown = f"{{{ast.unparse(value.value)}}}{noun[0]}" if noun else ""
            if shown.startswith(("{counted(", "{several(", "{was(")):
                continue
            if noun and noun[1] not in NO_NOUNS and not noun[1].endswith("ss") and shown not in NEVER_ONE:
                yield f"{node.lineno}: {shown}"


def test_every_counted_noun_in_the_sources_agrees_with_its_number() -> None:
    assert len(SOURCES) > 60
    assert {path: found for path in SOURCES if (found := [*uncounted(path.read_text(encoding="utf-8"))])} == {}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('f"{n} units"', ["1: {n} units"]),
        ('f"all {len(x)} planned faults were"', ["1: {len(x)} planned faults"]),
        ("f\"{counted(n, 'unit')} of {name} is there\"", []),
        ('f"{unit} has no kernels"', []),
        ('f"{seconds:.1f} s"', []),
    ],
)
def test_a_plural_noun_after_a_placeholder_number_is_found(source: str, found: list[str]) -> None:
    assert list(uncounted(source)) == found

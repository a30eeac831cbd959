"""Every test that is no contract's and needs no GPU is in one of two suites, `make test` and `make test-slow`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection
from itertools import chain, combinations
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

ROOT = Path(__file__).parents[1]
OPTIONS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
MARKS = ["contract", *(marker.partition(":")[0] for marker in OPTIONS["markers"])]  # the plugin adds the first
SUITES = dict(re.findall(r'^(test|test-slow): install\n\t.* -m "(.+?)"', (ROOT / "Makefile").read_text(), re.MULTILINE))
FAST, SLOW = "not contract and not gpu and not slow", "slow and not contract and not gpu"


def takes(expression: str, marks: Collection[str]) -> bool:
    def has(name: str, /, **_: str | int | bool | None) -> bool:
        return name in marks

    return Expression.compile(expression).evaluate(has)


def not_in_one(suites: Collection[str]) -> list[tuple[str, ...]]:
    """Marks of a test that none of these expressions takes, or several; or one, of a contract's test or a GPU's."""
    every = chain.from_iterable(combinations(MARKS, size) for size in range(len(MARKS) + 1))
    return [
        marks for marks in every if sum(takes(each, marks) for each in suites) != (not {"contract", "gpu"} & {*marks})
    ]


def test_each_test_belongs_to_exactly_one_of_the_two_suites() -> None:
    assert set(SUITES) == {"test", "test-slow"}
    assert not_in_one(SUITES.values()) == []


@pytest.mark.parametrize(
    ("suites", "wrong"),
    [
        ((FAST,), [("slow",)]),
        ((FAST, SLOW.replace("slow", "slwo")), [("slow",)]),
        ((FAST.replace(" and not slow", ""), SLOW), [("slow",)]),
        ((FAST, "slow and not contract"), [("gpu", "slow")]),
        ((FAST.replace("not gpu", "gpu"), SLOW), [(), ("gpu",)]),
    ],
)
def test_a_marker_expression_that_misses_tests_is_found(suites: tuple[str, ...], wrong: list[tuple[str, ...]]) -> None:
    assert not_in_one(suites) == wrong


def test_ci_runs_both_test_suites_and_skips_no_tool() -> None:
    made = re.findall(r"^ *(.*?)make (.*\btest.*)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert made == [("REQUIRE_TOOLS=1 ", "--keep-going test test-slow")]

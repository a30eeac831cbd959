"""Every claim of upstream's contracts is listed: counted here anew, from what PyYAML reads, by rules of its own.

The excerpts in docs/upstream have the structure of upstream's files (in the folder `$UPSTREAM_CONTRACTS`).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.extras.upstream.importing import Imported, import_files
from harness.extras.upstream.items import NOT_NAMED

EXCERPTS = Path(__file__).parents[3] / "docs" / "upstream" / "excerpts"
EACH = {  # an item of one of these lists, or an entry of one of these mappings, is a claim
    *("falsification_tests", "proof_obligations", "kani_harnesses", "obligations", "validation_rules", "upper_bounds"),
    *("invariants", "preconditions", "postconditions", "checks", "required_tests", "phases", "layer_steps", "metrics"),
    *("enforcement", "ci_integration"),
}
ONE = {"pass_criteria", "min_coverage", "max_complexity", "parity_gate"}
TOTALS = {
    "invariants": 229,
    "falsification_tests": 151,
    "proof_obligations": 134,
    "checks": 82,
    "kani_harnesses": 54,
    "preconditions": 26,
    "phases": 20,
    "required_tests": 17,
    "falsification": 16,
    "postconditions": 16,
    "pass_criteria": 15,
    "layer_steps": 14,
    "enforcement": 12,
    "min_coverage": 5,
    "max_complexity": 5,
    "metrics": 5,
    "ci_integration": 3,
    "parity_gate": 1,
}


@pytest.fixture(scope="module", params=["excerpts", "files"])
def folder(request: pytest.FixtureRequest) -> Path:
    if request.param == "excerpts":
        return EXCERPTS
    if "UPSTREAM_CONTRACTS" not in os.environ:
        pytest.skip("UPSTREAM_CONTRACTS names no folder with upstream's files")
    return Path(os.environ["UPSTREAM_CONTRACTS"])


@pytest.fixture(scope="module")
def imported(folder: Path) -> list[Imported]:
    imported, errors = import_files([folder])
    assert errors == []
    return imported


def counted(value: Any) -> Iterator[tuple[str, int]]:
    """Claims by the key they stand under, at any depth."""
    if isinstance(value, list):
        for one in value:
            yield from counted(one)
    elif isinstance(value, dict):
        for key, one in value.items():
            if key in EACH:
                yield key, len(one)
            elif key in ONE:
                yield key, 1
            elif key == "falsification":
                yield key, len(one) if isinstance(one, list) else 1
            else:
                yield from counted(one)


def recount(path: Path) -> Counter[str]:
    """Of one file."""
    counts: Counter[str] = Counter()
    for key, number in counted(yaml.safe_load(path.read_text(encoding="utf-8"))):
        counts[key] += number
    return counts


def test_every_claim_of_every_upstream_file_is_an_item(imported: list[Imported]) -> None:
    for each in imported:
        assert Counter(item.section for item in each.contract.items) == recount(each.contract.path), each.contract.path


def test_an_upstream_item_is_either_executable_or_unchecked(imported: list[Imported]) -> None:
    for each in imported:
        listed = [item.where for item, _ in [*each.executable, *each.unchecked]]
        assert sorted(listed) == sorted(item.where for item in each.contract.items)


def test_the_upstream_totals_count_thirty_imported_files(imported: list[Imported]) -> None:
    assert len(imported) == 30
    assert Counter(item.section for each in imported for item in each.contract.items) == TOTALS


def test_every_key_of_the_upstream_files_has_a_known_form(imported: list[Imported]) -> None:
    assert {one.why for each in imported for one in each.contract.left_out if one.why == NOT_NAMED} == set()

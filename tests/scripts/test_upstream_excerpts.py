"""An excerpt keeps a file's structure, ids, numbers and first words, and no other text of its author's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml
from upstream_excerpts import EXCERPTS, LONGEST, excerpt

from harness.contract import strict_yaml


def test_ids_numbers_and_claims_are_kept_and_other_texts_left_out() -> None:
    item = {"id": "F-1", "rule": "a  b", "tolerance": 0.5, "if_fails": "long story", "test": ["one", "two"]}
    assert excerpt({"falsification_tests": [item], "invariants": ["x" * (LONGEST + 1)]}) == {
        "falsification_tests": [
            {"id": "F-1", "rule": "a b", "tolerance": 0.5, "if_fails": "…", "test": ["…", "…"]},
        ],
        "invariants": ["x" * LONGEST + "…"],
    }


def test_the_excerpts_are_of_upstreams_files() -> None:
    if "UPSTREAM_CONTRACTS" not in os.environ:
        pytest.skip("UPSTREAM_CONTRACTS names no folder with upstream's files")
    folder = Path(os.environ["UPSTREAM_CONTRACTS"])
    for path in sorted(EXCERPTS.rglob("*.yaml")):
        whole = strict_yaml.read(folder / path.relative_to(EXCERPTS)).value
        assert yaml.safe_load(path.read_text(encoding="utf-8")) == excerpt(whole), path

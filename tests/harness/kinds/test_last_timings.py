"""The last published timing of each claim, whose noise gives the chance that a new one is decided."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.api.last_timing import last_timings
from harness.contract.load import load_contracts
from harness.run_directory.bundle import read_bundle

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module", autouse=True)
def bundles_read_once() -> Iterator[None]:
    """Published runs are unpacked once for the tests that look for the last timing among them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.api.last_timing.read_bundle", functools.cache(read_bundle))
        yield


def test_the_newest_published_run_of_a_claim_counts() -> None:
    loaded = load_contracts([ROOT / "contracts" / "cuda-graph-backward-v1.yaml"])
    found = last_timings([one.contract for one in loaded], [ROOT / "reports"])
    by_unit = {(one.claim, one.workload): one.run for one in found}
    assert by_unit["F-GRAPH-BWD-003", "tiny"] == "2026-12-01-h200-gate-backward"
    assert len(by_unit) == len(found)


def test_a_bound_with_cases_is_that_of_the_workload(tmp_path: Path) -> None:
    contract = Path(shutil.copytree(ROOT / "contracts", tmp_path / "contracts"), "cuda-graph-backward-v1.yaml")
    by_case = "at_least: {otherwise: 1.10, cases: [{workload: tiny, value: 1.5}]}"
    contract.write_text(contract.read_text().replace("at_least: 1.10\n", f"{by_case}\n", 1))
    found = last_timings([one.contract for one in load_contracts([contract])], [ROOT / "reports"])
    demanded = {one.workload: one.part.at_least for one in found if one.claim == "F-GRAPH-BWD-003"}
    assert demanded == {"tiny": 1.5, "qwen2-1.5b-128": 1.1}


def test_a_reports_folder_without_runs_gives_no_timings(tmp_path: Path) -> None:
    loaded = load_contracts([ROOT / "contracts" / "cuda-graph-backward-v1.yaml"])
    assert last_timings([one.contract for one in loaded], [tmp_path, tmp_path / "absent"]) == []

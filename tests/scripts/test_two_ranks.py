"""The script of two ranks names what the contract has, and a part that outlasts its limit costs no other."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import pytest
import two_ranks

from harness.contract.load import load_contracts


def test_parts_name_claims_and_workloads_of_the_contract() -> None:
    """Together they verify every unit that needs GPUs."""
    (loaded,) = load_contracts([two_ranks.ROOT / two_ranks.CONTRACT])
    contract, verified = loaded.contract, set[tuple[str, str]]()
    on_gpus = {name for name, workload in contract.workloads.items() if workload.needs.gpus == two_ranks.RANKS}
    judged_on = {claim.id: on_gpus & set(claim.judged_on) for claim in contract.claims}
    for arguments, _ in two_ranks.PARTS.values():
        pairs = list(pairwise(arguments))
        workloads = {value for option, value in pairs if option == "--workload"}
        for claim in (value for option, value in pairs if option == "--claim"):
            verified |= {(claim, workload) for workload in workloads or judged_on[claim]}
    assert verified == {(claim, workload) for claim, names in judged_on.items() for workload in names}


def test_a_part_is_ended_by_its_limit_and_the_next_one_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {"slow": (["-c", "import time; time.sleep(60)"], 0.5), "quick": (["-c", "print('here')"], 60.0)}
    monkeypatch.setattr(two_ranks, "PARTS", parts)
    monkeypatch.setattr(sys, "argv", ["two_ranks.py", str(tmp_path)])
    two_ranks.main()
    lines = (tmp_path / two_ranks.SUMMARY).read_text().splitlines()
    assert [line.partition(', "seconds"')[0] for line in lines] == [
        '{"part": "slow", "status": null',
        '{"part": "quick", "status": 0',
    ]
    assert "here" in (tmp_path / two_ranks.LOG).read_text()

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
    contract, verified, drilled = loaded.contract, set[tuple[str, str]](), set[str]()
    on_gpus = {name for name, workload in contract.workloads.items() if workload.needs.gpus == two_ranks.RANKS}
    judged_on = {claim.id: on_gpus & set(claim.judged_on) for claim in contract.claims}
    for arguments, _, _ in two_ranks.PARTS.values():
        pairs = list(pairwise(arguments))
        workloads = {value for option, value in pairs if option == "--workload"}
        claims = {value for option, value in pairs if option == "--claim"}
        if "verify" in arguments:
            verified |= {(claim, workload) for claim in claims for workload in workloads or judged_on[claim]}
        elif "drill" in arguments:
            assert not workloads  # it has no such option
            drilled |= claims
    assert verified == {(claim, workload) for claim, names in judged_on.items() for workload in names}
    assert drilled == {claim for claim, names in judged_on.items() if names}


def test_each_part_belongs_to_one_call_that_fits_into_its_time() -> None:
    named = [name for parts in two_ranks.CALLS.values() for name in parts]
    assert sorted(named) == sorted(two_ranks.PARTS)
    for parts in two_ranks.CALLS.values():
        assert sum(two_ranks.PARTS[name].needs_s for name in parts) <= 9 * 60


def test_a_part_is_ended_by_its_limit_and_the_next_one_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {
        "slow": two_ranks.Part(["-c", "import time; time.sleep(600)"], 0.0, 0.5),
        "quick": two_ranks.Part(["-c", "print('here')"], 1.0, 60.0),
        "long": two_ranks.Part(["-c", "raise SystemExit('begun')"], 600.0, 600.0),
    }
    monkeypatch.setattr(two_ranks, "PARTS", parts)
    monkeypatch.setattr(sys, "argv", ["two_ranks.py", str(tmp_path)])
    two_ranks.main()
    lines = (tmp_path / two_ranks.SUMMARY).read_text().splitlines()
    assert [line.partition(', "seconds"')[0] for line in lines] == [
        '{"part": "slow", "status": null',
        '{"part": "quick", "status": 0',
        '{"part": "long", "status": "no time left"',
    ]
    assert "here" in (tmp_path / two_ranks.LOG).read_text()

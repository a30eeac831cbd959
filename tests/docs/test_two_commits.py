"""The page about two commits: its contract is one, of no more lines than it says, and every code it names exists."""

from __future__ import annotations

import re
from pathlib import Path

from harness.contract.accepted_baselines import find_accepted
from harness.contract.load import load_contract
from harness.contract.signed_entries import unmatched
from harness.judging.reasons import reason_of

PAGE = Path(__file__).parents[2] / "docs" / "two-commits.md"


def test_the_ten_line_contract_on_the_page_can_be_loaded(tmp_path: Path) -> None:
    text, accepted = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(text.splitlines()) <= 10
    (tmp_path / "as-main.yaml").write_text(text)
    (tmp_path / "accepted-baselines.yaml").write_text(accepted)
    loaded = load_contract(tmp_path / "as-main.yaml")
    assert unmatched(find_accepted([tmp_path]), [loaded], all_known=True) == []
    contract = loaded.contract
    assert [claim.kind for claim in contract.claims] == ["trajectory_match", "throughput_ratio"]
    assert contract.arms["here"] == contract.arms["main"]


def test_codes_named_on_the_two_commits_page_exist() -> None:
    named = re.findall(r"(?:NOT_RUN|ERROR) `([a-z_]+)`", PAGE.read_text(encoding="utf-8"))
    assert set(named) == {"one_commit_a_process", "needs_baseline", "system_not_described", "capability_missing"}
    assert [name for name in named if reason_of(name) is None] == []

"""What is planted in recorded evidence reaches every rank's."""

from __future__ import annotations

from typing import Any

import pytest
from evidence_builders import verdict_of
from judge_cases_ranks import AGREE, MATCH, one, rank_of, run_of

from harness.drill.faults import NO_STEPS, without_steps


@pytest.mark.parametrize("claim", [AGREE, MATCH], ids=["ranks_agree", "ranks_match"])
def test_the_no_steps_fault_gets_its_declared_verdict_for_claims_about_ranks(claim: dict[str, Any]) -> None:
    verdict = verdict_of(claim, without_steps(run_of(rank_of(0), rank_of(1), beside=[one()])))
    assert (verdict.status, verdict.reason) == (NO_STEPS.expected.status, NO_STEPS.expected.reason)
    assert verdict.figures["steps_run"].value == 0

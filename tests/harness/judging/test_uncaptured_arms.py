"""An arm that must be uncaptured and captures passes in no claim that names it, whatever its kind.

The counts stand where every recorder writes them: `tests/harness/execution/test_secret_captures.py` holds that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from evidence_builders import TRAJECTORY, contract_of, counted
from evidence_paths import Judged, recorded
from judge_cases_tables import EVERYTHING

from harness.contract.schema import Contract, parts_of
from harness.evidence.run_evidence import RunEvidence
from harness.judging.verdict import Status

BESIDE = contract_of(TRAJECTORY | {"id": "BESIDE"}).claims[0]  # a plain baseline and control, a captured candidate
# Kinds of which no arm must be uncaptured, or whose arms leave no record of an end.
NONE = {"capture", "memory_steady", "kernel_match", "prewarm", "ptx_target"}


def uncaptured(judged: Judged) -> set[str]:
    """The arms declared so that a part names next to a captured one, or alone, or that `BESIDE` holds against one."""
    contract, found = judged.contract, {*BESIDE.arms().values()}
    for part in parts_of(judged.claim):
        arms = part.arms()
        candidate = arms[part.candidate_path]
        captured = contract.arms[candidate].capture != "none" or part.mechanism or judged.claim.mechanism
        others = {*arms.values()} - {candidate}
        found |= others if captured else set()
        found |= set() if captured or others else {candidate}
    named = {arm for part in parts_of(judged.claim) for arm in part.arms().values()}
    return {arm for arm in found & named if contract.arms[arm].capture == "none"}


def beside(contract: Contract) -> Contract:
    return contract.model_copy(update={"claims": [*contract.claims, BESIDE]})


def with_count(judged: Judged, arm: str, attempts: int, failed: int = 0) -> Judged:
    def of_run(run: RunEvidence) -> RunEvidence:
        seen = [counted(one, attempts, failed) for one in run.arms.get(arm, ())]
        arms = {name: seen if name == arm else each for name, each in run.arms.items()}
        return replace(run, arms=arms, ranks=tuple(map(of_run, run.ranks)))

    return judged._replace(evidence=[of_run(run) for run in judged.evidence])


def held(kind: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Judged]:
    for case in EVERYTHING[kind]:
        judged = recorded(case, monkeypatch) if case.reason == "held" else None
        judged = judged and judged._replace(contract=beside(judged.contract))
        if judged is not None and judged.verdict().status is Status.PASS:
            yield judged


@pytest.mark.parametrize("kind", sorted({*EVERYTHING} - NONE))
def test_an_arm_that_must_be_uncaptured_and_captures_never_passes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = 0
    for judged in held(kind, monkeypatch):
        for arm in sorted(uncaptured(judged)):
            tried += 1
            failed = with_count(judged, arm, 1, failed=1)
            captured = with_count(judged, arm, 9).verdict()
            own = "captured_unasked" if kind == "capture_fallback" else "vacuous_baseline_captured"
            assert captured.reason == own, (arm, captured.message)
            assert captured.mechanism == judged.verdict().mechanism
            assert captured.decided is None or own == "captured_unasked"
            assert failed.verdict().status is Status.PASS or own == "captured_unasked", "a capture that failed is none"
    assert tried


@pytest.mark.parametrize("kind", sorted(NONE & {*EVERYTHING}))
def test_only_the_tested_claim_kinds_have_arms_that_must_be_uncaptured(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not any(uncaptured(judged) for judged in held(kind, monkeypatch) if judged.claim.kind == kind)

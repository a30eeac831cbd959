"""A run that was cut short, in all its arms alike, holds no claim: the steps that are gone may have been wrong."""

from __future__ import annotations

from typing import Any

import pytest
from evidence_builders import STEPS, TRAJECTORY, contract_of, graphed, paired, twice
from evidence_paths import Judged, recorded
from judge_cases_tables import ONE_WRONG_THING

from harness.judging.registry import judge_unit

# What chooses its steps itself, or trains none.
OTHERS = {"any", "throughput_ratio", "ptx_target", "prewarm", "kernel_match"}


def held(kind: str, monkeypatch: pytest.MonkeyPatch) -> list[Judged]:
    """Whatever the kind's cases hold."""
    found = [recorded(case, monkeypatch) for case in ONE_WRONG_THING[kind] if case.reason == "held"]
    return [each for each in found if each is not None]


def with_steps(judged: Judged, more: int) -> Judged:
    """Under a workload of so many steps more."""
    workloads = {
        name: each.model_copy(update={"steps": each.steps + more}) for name, each in judged.contract.workloads.items()
    }
    return judged._replace(contract=judged.contract.model_copy(update={"workloads": workloads}))


@pytest.mark.parametrize("more", [1, -1])
@pytest.mark.parametrize("kind", sorted(set(ONE_WRONG_THING) - OTHERS))
def test_a_run_with_more_or_fewer_steps_than_its_workload_is_an_evidence_error(
    kind: str, more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = [each for each in held(kind, monkeypatch) if each.evidence[0].probe != "recapture" and not ended(each)]
    assert trained
    for judged in trained:
        verdict = with_steps(judged, more).verdict()
        assert (verdict.reason, verdict.status) == ("evidence_missing", "ERROR"), verdict.message
        assert "but its workload has" in verdict.message


def ended(judged: Any) -> bool:
    """A training that ends by itself has fewer steps than any workload."""
    executions = [each for run in judged.evidence for arm in run.arms.values() for each in arm]
    return any(each.long_replay is not None and each.long_replay.ended for each in executions)


@pytest.mark.parametrize("kind", sorted(OTHERS - {"any"}))
def test_a_probe_that_chooses_its_own_steps_is_not_checked_against_the_workload(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for judged in held(kind, monkeypatch):
        assert with_steps(judged, 1).verdict().reason == "held"


def test_recaptures_are_not_compared_with_the_steps_of_the_workload(monkeypatch: pytest.MonkeyPatch) -> None:
    again = [each for each in held("memory_steady", monkeypatch) if each.evidence[0].probe == "recapture"]
    assert again
    assert {with_steps(each, 1).verdict().reason for each in again} == {"held"}


def test_a_series_that_lacks_steps_is_an_evidence_error_unless_its_present_steps_differ() -> None:
    steps = 2 * STEPS
    contract = contract_of(TRAJECTORY | {"guards": {"steps": STEPS}}, steps=steps)

    def judged(ours: list[float], theirs: list[float]) -> str:
        run = paired(*twice("ungraphed", theirs), graphed(ours))
        return judge_unit(contract, contract.claims[0], "w", [run]).reason

    losses = [3.0 - step / steps for step in range(steps)]
    spoiled = [*losses[:STEPS], *(3 * loss for loss in losses[STEPS:])]
    assert judged(losses, losses) == "held"
    assert judged(spoiled, losses) == "differs"
    assert judged(spoiled[:STEPS], losses[:STEPS]) == "evidence_missing"
    assert judged(spoiled[:STEPS], [*losses[: STEPS - 1], 0.0]) == "differs"

"""Run directories joined: the earliest attempt counts, and shards that do not belong together are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from bundle_builders import LOADED, RUN_ID, Loaded, finished, header, unit

from harness.errors import EvidenceError
from harness.evidence.base import Obstacle
from harness.evidence.run_evidence import RunEvidence
from harness.evidence.run_records import ArmFailed
from harness.run_directory.bundle import Header
from harness.run_directory.shards import attempts

EARLY, LATE = "2026-11-20T10:00:00Z", "2026-11-20T11:00:00Z"


def test_a_merged_gate_plans_every_unit_of_the_contracts(tmp_path: Path) -> None:
    shards = [finished(tmp_path / str(n), header(started_at=at)) for n, at in enumerate((LATE, EARLY))]
    first, second = attempts(shards, [LOADED.contract])
    assert first.unit == unit("C")
    assert first.bundle == shards[1]  # the earliest attempt, whatever the order on the command line
    assert second.unit.claim == "D"
    assert second.unit.obstacle is not None
    assert second.unit.obstacle.reason == "not_planned"
    assert (second.evidence, second.bundle) == ([], None)


@pytest.mark.parametrize("planned", [True, False])
def test_a_shard_of_a_machine_that_could_not_run_a_unit_is_not_an_attempt(tmp_path: Path, *, planned: bool) -> None:
    obstacle = Obstacle(reason="needs_cuda", message="needs CUDA")
    early = header(unit(obstacle=obstacle) if planned else unit(), started_at=EARLY)
    without = finished(tmp_path / "cpu", early, obstacle=None if planned else obstacle)
    with_gpu = finished(tmp_path / "gpu", header(started_at=LATE))
    assert attempts([without, with_gpu], [LOADED.contract])[0].bundle == with_gpu


@pytest.mark.parametrize(("arm", "again"), [("graphed", True), ("plain", False)])
def test_a_machine_without_an_arm_makes_no_attempt_at_claims_that_name_the_arm(
    tmp_path: Path, arm: str, *, again: bool
) -> None:
    """Claim C names only the arm `graphed`."""
    shards = [finished(tmp_path / at[11:13], header(started_at=at)) for at in (EARLY, LATE)]
    obstacle = Obstacle(reason="not_available", message="not here")
    evidence = RunEvidence(RUN_ID, "paired", {}, failed={arm: failed_arm(arm, obstacle)})
    shards[0]._read[RUN_ID] = evidence
    assert attempts(shards, [LOADED.contract])[0].bundle == shards[1 if again else 0]


def failed_arm(arm: str, obstacle: Obstacle) -> ArmFailed:
    return ArmFailed(arm=arm, cause="exception", detail="", phase=None, stack="", obstacle=obstacle)


def test_a_dead_first_attempt_is_not_replaced_by_a_repeat(tmp_path: Path) -> None:
    died = finished(tmp_path / "died", header(started_at=EARLY))
    (died.path / "evidence" / RUN_ID / "records.jsonl").unlink()
    repeat = finished(tmp_path / "repeat", header(started_at=LATE))
    attempt = attempts([repeat, died], [LOADED.contract])[0]
    assert attempt.bundle == died
    assert attempt.evidence[0].death is not None


@pytest.mark.parametrize(
    ("second", "loaded", "rule"),
    [
        (header(source="t"), LOADED, "shards must come from the same sources"),
        (header(fault="stale"), LOADED, "a shard of a gate must not plant a fault"),
        (
            header(loaded=Loaded(LOADED.contract, "id: c\n")),
            Loaded(LOADED.contract, "id: c\n"),
            "shards must judge the same contracts",
        ),
    ],
)
def test_shards_with_different_headers_are_refused_together(
    tmp_path: Path, second: Header, loaded: Loaded, rule: str
) -> None:
    shards = [finished(tmp_path / "one", header()), finished(tmp_path / "two", second, loaded=loaded)]
    with pytest.raises(EvidenceError, match=rule):
        attempts(shards, [LOADED.contract])


def test_a_single_drill_directory_can_be_judged_again(tmp_path: Path) -> None:
    bundle = finished(tmp_path / "drill", header(fault="stale"))
    assert len(attempts([bundle], [LOADED.contract])) == 1

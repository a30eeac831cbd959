"""What claims about peaks of memory and long replays may not say, and what follows from them."""

from __future__ import annotations

from typing import Any

import pytest
from planning import H200, NO_GPU, TRAJECTORY, planned
from pydantic import TypeAdapter, ValidationError

from harness.kinds.captures.model import LongReplay
from harness.kinds.memory.model import PeakMemory
from harness.kinds.trajectory.model import TrajectoryMatch

PEAK: dict[str, Any] = {
    "id": "P",
    "kind": "peak_memory",
    "candidate": "graphed",
    "baseline": "plain",
    "at_most_gib": 2.0,
    "trajectory": "T",
}
LONG: dict[str, Any] = {
    "id": "L",
    "kind": "long_replay",
    "candidate": "graphed",
    "baseline": "plain",
    "steps": 400,
    "every": 10,
    "after": 4,
}
LONG_WORKLOAD = {"w": {"model": "m", "batch_size": 4, "seq_len": 16, "steps": 400}}


def peak(**changes: Any) -> PeakMemory:
    given = {name: value for name, value in (PEAK | changes).items() if name != "id"}
    return TypeAdapter(PeakMemory).validate_python(given)


def long(**changes: Any) -> LongReplay:
    given = {name: value for name, value in (LONG | changes).items() if name != "id"}
    return TypeAdapter(LongReplay).validate_python(given)


@pytest.mark.parametrize("bounds", [{"at_most_gib": None}, {"at_most_ratio": 1.5}])
def test_a_peak_with_no_bound_or_two_bounds_is_refused(bounds: dict[str, Any]) -> None:
    with pytest.raises(
        ValidationError,
        match="the claim needs exactly one bound; give either `at_most_gib` or `at_most_ratio`, or write two",
    ):
        peak(**bounds)


def test_a_peak_memory_claim_can_fail_by_its_bounds_or_by_its_trajectory_claim() -> None:
    assert set(peak().demanded()) == {"at_most_gib", "outside_at_most_gib", "trajectory"}
    assert set(peak(at_most_gib=None, at_most_ratio=1.5).demanded()) == {
        "at_most_ratio",
        "outside_at_most_gib",
        "trajectory",
    }


def test_the_trajectory_named_by_a_peak_claim_must_be_in_the_contract() -> None:
    trajectory = TypeAdapter(TrajectoryMatch).validate_python(
        {name: value for name, value in TRAJECTORY.items() if name != "id"}
    )
    assert list(peak().dangling_names(["w"], {"T": [trajectory]})) == []
    [problem] = peak().dangling_names(["w"], {"S": [trajectory]})
    assert (problem.path, problem.got) == (("trajectory",), "'T'")


@pytest.mark.parametrize(("claim", "probe"), [(PEAK, "peak_memory"), (LONG, "long_replay")])
def test_each_arm_of_a_memory_claim_has_its_own_run(claim: dict[str, Any], probe: str) -> None:
    plan = planned(claim, TRAJECTORY, workloads_=LONG_WORKLOAD, machine=H200)
    runs = [run for run in plan.runs if run.probe == probe]
    assert [(list(run.arms), run.process) for run in runs] == [(["plain"], 0), (["graphed"], 1)]
    assert plan.units[0].runs == [run.id for run in runs]


def test_a_claim_about_peak_memory_needs_cuda_but_a_long_replay_needs_it_only_for_a_memory_bound() -> None:
    assert _obstacles(PEAK) == ["needs_cuda"]
    assert _obstacles(LONG) == [None]
    assert _obstacles(LONG | {"memory_growth_at_most_mib": 0.0}) == ["needs_cuda"]


def _obstacles(claim: dict[str, Any]) -> list[str | None]:
    units = planned(claim, TRAJECTORY, workloads_=LONG_WORKLOAD, machine=NO_GPU).units
    return [unit.obstacle.reason if unit.obstacle else None for unit in units if unit.claim == claim["id"]]


def test_a_long_replay_claim_can_fail_by_its_number_of_steps_and_by_each_stated_bound() -> None:
    assert set(long().demanded()) == {"steps"}
    whole = long(distinct_batches=9, memory_growth_at_most_mib=0.0, slowdown_at_most=0.1)
    assert set(whole.demanded()) == {"steps", "distinct_batches", "memory_growth_at_most_mib", "slowdown_at_most"}


def test_check_reports_a_long_replay_with_too_few_blocks_to_show_a_slowdown() -> None:
    assert list(long(slowdown_at_most=0.1).undecidable()) == []
    assert list(long(every=13).undecidable()) == []  # time is not judged
    [problem] = long(slowdown_at_most=0.1, every=12).undecidable()
    assert problem.rule.startswith(
        "29 blocks of 12 steps after the first 4 blocks cannot show whether steps become slower"
    )


def test_a_long_replay_requires_a_block_after_the_warm_up() -> None:
    assert list(long(memory_growth_at_most_mib=1.0, after=39).beyond(400)) == []
    [(path, _)] = long(memory_growth_at_most_mib=1.0, after=40).beyond(400)
    assert path == ("after",)

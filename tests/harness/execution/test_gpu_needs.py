"""Which runs use a GPU, and how much of its memory they may take beside others."""

from __future__ import annotations

from typing import Any

import pytest

from harness.contract.schema import Arm, Workload
from harness.evidence.plan_records import PlannedArm, Run
from harness.planning.obstacles import gpu_memory_gib, needs_gpu, shares_gpu


def make_run(probe: str = "paired", needs: dict[str, Any] | None = None, **settings: object) -> Run:
    return Run.model_validate(
        {
            "id": "r",
            "contract": "c",
            "probe": probe,
            "workload_name": "w",
            "workload": Workload.model_validate(
                {"model": "m", "batch_size": 1, "seq_len": 4, "steps": 3, "needs": needs or {}}
            ),
            "arms": {"plain": PlannedArm(arm=Arm(), system="a.b:C")},
            "settings": settings,
        }
    )


@pytest.mark.parametrize(
    ("run", "needed"),
    [
        (make_run(), True),
        (make_run(needs={"device": "cuda"}), True),
        (make_run(needs={"device": "cpu"}), False),
        (make_run("throughput", {"device": "cpu"}), False),
        (make_run("kernels", {"device": "cuda"}, target="device"), True),
        (make_run("kernels", {"device": "cuda"}, target="sm_90"), False),
        (make_run("prewarm", {"device": "cuda"}, target="sm_90"), True),
    ],
)
def test_the_work_of_a_run_determines_whether_the_run_needs_a_gpu(run: Run, needed: bool) -> None:
    assert needs_gpu(run) is needed


TWELVE = {"device": "cuda", "memory_gib": 12}


@pytest.mark.parametrize(
    ("run", "gib"),
    [
        (make_run(), None),
        (make_run(needs={"device": "cuda"}), None),
        (make_run(needs=TWELVE), 12.0),
        (make_run(needs={"memory_gib": 3}), 3.0),
        (make_run("throughput", TWELVE), 12.0),
        (make_run("peak_memory", TWELVE), None),
        (make_run("long_replay", TWELVE), 12.0),
        (make_run("prewarm", TWELVE, memory_filled=True), 24.0),
        (make_run("prewarm", TWELVE, memory_filled=False), 12.0),
        (make_run("prewarm", {"device": "cuda"}, memory_filled=True), None),
        (make_run(needs={"device": "cpu", "memory_gib": 12}), 0.0),
        (make_run("kernels", TWELVE, target="sm_90"), 0.0),
    ],
)
def test_the_gpu_memory_of_a_run_follows_from_its_declared_needs(run: Run, gib: float | None) -> None:
    assert gpu_memory_gib(run) == gib


@pytest.mark.parametrize(("needs", "gib"), [(TWELVE, None), ({"device": "cpu", "memory_gib": 12}, 0.0)])
def test_runs_with_several_ranks_do_not_share_their_gpus(needs: dict[str, Any], gib: float | None) -> None:
    one = make_run(needs=needs)
    two = one.model_copy(update={"arms": {"plain": PlannedArm(arm=Arm(ranks=2), system="a.b:C")}})
    assert (gpu_memory_gib(two), shares_gpu(two), shares_gpu(one)) == (gib, False, True)

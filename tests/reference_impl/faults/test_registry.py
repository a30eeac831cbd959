"""One registry of planted faults: each has a name of its own and changes the object of its hook, nothing else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.contract.schema import Needs
from harness.system.protocol import Arm, Expectation, Workload
from reference_impl.errors import ReferenceImplError
from reference_impl.faults import FAULTS, KERNELS, PLAN, REPLAY, STEP, change_of, plant
from reference_impl.faults.registry import Hook, fault
from reference_impl.system import QLoRASystem

WORKLOAD = Workload(model="tiny", batch_size=1, seq_len=8, steps=2, needs=Needs(device="cpu"))
BREAKS = {"capture": Expectation("FAIL", "not_captured")}


@pytest.mark.parametrize(
    ("name", "hook"),
    [("stale_batch", STEP), ("dropped_clip", STEP), ("moved_buffer", REPLAY), ("tf32_backward", KERNELS)],
)
def test_every_fault_of_the_reference_trainer_belongs_to_one_hook(name: str, hook: Hook[Any]) -> None:
    hooks: list[Hook[Any]] = [STEP, REPLAY, KERNELS, PLAN]
    assert [other.name for other in hooks if change_of(name, other) is not None] == [hook.name]


def test_a_fault_changes_only_the_object_of_its_hook() -> None:
    trainer = cast("Any", SimpleNamespace(clip=SimpleNamespace(apply_=None)))
    plant(None, STEP, trainer)
    plant("removed_clip", REPLAY, trainer)
    assert trainer.clip.apply_ is None
    plant("removed_clip", STEP, trainer)
    assert trainer.clip.apply_ is not None


def test_the_system_describes_every_registered_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reference_impl.faults.registry.FAULTS", registered := dict(FAULTS))
    monkeypatch.setattr("reference_impl.system.FAULTS", registered)

    @fault(PLAN, "a summary", BREAKS, plant_in="both", needs="cuda")
    def new_fault(_kernels: object) -> None:
        """Change nothing."""

    described = QLoRASystem().describe().faults
    assert described.keys() - FAULTS.keys() == {"new_fault"}
    planted = described["new_fault"]
    assert (planted.name, planted.summary, planted.plant, planted.needs) == ("new_fault", "a summary", "both", "cuda")
    assert planted.breaks == BREAKS


def test_two_faults_of_one_name_are_refused() -> None:
    def stale_batch(_trainer: object) -> None:
        """Change nothing."""

    before = dict(FAULTS)
    with pytest.raises(
        ValueError,
        match=r"two faults are named 'stale_batch', in "
        r"reference_impl.faults.step and here",
    ):
        fault(STEP, "another", BREAKS)(stale_batch)
    assert before == FAULTS


def test_an_unknown_fault_name_is_refused_wherever_a_fault_is_planted() -> None:
    system, arm = QLoRASystem(), Arm()
    with pytest.raises(ReferenceImplError, match=r"fault: got 'stale_bath'; choose one of .*stale_batch"):
        system.open(WORKLOAD, arm, fault="stale_bath")
    with pytest.raises(ReferenceImplError, match="fault: got 'stale_bath'"):
        system.kernel_cases(WORKLOAD, arm, fault="stale_bath")
    with pytest.raises(ReferenceImplError, match="fault: got 'stale_bath'"):
        system.cross_compiled(WORKLOAD, arm, "sm_90", fault="stale_bath")

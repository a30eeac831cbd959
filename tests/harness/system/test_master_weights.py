"""Optimizers that step on copies of what is trained: master weights are right, an optimizer of another model is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from claims_in_process import STEPS, judged
from master_systems import Flat, Listed, OfAnother, SameType

from harness.contract.schema import Arm, Workload
from harness.execution.watchers.state_watch import watched_state
from harness.judging.verdict import Status
from harness.system.adapter_checks import AdapterError

CLAIM: dict[str, Any] = {
    "id": "CLAIM",
    "title": "t",
    "why": "w",
    "if_fails": "f",
    "judged_on": ["w"],
    "kind": "trajectory_match",
    "candidate": "captured",
    "baseline": "plain",
    "equality": "bitwise",
    "max_abs_difference": 0.1,
    "guards": {"steps": STEPS},
}


@pytest.mark.parametrize("system", [Listed, Flat, SameType], ids=lambda system: system.__name__)
def test_master_weights_are_captured_and_train_alike(system: type, tmp_path: Path) -> None:
    found = judged(f"master_systems:{system.__name__}", tmp_path, CLAIM)
    assert (found.status, found.reason) == (Status.PASS, "held"), found.message


def test_master_weights_held_only_by_the_optimizer_are_watched() -> None:
    run = Listed().open(Workload(model="any", batch_size=4, seq_len=4, steps=STEPS), Arm())
    held = {name: tensor for name, tensor in watched_state(run)["optimizer"].items() if name.endswith(".held")}
    assert [tensor.dtype for tensor in held.values()] == [torch.float32] * 4


def test_an_optimizer_that_trains_a_different_model_is_refused() -> None:
    with pytest.raises(AdapterError, match="none of them is among the 5 tensors that AdamW updates"):
        OfAnother().open(Workload(model="any", batch_size=4, seq_len=4, steps=STEPS), Arm())


def test_training_a_copy_of_the_named_parameters_counts_as_no_training(tmp_path: Path) -> None:
    found = judged("master_systems:OfACopy", tmp_path, CLAIM)
    assert (found.status, found.reason) == (Status.FAIL, "vacuous_parameters_unchanged"), found.message

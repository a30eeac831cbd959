"""A stranger's step of micro-batches, judged: the right one passes, each wrong one has its reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from claims_in_process import CLAIM, contract_of, judged, judged_on

from harness.execution.watchers.gradient_reader import split
from harness.execution.watchers.reductions import digests
from harness.judging.verdict import Verdict

STEPS = 4
ARMS: dict[str, dict[str, Any]] = {
    "captured": {"capture": "step", "micro_batches": 4},
    "plain": {"capture": "none", "micro_batches": 4},
    "one-batch": {"capture": "none"},
}
TEXT = {name: CLAIM[name] for name in ("id", "title", "why", "if_fails", "judged_on")}
ACCUMULATION: dict[str, Any] = {
    **TEXT,
    "kind": "accumulation",
    "mechanism": "traced",
    "candidate": "captured",
    "baseline": "one-batch",
    "micro_batches": 4,
    "steps": [0, 1],
    "max_relative_difference": 1e-3,
}
TRAJECTORY: dict[str, Any] = {
    **TEXT,
    "kind": "trajectory_match",
    "mechanism": "traced",
    "candidate": "captured",
    "baseline": "plain",
    "equality": "bitwise",
    "max_abs_difference": 0.1,
    "guards": {"steps": STEPS, "distinct_batches": STEPS},
}


def verdict(system: str, folder: Path, claim: dict[str, Any] | None = None) -> Verdict:
    return judged(f"accumulating_systems:{system}", folder, claim or ACCUMULATION, steps=STEPS, arms=ARMS)


@pytest.mark.parametrize("system", ["ClippedOnce", "WithOwnCounter"])
def test_a_correct_accumulating_system_passes(system: str, tmp_path: Path) -> None:
    assert_held(verdict(system, tmp_path))


def assert_held(found: Verdict) -> None:
    assert found.reason == "held", found.message
    assert (found.figures["micro_batches"].value, found.figures["updates"].value) == (4, STEPS)
    assert found.denominators["micro_batches"] == 4 * STEPS


def test_gradients_kept_by_the_plain_step_but_not_by_the_capture_make_the_arms_differ(tmp_path: Path) -> None:
    assert verdict("Kept", tmp_path, TRAJECTORY).reason == "differs"


WRONG: dict[str, tuple[str, dict[str, object]]] = {
    "UsedTwice": ("differs_from_one_batch", {"first_exceeding_step": 0, "first_exceeding_quantity": "loss"}),
    "FirstForAll": ("differs_from_one_batch", {"first_exceeding_step": 0, "first_exceeding_quantity": "loss"}),
    "Dropped": ("differs_from_one_batch", {"first_exceeding_step": 0, "first_exceeding_quantity": "loss"}),
    "Undivided": ("differs_from_one_batch", {"first_exceeding_step": 0, "first_exceeding_quantity": "loss"}),
    "MeanOfMeans": ("differs_from_one_batch", {"first_exceeding_step": 0, "first_exceeding_quantity": "loss"}),
    "Kept": ("differs_from_one_batch", {"first_exceeding_step": 1, "first_exceeding_quantity": "gradients"}),
    "Overwritten": ("differs_from_one_batch", {"first_exceeding_step": 0, "first_exceeding_quantity": "gradients"}),
    "ClippedEach": ("differs_from_one_batch", {"first_exceeding_step": 0, "first_exceeding_quantity": "gradients"}),
    "UpdatedEach": ("update_count", {"updates": 4 * STEPS, "updates_in_a_step": 4}),
    "LoadedTwice": ("micro_batches_repeat", {"first_repeating_step": 0}),
    "WithoutCounter": ("updates_uncounted", {}),
}


@pytest.mark.parametrize("system", WRONG)
def test_each_wrong_accumulating_system_fails_with_its_reason(system: str, tmp_path: Path) -> None:
    reason, figures = WRONG[system]
    found = verdict(system, tmp_path, ACCUMULATION | {"candidate": "plain", "mechanism": None})
    assert found.reason == reason, found.message
    assert {name: found.figures[name].value for name in figures} == figures


def test_an_accumulating_step_is_judged_by_what_each_claim_says(tmp_path: Path) -> None:
    """Its capture trains like the plain step; another number of micro-batches, or the same arm, is no accumulation."""
    beside = [TRAJECTORY, ACCUMULATION | {"micro_batches": 2}, ACCUMULATION | {"baseline": "plain"}]
    contract = contract_of("accumulating_systems:Accumulating", ACCUMULATION, steps=STEPS, arms=ARMS, beside=beside)
    right, trains, wrong_number, at_once = judged_on(contract, tmp_path)
    assert_held(right)
    assert trains.reason == "held", trains.message
    assert (wrong_number.reason, wrong_number.figures["micro_batches"].value) == ("micro_batch_count", 4)
    assert at_once.reason == "vacuous_one_batch"


def test_accumulation_splits_inputs_along_the_first_dimension_and_shares_scalars() -> None:
    tokens = torch.arange(12).view(3, 4)
    found = split({"tokens": tokens, "rate": torch.tensor(0.1), "scales": torch.ones(2)}, 3)
    assert digests(found) == digests({"tokens": tokens})
    assert split({"rate": torch.tensor(0.1)}, 3) == {}
    assert len(split({"tokens": tokens}, 4)["tokens"]) == 3

"""Arms whose parameters have two data types: compared by their values, and a wrong start or type is seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from claims_in_process import CLAIM, judged

from harness.execution.watchers.reductions import digest_of_all, digest_of_rounded
from harness.judging.verdict import Verdict

ARMS = {"half": {"capture": "none", "dtype": "bfloat16"}, "full": {"capture": "none", "dtype": "float32"}}
CHANGES: dict[str, Any] = {
    "candidate": "half",
    "baseline": "full",
    "equality": "within",
    "max_abs_difference": 0.5,
    "parameter_dtypes": {"candidate": "bfloat16", "baseline": "float32"},
    "guards": {"steps": 12},
}


def verdict(system: str, folder: Path, **changes: Any) -> Verdict:
    return judged(f"two_dtypes_systems:{system}", folder, CLAIM | CHANGES | changes, arms=ARMS)


def test_starts_that_are_equal_after_rounding_count_as_equal(tmp_path: Path) -> None:
    found = verdict("TwoDtypes", tmp_path)
    assert found.reason == "held", found.message
    apart = found.figures["end_max_abs_difference"].value
    assert isinstance(apart, float)
    assert 0 < apart < 0.1


def test_arms_of_different_dtypes_without_the_dtype_field_start_unequal(tmp_path: Path) -> None:
    found = verdict("TwoDtypes", tmp_path, parameter_dtypes=None)
    assert found.reason == "unequal_start"
    assert found.message.endswith("parameters weight (bfloat16 in candidate half, float32 in baseline full)"), (
        found.message
    )


@pytest.mark.parametrize(
    ("system", "reason"),
    [
        ("UnheededDtype", "vacuous_parameter_dtype"),
        ("OneElementOff", "unequal_start"),
        ("OtherSeed", "unequal_start"),
    ],
)
def test_each_faulty_two_dtype_system_fails_with_its_reason(system: str, reason: str, tmp_path: Path) -> None:
    found = verdict(system, tmp_path)
    assert found.reason == reason, found.message


def test_the_rounded_digest_of_a_tensor_is_that_of_its_rounded_values() -> None:
    full = {"w": torch.tensor([1.0 + 2**-12, 3.0]), "b": torch.tensor([0.1])}
    half = {name: tensor.bfloat16() for name, tensor in full.items()}
    assert digest_of_rounded(full, "bfloat16") == digest_of_rounded(half, "bfloat16") == digest_of_all(half)
    assert digest_of_rounded({**full, "b": torch.tensor([0.2])}, "bfloat16") != digest_of_all(half)

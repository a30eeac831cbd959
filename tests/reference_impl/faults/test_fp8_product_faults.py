"""Each fault of the MLP's products in FP8 is beyond what the claims that name it allow: by the twins, on a CPU."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from harness.contract.load import load_contract
from harness.system.protocol import KernelComparison
from reference_impl.config import MODEL_PRESETS, TrainConfig
from reference_impl.faults import FAULTS, KERNELS, change_of
from reference_impl.kernel_table import trainer_table
from reference_impl.step_cases import STEP_OPERATIONS, Setting, fp8_products

CLAIMS: dict[str, Any] = {
    claim.id: claim
    for claim in load_contract(Path(__file__).parents[3] / "contracts" / "fp8-v1.yaml").contract.claims
    if claim.id.startswith("FP8-PRODUCTS-")
}
NAMED = [(claim, fault) for claim in CLAIMS for fault in CLAIMS[claim].falsified_by]


@pytest.fixture(autouse=True)
def small_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that the claims have beside the model's, on a device that is no GPU."""
    monkeypatch.setattr(fp8_products, "_shapes", lambda _setting: iter(fp8_products.RAGGED))


def comparisons(claim: str, fault: str | None) -> Iterator[KernelComparison]:
    """As the claim's run makes them; the trainer's table has the twins of a CPU."""
    table = trainer_table("cublas")
    change = change_of(fault, KERNELS)
    if change is not None:
        change(table)
    config, model = TrainConfig.preset("tiny", device="cpu"), MODEL_PRESETS["tiny"]
    for operation in CLAIMS[claim].operations:
        for magnitude in CLAIMS[claim].magnitudes:
            yield from STEP_OPERATIONS[operation](
                Setting(table, config, model, "bfloat16", magnitude, torch.device("cpu"))
            )


def worst(claim: str, fault: str | None) -> float:
    """The largest error of all comparisons as a share of what the claim allows; infinite for one that is not finite."""
    shares = []
    for each in comparisons(claim, fault):
        assert each.terms is not None
        found, exact, terms = each.kernel({}), each.reference(), each.terms()
        assert found is not None
        for name, value in found.items():
            error = ((value.double() - exact[name]).abs() / terms[name]).max().item()
            shares.append(error if math.isfinite(error) else math.inf)
    allowed: float = CLAIMS[claim].max_relative_error["bfloat16"]
    return max(shares) / allowed


@pytest.mark.parametrize("claim", CLAIMS)
def test_the_fp8_product_claims_pass_without_a_fault(claim: str) -> None:
    assert 0.1 < worst(claim, None) < 1


@pytest.mark.parametrize(("claim", "fault"), NAMED)
def test_an_fp8_product_fault_exceeds_the_bound_of_its_claim(claim: str, fault: str) -> None:
    share = worst(claim, fault)
    not_finite = "non_finite" in str(FAULTS[fault].description)
    assert share == math.inf if not_finite else 1 < share < math.inf

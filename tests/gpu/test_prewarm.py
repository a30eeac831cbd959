"""C-PREWARM-001 with device memory full: it holds, and without a part of the prewarm it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from harness.api.session import VerifyOptions, verify
from harness.judging.verdict import Verdict

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

# One arm of contracts/kernel-prewarm-v1.yaml, whose faults name this claim.
CONTRACT = """
schema: contract/v1
id: one-arm
title: one arm of the prewarm contract
system: reference_impl.system:QLoRASystem
workloads:
  tiny: {model: tiny, batch_size: 4, seq_len: 64, steps: 10, needs: {device: cuda}}
arms:
  arm: {capture: CAPTURE, weights: nf4, prewarm: true}
claims:
  - id: C-PREWARM-001
    title: t
    kind: prewarm
    candidate: arm
    scope: device
    handles: [cublas]
    memory_filled: true
    on: [tiny]
    why: w
    if_fails: f
"""


def verdict(folder: Path, *, capture: str = "none", fault: str | None = None) -> Verdict:
    path = folder / "one-arm.yaml"
    path.write_text(CONTRACT.replace("CAPTURE", capture), encoding="utf-8")
    (found,) = verify([path], VerifyOptions(fault=fault, reports=folder / "reports")).verdicts
    return found


@pytest.mark.parametrize("capture", ["none", "step"])
def test_prewarmed_steps_fit_in_the_reserved_memory(capture: str, tmp_path: Path) -> None:
    found = verdict(tmp_path, capture=capture)
    assert (found.status, found.reason) == ("PASS", "held"), found.message
    assert found.denominators["steps_after_fill"] == 2
    assert found.figures["late_jit_events"].value == 0


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("cold_cublas", "handle_late"), ("late_jit", "late_jit"), ("missing_entry", "prewarm_missing_key")],
)
def test_a_skipped_part_of_the_prewarm_is_reported(fault: str, reason: str, tmp_path: Path) -> None:
    found = verdict(tmp_path, fault=fault)
    assert (found.status, found.reason) == ("FAIL", reason), found.message


def test_a_step_with_a_cold_cublas_handle_fails_on_full_memory(tmp_path: Path) -> None:
    """The cuBLAS handle is created only within the step.

    With full memory its creation fails, so the step fails, too.
    """
    verdict(tmp_path, fault="cold_cublas")
    (records,) = (tmp_path / "reports").rglob("records.jsonl")
    last = [line for line in records.read_text().splitlines() if '"record":"prewarm"' in line][-1]
    assert '"steps_after_fill":0' in last
    assert '"failure":null' not in last

"""The operators of a captured step and of the plain one: other kernels are seen and named."""

from __future__ import annotations

from dataclasses import replace

import torch
from evidence_builders import arm, graphed
from judge_cases_training import nudged, trajectory
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from harness.evidence.run_evidence import ArmEvidence
from harness.execution.watchers.capture_attempts import CaptureAttempts
from harness.judging.verdict import Status
from harness.system.replay.operations import OperatorWatch
from harness.system.replay.traced import TracedStep


def attention(mask: Tensor | None) -> set[str]:
    query = torch.ones(1, 1, 4, 8)
    with OperatorWatch() as watch, torch.no_grad():
        scaled_dot_product_attention(query, query, query, attn_mask=mask)
    names: set[str] = watch.names
    return names


def test_an_attention_kernel_with_a_mask_is_named_differently() -> None:
    flash = "aten._scaled_dot_product_flash_attention_for_cpu"
    assert attention(None) == {flash}
    assert f"{flash} with attn_mask" in attention(torch.zeros(4, 4))


def test_operators_that_only_move_memory_are_not_recorded() -> None:
    with OperatorWatch() as watch:
        torch.zeros(2, 3).t().clone().reshape(6).copy_(torch.ones(6))
    assert watch.names == set()


def test_a_recording_has_the_operators_that_the_step_ran() -> None:
    value = torch.ones(2)

    def body() -> Tensor:
        return (value.sin() + 1).sum()

    with OperatorWatch() as watch:
        body()
    step = TracedStep(body, lambda: {"value": value})
    with CaptureAttempts() as attempts:
        step.record()
    assert attempts.operators == watch.names == {"aten.sin", "aten.add", "aten.sum"}


def ran(execution: ArmEvidence, *operators: str) -> ArmEvidence:
    assert execution.end is not None
    return replace(execution, end=execution.end.model_copy(update={"operators": list(operators)}))


def test_a_bitwise_difference_names_the_operators_that_only_one_arm_ran() -> None:
    plain = ran(arm("ungraphed"), "aten.mm", "flash")
    verdict = trajectory(ran(graphed(nudged(4)), "aten.mm", "flash with attn_mask"), plain)
    assert verdict.status is Status.FAIL
    assert verdict.message.endswith(
        "the operators of the arms differ: only arm graphed ran flash with attn_mask, and only arm ungraphed ran flash"
    )
    assert verdict.figures["other_operators"].value == "flash with attn_mask, flash"


def test_the_comparison_of_operators_leaves_out_unrecorded_operators() -> None:
    verdict = trajectory(ran(graphed(nudged(4)), "aten.mm"), arm("ungraphed"))
    assert "operators" not in verdict.message


def test_an_operator_that_only_some_steps_run_does_not_count_as_an_operator_of_the_arm() -> None:
    plain = ran(arm("ungraphed"), "aten.mm", "aten.relu")
    assert plain.end is not None
    chosen = plain.end.model_copy(update={"first_operators": ["aten.mm", "aten.norm"]})
    verdict = trajectory(ran(graphed(nudged(4)), "aten.mm", "aten.norm"), replace(plain, end=chosen))
    assert "operators" not in verdict.message
    verdict = trajectory(ran(graphed(nudged(4)), "flash", "aten.norm"), replace(plain, end=chosen))
    assert verdict.figures["other_operators"].value == "flash, aten.mm"

"""A bitwise difference names the operators that only one arm ran."""

from __future__ import annotations

from dataclasses import replace

import pytest
from evidence_builders import arm, graphed
from judge_cases_training import nudged, trajectory

from harness.evidence.run_evidence import ArmEvidence
from harness.judging.verdict import Status


def ran(execution: ArmEvidence, *operators: str) -> ArmEvidence:
    assert execution.end is not None
    return replace(execution, end=execution.end.model_copy(update={"operators": list(operators)}))


@pytest.mark.parametrize(
    ("ours", "theirs", "sentence"),
    [
        (["masked"], ["flash"], "only arm graphed ran masked, and only arm ungraphed ran flash"),
        (["masked"], [], "only arm graphed ran masked"),
        ([], ["flash"], "only arm ungraphed ran flash"),
    ],
)
def test_a_bitwise_difference_names_the_operators_that_only_one_arm_ran(
    ours: list[str], theirs: list[str], sentence: str
) -> None:
    verdict = trajectory(ran(graphed(nudged(4)), "aten.mm", *ours), ran(arm("ungraphed"), "aten.mm", *theirs))
    assert verdict.status is Status.FAIL
    assert verdict.message.endswith(f"; the operators of the arms differ: {sentence}")
    assert verdict.figures["other_operators"].value == ", ".join(ours + theirs)


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

"""Both errors of a step stand on the page: by kind of tensor, by tensor, by seed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from report_views import CONTRACT, arm, contract, small_view

from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.evidence.run_records import StepErrors, TensorErrors
from harness.kinds.steps import section as step_accuracy
from harness.report.blocks import Part
from harness.report.html import render
from harness.report.view import ReportView

ARMS = {"ungraphed": 0.25, "graphed": 0.5, "untrained": 0.0}  # candidate, peer, reference, and their losses' errors
CLAIM: dict[str, Any] = {
    "id": "F-GRAPH-BWD-001",
    "title": "It errs no more",
    "kind": "step_accuracy",
    "candidate": "ungraphed",
    "peer": "graphed",
    "reference": "untrained",
    "gradient_seeds": [0],
    "gradient_steps": [1],
    "median_gradient_ratio_at_most": 1.2,
    "gradient_ratio_at_most": 2.0,
    "loss_seeds": [0, 3],
    "loss_steps": 5,
    "loss_ratio_at_most": 1.2,
    "judged_on": ["tiny"],
    "why": "It must not.",
    "if_fails": "It does.",
}


def executions(name: str, *, unfinished: bool = False) -> list[ArmEvidence]:
    lengths = (5, 2 if unfinished else 5)
    found = [arm(name, np.full(length, 2.0) + ARMS[name], replica) for replica, length in enumerate(lengths)]
    for each in found:
        each.start.facts["dtype"] = "float64" if name == "untrained" else "bfloat16"
    return found


def view(*, unfinished: bool = False) -> ReportView:
    tensors = [
        TensorErrors(name=f"layers.{layer}.{kind}", reference_norm=8.0, candidate_error=ours, peer_error=1.0)
        for layer, kind, ours in ((0, "lora_a_q", 0.5), (1, "lora_a_q", 1.5), (0, "input_norm", 2.0))
    ]
    same = dict.fromkeys(ARMS, "d")
    errors = StepErrors(seed=0, step=1, parameters=same, batches=same, losses=dict.fromkeys(ARMS, 2.0), tensors=tensors)
    arms = {name: executions(name, unfinished=unfinished and name == "graphed") for name in ARMS}
    run = RunEvidence("tiny-paired", "step_accuracy", arms, step_errors=[errors])
    return small_view(contracts=[contract(claims=[CLAIM])], evidence={run.run_id: run})


def part(*, unfinished: bool = False) -> Part:
    section = step_accuracy.accuracy_section(view(unfinished=unfinished))
    assert section is not None
    assert section.anchor == "step_accuracy"
    [found] = section.parts
    return found


def test_the_step_accuracy_section_lists_gradient_errors_by_kind_of_tensor() -> None:
    kinds = part().tables[0]
    assert kinds.columns[2:4] == ["median error of ungraphed", "median error of graphed"]
    assert kinds.rows == [
        ["lora_a_q", "2", "0.125", "0.125", "1", "1.5"],
        ["input_norm", "1", "0.25", "0.125", "2", "2"],
        ["all", "3", "0.1875", "0.125", "1.5", "2"],
    ]


def test_the_step_accuracy_section_lists_tensors_by_descending_ratio() -> None:
    assert [row[0] for row in part().tables[1].rows] == [
        "layers.0.input_norm",
        "layers.1.lora_a_q",
        "layers.0.lora_a_q",
    ]


def test_the_step_accuracy_section_lists_losses_by_seed_and_overall() -> None:
    assert part().tables[2].rows == [
        ["0", "0.25", "0.5", "0.5"],
        ["3", "0.25", "0.5", "0.5"],
        ["all", "0.25", "0.5", "0.5"],
    ]


def test_a_seed_that_one_arm_did_not_finish_is_left_out() -> None:
    assert [row[0] for row in part(unfinished=True).tables[2].rows] == ["0"]


def test_the_step_accuracy_section_states_the_dtype_of_each_arm() -> None:
    assert [text.split(",")[1].split(":")[1].strip() for text in part().text] == [
        "dtype bfloat16",
        "dtype bfloat16",
        "dtype float64",
    ]


def test_a_run_page_includes_the_step_accuracy_section() -> None:
    page = render(view())
    assert "Step accuracy" in page
    assert CONTRACT["id"] in page
    assert "layers.0.input_<wbr>norm" in page


def test_a_nan_error_is_listed_as_the_largest_error() -> None:
    shown = view()
    [run] = shown.evidence.values()
    [errors] = run.step_errors
    first, second, third = errors.tensors
    broken = second.model_copy(update={"candidate_error": math.nan})
    changed = errors.model_copy(update={"tensors": [third, first, broken]})
    section = step_accuracy.accuracy_section(replace(shown, evidence={run.run_id: replace(run, step_errors=[changed])}))
    assert section is not None
    [found] = section.parts
    assert found.tables[1].rows[0][0] == "layers.1.lora_a_q"
    largest = {row[0]: row[-1] for row in found.tables[0].rows}
    assert largest == {"input_norm": "2", "lora_a_q": "NaN", "all": "NaN"}

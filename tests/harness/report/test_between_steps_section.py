"""A resumed training and evaluations between steps, as the page shows them."""

from __future__ import annotations

from typing import Any

from judge_cases_between_steps import (
    ANEW,
    EVALUATION,
    RESUME,
    SAVES,
    evaluation,
    from_step,
    last_part,
    loaded,
    middle_part,
    saved,
)
from report_views import arm, contract, loss_curve, small_view

from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.kinds.between_steps import section as between_steps
from harness.report.blocks import Section

TEXT = {
    "id": "F-GRAPH-BWD-001",
    "title": "It goes on",
    "judged_on": ["tiny"],
    "why": "It must.",
    "if_fails": "It does not.",
}


def shown(claim: dict[str, Any], probe: Any, executions: list[ArmEvidence]) -> list[Section]:
    run = RunEvidence("tiny-paired", probe, {"ungraphed": executions})
    claims = [{**claim, **TEXT}]
    return between_steps.sections(small_view(evidence={run.run_id: run}, contracts=[contract(claims=claims)]))


def uninterrupted() -> ArmEvidence:
    from evidence_builders import arm as plain

    return plain("ungraphed", replica=2)


def test_the_resume_section_shows_processes_and_state_not_restored() -> None:
    [section] = shown(RESUME, "resume", [saved(), loaded(after=ANEW, **from_step(5)), uninterrupted()])
    assert section.anchor == "resume"
    [part] = section.parts
    assert part.text == [
        "Process 11 saved after 4 steps: 640 bytes in 2 files. Process 12 loaded this after making 0 steps.",
        "The first of 10 steps that differs is step 5.",
    ]
    assert part.tables[0].rows == [
        ["parameters", "4", "4"],
        ["buffers", "1", "1"],
        ["optimizer", "1", "0"],
        ["generators", "1", "1"],
    ]
    assert len(part.judged) == 2


def test_the_resume_section_of_a_training_resumed_twice_shows_both_loads() -> None:
    claim = RESUME | {"save_at": SAVES, "steps": 3}
    [section] = shown(claim, "resume", [saved(), middle_part(), last_part(after=ANEW), uninterrupted()])
    [part] = section.parts
    assert part.text == [
        "Process 11 saved after 4 steps: 640 bytes in 2 files. Process 12 loaded this after making 0 steps.",
        (
            "Process 12 saved after 7 steps: 640 bytes in 2 files. Process 13 loaded this after making 0 steps. "
            "The process that saved took 2 more steps before it ended."
        ),
        "Equal in every bit at all 10 steps.",
    ]
    titles = ["State right after the load of step 4", "State right after the load of step 7"]
    assert [each.caption for each in part.tables] == titles
    assert [each.rows[2] for each in part.tables] == [["optimizer", "1", "1"], ["optimizer", "1", "0"]]


def test_a_resume_without_its_second_half_has_no_section() -> None:
    assert shown(RESUME, "resume", [saved()]) == []


def test_the_evaluation_section_shows_each_loss_and_the_state_that_changed() -> None:
    ours = arm("ungraphed", loss_curve(10), 1)
    ours.evaluations.extend([evaluation(5), evaluation(10, left={"buffers": "x", "generators": "y"})])
    [section] = shown(EVALUATION, "evaluation", [arm("ungraphed", loss_curve(10)), ours])
    assert section.anchor == "evaluation"
    [part] = section.parts
    assert part.text == ["2 evaluations, one after every 5 steps.", "Equal in every bit at all 10 steps."]
    assert part.tables[0].columns == ["after steps", "loss", "state changed"]
    assert part.tables[0].rows == [["5", "2.5", "none"], ["10", "2", "buffers, generators"]]


def test_a_run_without_evaluations_has_no_evaluation_section() -> None:
    assert shown(EVALUATION, "evaluation", [arm("ungraphed", loss_curve(10))]) == []


def test_the_evaluation_section_without_steps_states_that_none_was_compared() -> None:
    ours = arm("ungraphed", [], 1)
    ours.evaluations.append(evaluation(5))
    [section] = shown(EVALUATION, "evaluation", [arm("ungraphed", []), ours])
    assert section.parts[0].text[1] == "No step was compared."

"""Single steps against a reference, as the page shows them."""

from __future__ import annotations

import math
from dataclasses import replace

from judge_cases_steps import STEP_MATCH, one, steps
from report_views import arm, contract, loss_curve, small_view

from harness.evidence.run_evidence import RunEvidence
from harness.kinds.steps import section
from harness.report.blocks import Part

CLAIM = {
    **STEP_MATCH,
    "id": "F-GRAPH-BWD-001",
    "title": "Every step is right",
    "candidate": "graphed",
    "reference": "ungraphed",
    "yardstick": "untrained",
    "judged_on": ["tiny"],
    "why": "It must.",
    "if_fails": "Look at the first.",
}


def shown(*readings: dict[tuple[int, str], dict[str, object]]) -> Part:
    compared = steps({step: change for each in readings for step, change in each.items()})
    execution = arm("graphed", loss_curve(10))
    execution.compared_steps.extend(compared)
    plain = arm("ungraphed", loss_curve(10))
    facts = {"dtype": "float64", "transformers": "5.0", "layers": 2}
    reference = replace(plain, start=plain.start.model_copy(update={"facts": facts}))
    run = RunEvidence("tiny-paired", "step_match", {"graphed": [execution], "ungraphed": [reference]})
    found = section.match_section(small_view(evidence={run.run_id: run}, contracts=[contract(claims=[CLAIM])]))
    assert found is not None
    [part] = found.parts
    return part


def test_the_steps_section_shows_the_largest_error_and_the_yardsticks() -> None:
    part = shown(one("norms", 7, error=3e-6, tensor="layers.1"), one("norms", 2, yardstick=2e-6))
    rows = {row[0]: row[1:] for row in part.tables[0].rows}
    assert rows["norms"] == ["2", "3e-6", "7", "layers.1", "2e-6"]
    assert rows["parameters"] == ["2", "1e-7", "0", "p0", "–"]
    assert part.text == [
        "10 steps of graphed against ungraphed, with untrained as the yardstick.",
        "The reference: dtype float64, transformers 5.0.",
    ]


def test_a_nan_step_error_is_listed_as_the_largest_error() -> None:
    part = shown(one("loss", 4, error=math.nan), one("loss", 6, error=1.0))
    assert next(row for row in part.tables[0].rows if row[0] == "loss")[3] == "4"

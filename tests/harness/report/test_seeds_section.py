"""Each seed's difference stands on the page beside the margin, with the interval of the mean."""

from __future__ import annotations

from typing import Any

import numpy as np
from report_views import arm, contract, small_view, verdict

from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.judging.verdict import Figure
from harness.kinds.seeds import section as seeds
from harness.report.html import render
from harness.report.view import ReportView

OFF = {3: 0.25, 1: 0.5, 4: 0.0, 0: -0.25, 5: 0.5}  # by which the candidate's losses lie above, by seed
CLAIM: dict[str, Any] = {
    "id": "F-GRAPH-BWD-001",
    "title": "It is no worse",
    "kind": "not_worse",
    "candidate": "ungraphed",
    "baseline": "graphed",
    "direction": "lower_is_better",
    "last": 2,
    "margin": 1.0,
    "seeds": list(OFF),
    "guards": {"steps": 5},
    "judged_on": ["tiny"],
    "why": "It must not.",
    "if_fails": "It does.",
}


def executions(name: str, seeds_run: int = len(OFF)) -> list[ArmEvidence]:
    above = list(OFF.values()) if name == "ungraphed" else [0.0] * len(OFF)
    return [arm(name, np.full(5, 2.0) + off, replica) for replica, off in enumerate(above[:seeds_run])]


def view(*, seeds_run: int = len(OFF), **claim: Any) -> ReportView:
    arms = {"graphed": executions("graphed"), "ungraphed": executions("ungraphed", seeds_run)}
    run = RunEvidence("tiny-paired", "seeds", arms)
    judged = {"worse_by": 0.2, "worse_by_at_least": -0.11, "worse_by_at_most": 0.51}
    figures = {name: Figure(value=value, unit="loss") for name, value in judged.items()}
    unit = verdict("F-GRAPH-BWD-001", "tiny", figures=figures)
    return small_view(contracts=[contract(claims=[CLAIM | claim])], evidence={run.run_id: run}, verdicts=[unit])


def test_the_seeds_section_has_a_row_for_each_seed_and_one_plot() -> None:
    section = seeds.section(view())
    assert section is not None
    [part] = section.parts
    assert (section.anchor, part.tables[0].caption) == ("seeds", "loss, mean of the last 2 steps")
    assert part.tables[0].columns == ["seed", "ungraphed", "graphed", "worse by", "margin"]
    assert part.tables[0].rows == [
        ["3", "2.25", "2", "0.25", "1"],
        ["1", "2.5", "2", "0.5", "1"],
        ["4", "2", "2", "0", "1"],
        ["0", "1.75", "2", "-0.25", "1"],
        ["5", "2.5", "2", "0.5", "1"],
    ]
    [drawn] = part.judged
    assert "3: 0.25, 1: 0.5, 4: 0, 0: -0.25, 5: 0.5. Trimmed mean 0.2, -0.11 to 0.51" in drawn.plot.alt


def test_a_relative_margin_is_shown_for_each_seed_as_an_absolute_number() -> None:
    section = seeds.section(view(margin=None, relative_margin=0.1, last=1))
    assert section is not None
    [part] = section.parts
    assert part.tables[0].caption == "loss, final value"
    assert [row[4] for row in part.tables[0].rows] == ["0.2"] * 5


def test_the_seeds_section_is_absent_for_an_incomplete_arm_or_an_unreported_metric() -> None:
    assert seeds.section(view(seeds_run=4)) is None
    assert seeds.section(view(metric="accuracy")) is None


def test_a_run_page_includes_the_seeds_section() -> None:
    page = render(view())
    assert "Several seeds" in page
    assert "mean of the last 2 steps" in page

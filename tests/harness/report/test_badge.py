"""The badge of each headline: its words, its colour, and that nothing but whole contracts that held is green."""

from __future__ import annotations

import json

import pytest
from report_views import header, planted, view_of, waiver, whole_drill_view

from harness.judging.verdict import Status
from harness.report.badge import render_badge
from harness.report.view import ReportView

PASS, FAIL, INCONCLUSIVE, NOT_RUN, ERROR = Status
WAIVED = view_of(FAIL, PASS, header=header(waivers=[waiver("w0")]))
PART = view_of(PASS, header=header(narrowed={"workloads": ["w0"], "claims": []}))


def whole_drill() -> ReportView:
    """A drill that planted every fault of its contract: the one claim that names any names two."""
    return whole_drill_view(killed=[True, True])


@pytest.mark.parametrize(
    ("view", "message", "colour", "error"),
    [
        (view_of(PASS, PASS), "HELD · 2 of 2 held", "brightgreen", False),
        (view_of(PASS, PASS, gate=True), "HELD · 2 of 2 held", "brightgreen", False),
        (PART, "HELD · 1 of 1 held · a part", "yellow", False),
        (WAIVED, "HELD, 1 waived · 1 of 2 held", "yellow", False),
        (view_of(PASS, NOT_RUN), "PARTLY DECIDED · 1 of 2 held", "yellow", False),
        (view_of(PASS, INCONCLUSIVE, gate=True), "PARTLY DECIDED · 1 of 2 held", "yellow", True),
        (view_of(NOT_RUN), "NOT DECIDED · 0 of 1 held", "lightgrey", True),
        (view_of(PASS, FAIL), "VIOLATED · 1 of 2 held", "red", True),
        (view_of(PASS, ERROR), "ERROR", "red", True),
        (view_of(PASS, altered=("a.csv: changed",)), "ERROR", "red", True),
        (view_of(PASS, incomplete=("run",)), "ERROR", "red", True),
        (view_of(PASS, unsealed=("run",)), "ERROR", "red", True),
        (planted(view_of(PASS)), "a fault was planted", "lightgrey", False),
        (whole_drill(), "HELD · 2 of 2 faults killed", "brightgreen", False),
        (whole_drill_view(killed=[True, False]), "VIOLATED · 1 of 2 faults killed", "red", True),
        (whole_drill_view(NOT_RUN, killed=[True]), "PARTLY DECIDED · 1 of 1 fault killed · a part", "red", True),
    ],
)
def test_the_badge_has_the_words_and_the_colour_of_the_headline(
    view: ReportView, message: str, colour: str, error: bool
) -> None:
    expected = {"schemaVersion": 1, "label": "contracts", "message": message, "color": colour, "isError": error}
    assert json.loads(render_badge(view)) == expected

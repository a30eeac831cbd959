"""A unit that did not hold is one card and one file, which begin with the likely cause; no sentence is cut inside."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from report_page import Page
from report_views import full_view, small_view, verdict, view_with, waiver

from harness.api.session import write_reports
from harness.evidence import layout
from harness.judging.verdict import Status
from harness.report.html import render
from harness.report.markdown import problem_files
from harness.report.text import opening

OPEN = {Status.FAIL, Status.ERROR, Status.INCONCLUSIVE}


def test_exactly_the_units_that_did_not_pass_have_a_problem_file() -> None:
    """A problem file is a page about a single unit."""
    view = full_view()
    named = {
        f"{each.contract}.{each.claim}.{each.workload.replace('.', '_')}.md"
        for each in view.verdicts
        if each.status in OPEN
    }
    assert set(problem_files(view)) == named
    assert len(named) >= 3
    assert problem_files(small_view()) == {}


def test_a_problem_file_lists_cause_claim_observation_and_command_in_this_order() -> None:
    text = problem_files(full_view())["cuda-graph-backward-v1.F-GRAPH-BWD-001.tiny.md"]
    lines = text.splitlines()
    assert lines[0] == "# Violated"
    labels = [line.removeprefix("- ").partition(":")[0] for line in lines if line.startswith("- ")]
    wanted = ["What usually causes this", "Claimed", "Seen", "To run it again"]
    assert [label for label in labels if label in wanted] == wanted
    command = "harness verify contracts/ --claim F-GRAPH-BWD-001 --workload tiny"
    assert f"- To run it again: `{command}`" in lines


def test_a_report_card_of_a_violation_begins_with_the_cause() -> None:
    card = re.search(r'<article class="card violated".*?</article>', render(full_view()), re.DOTALL)
    assert card is not None
    paragraphs = re.findall(r'<p class="(\w+)"', card[0])
    assert paragraphs[:3] == ["claim", "cause", "message"]
    assert Page(card[0]).words().count("What usually causes this") == 1


def test_problem_files_are_replaced_when_reports_are_written_again(tmp_path: Path) -> None:
    write_reports(tmp_path, full_view())
    place = tmp_path / layout.PROBLEMS
    assert {path.name for path in place.iterdir()} == set(problem_files(full_view()))
    write_reports(tmp_path, small_view())
    assert not place.exists()


def test_a_waived_unit_has_no_problem_file() -> None:
    item = verdict("F-GRAPH-BWD-001", "tiny", Status.FAIL, reason="differs")
    assert len(problem_files(view_with(item))) == 1
    assert problem_files(view_with(item, waivers=[waiver("tiny")])) == {}


def test_units_with_similar_names_have_separate_problem_files() -> None:
    alike = [verdict("F-GRAPH-BWD-001", name, Status.FAIL, reason="differs") for name in ("tiny.1", "tiny_1")]
    files = problem_files(view_with(*alike))
    assert [re.findall(r"on (\S+):", text)[0] for text in files.values()] == ["tiny.1", "tiny_1"]


SENTENCE = (
    "Captured was not captured: " + "the capture ended; " * 20 + "an operation is not permitted when a stream captures."
)


@pytest.mark.parametrize("limit", [40, 100, 240])
def test_a_long_sentence_is_shown_up_to_the_end_of_a_part(limit: int) -> None:
    shown = opening(SENTENCE, limit)
    assert shown.endswith(" …")
    assert len(shown) <= limit + 2
    kept = shown.removesuffix(" …")
    assert SENTENCE.startswith(kept)
    assert SENTENCE[len(kept)] in ";:. "
    assert opening("Short; whole.", limit) == "Short; whole."
    assert opening("x" * 500, 100) == "x" * 100 + " …"

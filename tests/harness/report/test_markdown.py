from __future__ import annotations

import re

import pytest
from report_views import (
    contract,
    drill_view,
    full_view,
    header,
    listing_two,
    ratio_of,
    verdict,
    view_of,
    view_with,
    waiver,
    whole_drill_view,
)

from harness.judging.verdict import Status
from harness.report.markdown import escape, render_markdown


def test_the_markdown_summary_lists_outcome_next_steps_and_facts_in_this_order() -> None:
    ci = {"service": "GitHub Actions", "link": "https://github.com/o/r/actions/runs/7", "author": "ada"}
    environment = {"git": {"commit": "4afac30f0e0c2a1d+changes"}, "gpu": {"name": "NVIDIA H200"}, "ci": ci}
    view = view_of(Status.PASS, Status.FAIL, Status.NOT_RUN, header=header(environment=environment))
    lines = [text for text in render_markdown(view).splitlines() if text]
    doubt = "No commit has this harness."
    assert lines[0] == f"**VIOLATED**: 1 unit is violated. {doubt}"
    for fact in ("exit code 1", "Whose: ada; ", "harness 4afac30f0e0c with uncommitted changes", "GPU: NVIDIA H200"):
        assert fact in lines[1]
    assert lines[2].startswith("**F-GRAPH-BWD-001** on w1 (violated): The loss trajectory matches the ungraphed one. ")
    assert lines[3] == "What now:"
    assert lines[4].startswith("- fix F-GRAPH-BWD-001 on w1: A batch that was rebound")
    unit = "  `harness verify contracts/ --claim F-GRAPH-BWD-001 --workload"
    assert lines[5:13] == [
        f"{unit} w1`",
        "- decide F-GRAPH-BWD-001, 1 unit: message 2",
        f"{unit} w2`",
        "- commit what was run, and verify it again: no commit has these sources",
        "  `harness verify contracts/`",
        "- prove that F-GRAPH-BWD-001 can fail: no fault was planted, so nothing shows that a wrong step is noticed",
        "  `harness drill contracts/`",
        "3 units · 1 held · 1 violated · 1 not run",
    ]
    assert "started: 2026-11-20T" in lines[13].replace("\\", "")
    assert lines[13].endswith("[GitHub Actions](<https://github.com/o/r/actions/runs/7>)")


def test_a_link_that_would_break_the_markdown_is_left_out() -> None:
    ci = {"service": "x", "link": "https://a.example/>)![](x"}
    assert "a.example" not in render_markdown(view_of(Status.PASS, header=header(environment={"ci": ci})))


def test_the_markdown_headline_with_open_units_is_partly_decided() -> None:
    lines = render_markdown(view_of(Status.PASS, Status.NOT_RUN)).splitlines()
    assert lines[0] == "**PARTLY DECIDED**: 1 of 2 planned units held (1 not run)."


def test_the_markdown_summary_lists_violated_units_first_with_their_causes() -> None:
    text = render_markdown(view_of(Status.PASS, Status.FAIL))
    rows = [line for line in text.splitlines() if line.startswith("| ")][2:]
    assert rows == [
        "| **violated** | F-GRAPH-BWD-001 The loss trajectory matches the ungraphed one | w1 | – | message 1 |",
        "| held | F-GRAPH-BWD-001 The loss trajectory matches the ungraphed one | w0 | – | message 0 |",
    ]
    assert "- What usually causes this: A batch that was rebound" in text


def test_a_row_of_the_summary_has_the_deciding_figure_and_the_whole_message() -> None:
    long = "; ".join(f"part {place} of a claim with many parts holds" for place in range(20))
    unit = verdict("F-GRAPH-BWD-003", message=long, **{"denominators": {"processes": 8}, **ratio_of(1.531)})
    text = render_markdown(view_with(unit, contracts=[contract()])).replace("\\", "")
    [row] = [line for line in text.splitlines() if line.startswith("| held ")]
    _, _, claim, workload, by, seen, _ = (cell.strip() for cell in row.split("|"))
    assert (claim, workload) == ("F-GRAPH-BWD-003 The captured step is at least 1.10 times as fast", "tiny")
    assert by.startswith(
        "1.531x, at least 1.1x trimmed mean ratio (1.521x to 1.551x: 99 % one-sided bounds over 8 proc"
    )
    assert seen == long


def test_the_markdown_summary_states_what_would_decide_undecided_units() -> None:
    assert ": run it on a machine with a CUDA device (needs CUDA" in render_markdown(full_view())


def test_the_markdown_summary_asks_for_no_action_on_a_waived_unit() -> None:
    item = verdict("F-GRAPH-BWD-001", "tiny", Status.INCONCLUSIVE, reason="undecided_ratio")
    waived = view_with(item, waivers=[waiver("tiny")])
    assert "- decide F-GRAPH-BWD-001, 1 unit: " in render_markdown(view_with(item))
    assert "- decide" not in render_markdown(waived)


def test_the_markdown_summary_of_a_drill_says_that_the_run_is_a_drill() -> None:
    assert "> **Fire drill.** The fault stale_batch was planted" in render_markdown(drill_view())


def test_the_markdown_code_fence_is_longer_than_any_backticks_in_the_command() -> None:
    text = render_markdown(view_of(Status.PASS, header=header(command=["run", "````", "x"])))
    assert "\n`````\nrun '````' x\n`````\n" in text


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("<script>", "&lt;script&gt;"),
        ("a|b", "a\\|b"),
        ("[x](http://y)", "\\[x\\](http\\://y)"),
        ("@everyone #1", "@\u200beveryone \\#1"),
        ("`$x$`", "\\`\\$x\\$\\`"),
        ("&lt;b&gt;", "\\&lt;b\\&gt;"),
        ("one\ntwo", "one two"),
    ],
)
def test_text_cannot_become_markup_mentions_or_rows(text: str, escaped: str) -> None:
    assert escape(text) == escaped


@pytest.mark.parametrize("limit", [5_000, 20_000, 1_000_000])
def test_the_markdown_summary_of_a_huge_run_is_cut_between_units(limit: int) -> None:
    verdicts = [verdict("F-GRAPH-BWD-001", f"w{place}", Status.FAIL, message="é" * 300) for place in range(5000)]
    text = render_markdown(view_with(*verdicts), limit)
    assert len(text.encode()) <= limit
    assert text.startswith("**VIOLATED**: 5000 units are violated.")
    assert "5000 units · 5000 violated" in text
    assert re.search(r"The report has \d+ more units\.", text)
    assert all(line.endswith(" |") for line in text.splitlines() if line.startswith("| "))


def test_the_markdown_summary_of_a_run_that_fits_is_not_cut() -> None:
    assert "more units" not in render_markdown(full_view())


def test_the_markdown_summary_counts_claims_without_an_executable_check() -> None:
    text = render_markdown(view_of(Status.PASS, contracts=[listing_two()]))
    assert "2 listed claims have no executable check." in text.splitlines()


def test_the_markdown_summary_counts_the_reasons_beyond_the_listed_ones() -> None:
    text = render_markdown(view_of(*[Status.NOT_RUN] * 23))
    assert text.count("- decide F-") == 20
    assert "- decide 3 more\n" in text


def test_the_markdown_summary_of_a_drill_names_each_survivor_with_its_observed_verdict() -> None:
    text = render_markdown(whole_drill_view(killed=[True, False]))
    [line] = [line for line in text.splitlines() if line.startswith("- survived:")]
    assert line.startswith("- survived: fault1 in F-GRAPH-BWD-001 on tiny: expected FAIL differs ")
    assert ", seen " in line
    many = render_markdown(whole_drill_view(killed=[False] * 23))
    assert many.count("\n- survived: ") == 21
    assert "\n- survived: 3 more\n" in many
    assert "- survived" not in render_markdown(whole_drill_view(killed=[True]))

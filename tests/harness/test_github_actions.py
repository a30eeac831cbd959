"""The page of a GitHub job takes a megabyte of each step: what does not fit is left out before GitHub drops all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from report_views import view_of

from harness.errors import ExitCode
from harness.judging.verdict import Status
from harness.report.github_actions import append_step_summary
from harness.report.markdown import LIMIT_BYTES
from harness.report.workflow_commands import show_end


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "page.md"))
    return tmp_path / "page.md"


def test_a_second_summary_of_a_step_is_appended_below_the_first(page: Path) -> None:
    for status in (Status.PASS, Status.FAIL):
        append_step_summary(view_of(status))
    assert [line for line in page.read_text().splitlines() if line.startswith("1 unit ")] == [
        "1 unit · 1 held",
        "1 unit · 1 violated",
    ]


def test_units_that_do_not_fit_into_the_step_summary_are_counted(page: Path) -> None:
    page.write_text("x" * (LIMIT_BYTES - 2000))
    append_step_summary(view_of(*[Status.FAIL] * 100))
    added = page.read_text().lstrip("x")
    assert len(added) <= 2000
    assert re.search(r"\b[1-9][0-9]? more units", added)


def test_a_full_step_summary_page_is_left_unchanged(page: Path) -> None:
    page.write_text("x" * LIMIT_BYTES)
    append_step_summary(view_of(Status.FAIL))
    assert page.read_text() == "x" * LIMIT_BYTES


def test_the_text_of_an_error_is_neither_markup_nor_a_second_command(page: Path) -> None:
    written: list[str] = []
    show_end(ExitCode.USAGE, ["a ```` <b> | @all\n::error::x"], written.append)
    assert page.read_text() == "**USAGE (exit code 2)**: `a '''' <b> | @all ::error::x`\n\n"
    assert written == ["::error title=USAGE (exit code 2)::a ```` <b> | @all ::error::x"]
    show_end(ExitCode.ERROR, [f"c.yaml:{number}:1: wrong" for number in range(1, 13)], written.append)
    assert written[1] == "::error file=c.yaml,line=1,title=ERROR (exit code 12)::wrong"
    assert (len(written), written[-1].rpartition("::")[2]) == (11, "the log has 3 more errors")

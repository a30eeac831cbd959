"""Every command that writes a file where its user says makes the folder, or refuses the path as usage does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.commands.history import write_history
from harness.errors import ExitCode, UsageError
from harness.named_file import write_named

REPORTS = Path(__file__).parents[2] / "reports" / "examples"
RUN = REPORTS / "2026-11-22-h200-plain_loop"


def test_its_folder_is_made(tmp_path: Path) -> None:
    write_named(tmp_path / "a" / "b" / "page.html", "text")
    assert (tmp_path / "a" / "b" / "page.html").read_text() == "text"


def test_a_path_that_takes_no_file_is_usage_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    for path in (tmp_path / "file" / "page.html", tmp_path):
        with pytest.raises(UsageError, match="what a command writes can be written") as refused:
            write_named(path, "text")
        assert (refused.value.where, refused.value.exit_code) == (str(path), ExitCode.USAGE)
    assert (tmp_path / "file").read_text() == "kept"


def test_history_and_badge_are_written_so(tmp_path: Path) -> None:
    from harness.commands.judge import print_verdicts

    page, badge = tmp_path / "new" / "history.html", tmp_path / "other" / "badge.json"
    write_history(REPORTS, page)
    assert "2026-11-22-h200-plain_loop" in page.read_text()
    print_verdicts([RUN], contracts=None, gate=False, as_json=True, badge=badge)
    assert json.loads(badge.read_text())["schemaVersion"] == 1

"""The table of the long checks: a part's row is renewed by its own success alone."""

from __future__ import annotations

import sys
from pathlib import Path

import long_checks
import pytest

PAGE = "# Long checks\n\n<!-- table: .ci/long -->\n<!-- end of table -->\n\nThe end.\n"


def test_a_long_check_row_is_replaced_and_rows_stay_sorted() -> None:
    first = long_checks.published(PAGE, {"soak": ["soak", "old"], "fuzz": ["fuzz", "old"]})
    second = long_checks.published(first, {"soak": ["soak", "new"]})
    assert [line for line in second.splitlines() if line.startswith("| ")][1:] == [
        "| --- | --- | --- | --- | --- | --- |",
        "| fuzz | old |",
        "| soak | new |",
    ]
    assert second.startswith("# Long checks\n")
    assert second.endswith("\n\nThe end.\n")


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A page of its own, and two parts: one prints figures and succeeds, the other prints them and fails."""
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    monkeypatch.setattr(long_checks, "PAGE", page)
    for part, code in (("fuzz", 0), ("soak", 3)):
        script = f"print('first'); print('{part} figures'); raise SystemExit({code})"
        monkeypatch.setitem(long_checks.PARTS, part, (sys.executable, "-c", script))
    return page


def test_figures_of_a_failing_long_check_are_not_published(
    page: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["long_checks", "soak", "fuzz"])
    assert long_checks.main() == 1
    assert "| fuzz figures |" in page.read_text()
    assert "soak figures" not in page.read_text()
    assert "FAILED with exit code 3" in capsys.readouterr().out


def test_passing_long_checks_exit_with_0(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["long_checks", "fuzz"])
    assert long_checks.main() == 0

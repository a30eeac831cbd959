"""The index of published runs says what their directories hold, and is current."""

from __future__ import annotations

from pathlib import Path

import index_reports
import pytest
from small_drill import execute_here, write_contract

from harness import session
from harness.drill import drill as fire_drill
from harness.errors import EvidenceError
from harness.runners import supervisor


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that held, one that is violated, and a drill."""
    folder = tmp_path_factory.mktemp("published")
    contract = write_contract(folder, "lost_first_update, missing_run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(supervisor, "execute", execute_here)
        patch.setattr(session, "SIDE_BY_SIDE", 1)
        patch.setattr(session, "write_reports", lambda *_: None)
        for name, fault in (("1-held", None), ("2-violated", "lost_first_update")):
            options = session.Options(workloads=("short",), fault=fault, reports=folder / "reports", name=name)
            session.verify([contract], options)
        fire_drill.drill([contract], fire_drill.Options(reports=folder / "reports", name="3-drill"))
    return folder / "reports"


def test_every_run_has_a_row_with_its_count_line_and_a_drill_its_matrix(reports: Path) -> None:
    rows = index_reports.tables(index_reports.published(reports)).splitlines()
    _, _, held, violated, drill = rows[:5]
    assert held.startswith("| [1-held](1-held/report.html) | ")
    assert "1 planned · 1 held · 0 violated" in held
    assert "planted fault `lost_first_update`: 1 planned · 0 held · 1 violated" in violated
    assert "fire drill: 2 faults planted · 2 killed · 0 survived · 1 of 1 controls held" in drill


def test_what_did_not_hold_is_named_with_what_was_seen(reports: Path) -> None:
    text = index_reports.tables(index_reports.published(reports))
    _, _, left = text.partition("What did not hold, or was not decided, in these runs:\n\n")
    rows = left.splitlines()[2:]
    assert [row.split(" | ")[:4] for row in rows] == [["| 2-violated", "SHORT-001", "short", "FAIL differs"]]


def test_a_directory_without_verdicts_is_not_listed_as_if_it_had_them(reports: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_bytes((reports / "1-held" / "run.json").read_bytes())
    with pytest.raises(EvidenceError, match="holds its verdicts"):
        index_reports.published(tmp_path)


def test_the_index_is_current() -> None:
    page = index_reports.PAGE.read_text(encoding="utf-8")
    text = index_reports.tables(index_reports.published(index_reports.REPORTS))
    assert page == index_reports.with_tables(page, text), "run scripts/index_reports.py"

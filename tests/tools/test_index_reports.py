"""The index of published runs says what their directories hold, and is current."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import index_reports
import page_tables
import pytest
from archive_builders import Member, archive_of

from harness.api import drill as fire_drill
from harness.api import session
from harness.errors import EvidenceError
from harness.report.wording import reason_text
from harness.run_directory.bundle import read_bundle

SCRIPTED = Path(__file__).parents[1] / "support" / "scripted"


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of two units of which one is violated, a run with a planted fault, and a drill; all played."""
    monkeypatch.syspath_prepend(str(SCRIPTED))
    import scripted_system

    monkeypatch.setattr("harness.execution.supervisor.execute", scripted_system.play)
    monkeypatch.setattr("harness.execution.sharing._repetitions", lambda _run: [])
    monkeypatch.setattr(session, "write_reports", lambda *_: None)  # reports have tests of their own
    contract = tmp_path / "scripted-v1.yaml"
    text = scripted_system.contract_text("held", "violated").replace("[nan_tail]", "[no_steps, missing_run]")
    contract.write_text(text, encoding="utf-8")
    folder = tmp_path / "reports"
    session.verify([contract], session.VerifyOptions(reports=folder, name="1-plain"))
    planted = session.VerifyOptions(reports=folder, name="2-planted", fault="nan_tail", workloads=("held",))
    session.verify([contract], planted)
    fire_drill.drill([contract], fire_drill.DrillOptions(reports=folder, name="3-drill"))
    (folder / "1-plain" / "report.html").touch()
    return folder


def test_every_run_has_a_row_with_its_counts_in_the_reports_index_and_a_drill_has_its_matrix(reports: Path) -> None:
    rows = index_reports.tables(index_reports.published(reports), index_reports.drills(reports)).splitlines()
    plain, planted, drill = rows[2:5]
    assert plain.startswith("| [1-plain](1-plain/report.html) | ")
    assert plain.endswith("| 2 units · 1 held · 1 violated |")
    assert planted.startswith("| [2-planted](2-planted/summary.md) | ")
    assert "| planted fault `nan_tail`: 1 unit · " in planted
    assert "| fire drill: 2 faults planted · 2 killed · 0 survived · 1 of 1 control held" in drill


def test_the_reports_index_names_each_unit_that_did_not_pass_with_its_reason(reports: Path) -> None:
    text = index_reports.tables(index_reports.published(reports), index_reports.drills(reports))
    _, _, left = text.partition("What did not hold, or was not decided, in these runs:\n\n")
    [row] = left.partition("\n\n")[0].splitlines()[2:]
    assert row.startswith("| 1-plain | SCRIPT-001 | violated | FAIL differs | ")
    assert str(reason_text("differs").meaning) in row


def test_claims_with_the_same_result_share_a_row_in_the_reports_index(reports: Path) -> None:
    plain = index_reports.published(reports)[0]
    [violated] = [verdict for verdict in plain.verdicts.claims if verdict.workload == "violated"]
    claims = [violated, violated.model_copy(update={"claim": "SCRIPT-002"})]
    claims.append(violated.model_copy(update={"claim": "SCRIPT-003", "reason": "ends_apart"}))
    run = replace(plain, verdicts=plain.verdicts.model_copy(update={"claims": claims}))
    text = index_reports.tables([run], []).partition("in these runs:\n\n")[2]
    rows = text.partition("\n\n")[0].splitlines()[2:]
    assert [row.split(" | ")[1] for row in rows] == ["SCRIPT-001, SCRIPT-002", "SCRIPT-003"]


def test_a_published_directory_without_verdicts_is_refused(reports: Path) -> None:
    (reports / "1-plain" / "verdicts.json").unlink()
    with pytest.raises(EvidenceError, match="must contain its verdicts"):
        index_reports.published(reports)


ARCHIVES = sorted(index_reports.REPORTS.rglob("run.tar.xz"), key=lambda path: path.stat().st_size)
REFUSED = re.escape("a published run must have a readable run.json")


@pytest.mark.parametrize("archive", ARCHIVES[:3], ids=lambda path: path.parent.name)
def test_the_header_read_from_an_archive_is_that_of_the_run(archive: Path) -> None:
    assert index_reports.header_of(archive.parent) == read_bundle(archive.parent).header


@pytest.mark.parametrize(
    ("name", "told"),
    [("run/verdicts.json", "found none"), ("run/evidence/run.json", "found none"), ("run/run.json", "ValidationError")],
)
def test_an_archive_without_a_readable_header_is_refused(tmp_path: Path, name: str, told: str) -> None:
    archive_of(tmp_path / "run.tar.xz", Member(name, b"{}"))
    with pytest.raises(EvidenceError, match=f"{REFUSED}.*{told}"):
        index_reports.header_of(tmp_path)


def test_a_truncated_archive_is_refused(tmp_path: Path) -> None:
    whole = ARCHIVES[0].read_bytes()
    (tmp_path / "run.tar.xz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(EvidenceError, match=REFUSED):
        index_reports.header_of(tmp_path)


def test_the_reports_index_counts_faults_over_all_drills(reports: Path) -> None:
    (drill,) = [run.drill for run in index_reports.published(reports) if run.drill is not None]
    demanded = {("SCRIPT-001", "no_steps"), ("SCRIPT-001", "missing_run"), ("SCRIPT-001", "nan_tail")}
    every = "SCRIPT-001 `missing_run`, SCRIPT-001 `nan_tail`, SCRIPT-001 `no_steps`"
    assert index_reports.coverage([drill], demanded).splitlines() == [
        "Of the 3 pairs of a claim and a fault that it names:",
        "",
        f"- in drills on a GPU machine: 0 killed, 0 survived, 3 not planted ({every})",
        "- in drills on any machine: 2 killed, 0 survived, 1 not planted (SCRIPT-001 `nan_tail`)",
    ]
    survivor = drill.model_copy(update={"rows": [drill.rows[0].model_copy(update={"killed": False})]})
    assert "1 killed, 1 survived (SCRIPT-001 `no_steps`), 1 not" in index_reports.coverage([drill, survivor], demanded)


def test_the_committed_index_of_reports_is_up_to_date() -> None:
    page = index_reports.PAGE.read_text(encoding="utf-8")
    text = index_reports.text(index_reports.REPORTS)
    assert page == page_tables.filled(page, text), "run tools/docs/index_reports.py"


def test_commits_of_published_runs_are_named_only_in_the_files_of_these_runs() -> None:
    page = index_reports.PAGE.read_text(encoding="utf-8")
    by_hand, of_runs = page_tables.filled(page, ""), index_reports.text(index_reports.REPORTS)
    assert re.findall(r"`[0-9a-f]{7,40}`", by_hand) == []
    gate = next(line for line in of_runs.splitlines() if "`gates/2026-11-23-h200x2-ranks-trains-tiny`" in line)
    assert gate.startswith("| `35efb8309b56` with uncommitted changes | ")

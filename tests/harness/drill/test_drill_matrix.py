"""The kill matrix as text and JSON, and the exit code of a drill."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.api.drill import DrillResult, as_json, count_line, lines
from harness.errors import EvidenceError
from harness.run_directory.verdict_file import (
    FILE,
    Control,
    DrillRecord,
    NotDrilled,
    Row,
    Triple,
    last_of,
    read_record,
    record_text,
    records_below,
)

HELD = Control(contract="c", claim="C-1", workload="w", status="PASS", reason="held", message="m")
NOT_RUN = NotDrilled(contract="c", claim="C-2", fault="late_jit", reason="needs_cuda", message="needs CUDA")


def row(fault: str = "stale", *, killed: bool = True, upstream: bool | None = None) -> Row:
    expected = Triple(status="FAIL", reason="differs", figures={"first_differing_step": 1})
    seen = expected if killed else Triple(status="PASS", reason="held", figures={"first_differing_step": None})
    return Row(
        contract="c",
        claim="C-1",
        workload="w",
        fault=fault,
        expected=expected,
        seen=seen,
        killed=killed,
        upstream_alone_passes=upstream,
        message="it held",
    )


def record(*rows: Row, controls: tuple[Control, ...] = (HELD,), **fields: Any) -> DrillRecord:
    values: dict[str, Any] = {
        "recorded_at": "2026-01-01T00:00:00+00:00",
        "machine": {"cuda": False, "gpus": [], "host_memory_gib": 8.0},
        "contracts": {"c": "0" * 64},
    }
    values["planned"] = len(rows) + len(fields.get("not_run", []))
    return DrillRecord(**{**values, **fields}, controls=list(controls), rows=list(rows))


def control(status: str) -> Control:
    return HELD.model_copy(update={"status": status})


@pytest.mark.parametrize(
    ("seen", "code"),
    [
        (record(row()), 0),
        (record(row(), row("other", killed=False)), 1),
        (record(row(), controls=(HELD, control("FAIL"))), 1),
        (record(row(), controls=(control("INCONCLUSIVE"),)), 1),
        (record(row(killed=False), controls=(control("ERROR"),)), 12),
        (record(not_run=[NOT_RUN], controls=()), 10),
    ],
)
def test_a_drill_record_determines_the_exit_code(seen: DrillRecord, code: int) -> None:
    assert DrillResult(seen).exit_code == code


def test_the_first_line_of_a_drill_counts_faults_and_controls() -> None:
    seen = record(row(), row("b", killed=False), controls=(HELD, control("FAIL")), not_run=[NOT_RUN])
    assert count_line(seen) == ("2 faults planted · 1 killed · 1 survived · 1 of 2 controls held · 1 not run")


def test_the_drill_matrix_lists_survivors_first_with_the_expected_verdict() -> None:
    assert lines(record(row("good"), row("bad", killed=False)))[1:] == [
        "  SURVIVED C-1 on w: bad: PASS held first_differing_step=None",
        "             expected: FAIL differs first_differing_step=1",
        "             seen: it held",
        "  killed   C-1 on w: good: FAIL differs first_differing_step=1",
    ]


def test_the_drill_matrix_lists_per_claim_which_faults_upstreams_number_would_pass() -> None:
    seen = record(row("a", upstream=True), row("b", upstream=False), row("c", upstream=True), row("d"))
    assert lines(seen)[-1] == "  the tolerance of C-1 alone would not detect: a, c"


def test_the_drill_matrix_lists_failed_controls_and_faults_not_run() -> None:
    told = lines(record(row(), controls=(control("FAIL"),), not_run=[NOT_RUN, NOT_RUN]))
    assert "  CONTROL  C-1 on w: FAIL held: m" in told
    assert "  not run  2 faults: needs_cuda: needs CUDA" in told


def test_the_drill_json_contains_the_record_and_the_run_directory() -> None:
    printed = json.loads(as_json(record(row()), Path("reports/x")))
    assert printed["run_directory"] == "reports/x"
    assert printed["rows"][0]["expected"] == {
        "status": "FAIL",
        "reason": "differs",
        "figures": {"first_differing_step": 1},
    }
    assert printed["format_version"] == 2


def test_a_drill_record_is_read_back_unchanged(tmp_path: Path) -> None:
    seen = record(row(), row("b", killed=False, upstream=True), not_run=[NOT_RUN])
    (tmp_path / FILE).write_text(record_text(seen), encoding="utf-8")
    assert read_record(tmp_path / FILE) == seen


def test_a_drill_record_of_an_unknown_version_is_refused(tmp_path: Path) -> None:
    text = record_text(record(row())).replace('"format_version": 2', '"format_version": 3')
    (tmp_path / FILE).write_text(text, encoding="utf-8")
    with pytest.raises(EvidenceError, match=r"drill\.json has format version 3, but this harness reads 1 to 2"):
        read_record(tmp_path / FILE)


def test_the_last_record_of_a_contract_is_the_newest_record_that_includes_it(tmp_path: Path) -> None:
    first = record(row(), recorded_at="2026-01-01T00:00:00+00:00")
    second = record(row(), recorded_at="2026-01-02T00:00:00+00:00")
    other = record(row(), recorded_at="2026-01-03T00:00:00+00:00", contracts={"d": "0" * 64})
    for name, each in (("b", first), ("a", second), ("c", other)):
        (tmp_path / name).mkdir()
        (tmp_path / name / FILE).write_text(record_text(each), encoding="utf-8")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / FILE).write_text("{", encoding="utf-8")
    found = records_below(tmp_path, [])
    assert found == [first, second, other]
    assert last_of("c", found) == second
    assert last_of("d", found) == other
    assert last_of("e", found) is None

"""Every version of a file that was ever written is read; another one is refused, whatever else is new in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest

from harness.errors import EvidenceError
from harness.run_directory.bundle import Header, read_bundle
from harness.run_directory.verdict_file import DrillRecord, VerdictFile, Versioned, read_verdicts


@pytest.mark.parametrize(
    ("name", "read", "known"), [("run.json", read_bundle, "1 to 3"), ("verdicts.json", read_verdicts, "1 to 2")]
)
def test_an_unknown_format_version_is_refused_with_known_ones(run: Path, name: str, read: object, known: str) -> None:
    content = json.loads((run / name).read_text())
    (run / name).write_text(json.dumps({"a_newer_field": 1, **content, "format_version": 7}))
    assert callable(read)
    with pytest.raises(EvidenceError) as refused:
        read(run)
    assert f"{name} has format version 7, but this harness reads {known}:" in str(refused.value)
    assert "a_newer_field" not in str(refused.value)


@pytest.mark.parametrize("model", [Header, DrillRecord, VerdictFile], ids=lambda model: model.__name__)
def test_every_older_format_version_has_a_reader(model: type[Versioned]) -> None:
    known = get_args(model.model_fields["format_version"].annotation)
    assert [*model.older, *known] == list(range(1, max(known) + 1))


def test_a_version_1_drill_record_takes_its_planned_count_from_its_rows() -> None:
    published = Path(__file__).parents[3] / "reports" / "2026-11-23-h200-drill-untimed" / "drill.json"
    record = json.loads(published.read_text(encoding="utf-8"))
    planned = record.pop("planned")
    assert DrillRecord.model_validate({**record, "format_version": 1}).planned == planned
    assert DrillRecord.model_validate({**record, "format_version": 1}).format_version == 2

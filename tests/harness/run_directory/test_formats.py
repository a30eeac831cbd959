"""A file of a version that is not known is refused by that version, whatever else is new in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.errors import EvidenceError
from harness.run_directory.bundle import read_bundle
from harness.run_directory.verdict_file import read_verdicts


@pytest.mark.parametrize(
    ("name", "read", "known"), [("run.json", read_bundle, "1 to 3"), ("verdicts.json", read_verdicts, "1")]
)
def test_an_unknown_version_is_named_with_the_known_ones(run: Path, name: str, read: object, known: str) -> None:
    content = json.loads((run / name).read_text())
    (run / name).write_text(json.dumps({"a_newer_field": 1, **content, "format_version": 7}))
    assert callable(read)
    with pytest.raises(EvidenceError) as refused:
        read(run)
    assert f"{name} has format version 7, and this harness reads {known}:" in str(refused.value)
    assert "a_newer_field" not in str(refused.value)

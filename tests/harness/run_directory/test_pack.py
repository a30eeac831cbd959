"""`harness pack`: what it makes, and what it refuses to publish."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from sealing import seal

from harness.api.rejudge import Rejudged, rejudged
from harness.cli import pack
from harness.errors import EvidenceError, UsageError
from harness.run_directory.bundle import read_bundle


def test_packing_writes_pages_verdicts_and_one_archive_and_keeps_the_source(run: Path) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    lines = pack.published(run, Path("published"))
    files = {path.name: path.read_bytes() for path in Path("published").iterdir()}
    size = sum(map(len, files.values()))
    digest = hashlib.sha256(files["manifest.json"]).hexdigest()
    assert lines == (
        f"published: {size} bytes, 2 units · 1 held · 1 violated",
        f"manifest: sha256:{digest}",
    )
    assert sorted(files) == ["manifest.json", "report.html", "run.tar.xz", "summary.md", "verdicts.json"]
    assert all(files[name] == before[run / name] for name in files if name not in {"run.tar.xz", "manifest.json"})
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    bundle = read_bundle(Path("published"))
    unpacked = {path.relative_to(bundle.root): path.read_bytes() for path in bundle.root.rglob("*") if path.is_file()}
    inside = {path.relative_to(run): data for path, data in before.items()}
    own = unpacked.pop(Path("manifest.json"))
    assert unpacked == {
        path: data for path, data in inside.items() if path.parts[0] in {"run.json", "contracts", "evidence"}
    }
    listed = {Path(file["path"]): file["sha256"] for file in json.loads(own)["files"]}
    assert listed == {path: hashlib.sha256(data).hexdigest() for path, data in unpacked.items()}


def test_packing_the_same_run_twice_gives_equal_archives(run: Path) -> None:
    pack.published(run, Path("first"))
    for path in run.rglob("*"):
        os.utime(path, (1, 1))
    pack.published(run, Path("second"))
    pack.published(Path("first"), Path("third"))
    assert Path("first/run.tar.xz").read_bytes() == Path("second/run.tar.xz").read_bytes()
    assert Path("first/run.tar.xz").read_bytes() == Path("third/run.tar.xz").read_bytes()


def incomplete(run: Path) -> None:
    (run / "INCOMPLETE").touch()


def altered(run: Path) -> None:
    next(run.glob("evidence/*/records.jsonl")).write_text("")


def with_other_verdicts(run: Path) -> None:
    text = (run / "verdicts.json").read_text()
    (run / "verdicts.json").write_text(text.replace('"reason": "', '"reason": "un'))


def without_page(run: Path) -> None:
    (run / "report.html").unlink()


def never_drawn(run: Path) -> None:
    (run / "report.html").unlink()
    seal(run)


def with_notes(run: Path) -> None:
    (run / "notes.txt").touch()


@pytest.mark.parametrize(
    ("change", "got"),
    [
        (incomplete, "found the run did not finish, or its manifest.json was removed"),
        (altered, "records.jsonl: changed"),
        (with_other_verdicts, "verdicts.json: the evidence gives other verdicts"),
        (without_page, "report.html: missing"),
        (with_notes, "notes.txt: not recorded with the run"),
        (never_drawn, "found no report.html; write the pages with `harness report`"),
    ],
)
def test_an_incomplete_or_changed_run_is_not_packed(run: Path, change: Callable[[Path], None], got: str) -> None:
    change(run)
    with pytest.raises(EvidenceError) as refused:
        pack.published(run, Path("out/published"))
    assert got in str(refused.value)
    assert not Path("out").exists()


def test_a_published_run_is_never_replaced(run: Path) -> None:
    Path("published").mkdir()
    problem = "published: the new folder for the published run must not exist yet; found one that exists"
    with pytest.raises(UsageError, match=problem):
        pack.published(run, Path("published"))


def test_packing_is_refused_if_the_packed_run_would_be_read_differently(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoilt(path: Path) -> Rejudged:
        for copy in path.glob("run.tar.xz"):
            (path / "verdicts.json").write_text("{}")
            assert copy.stat().st_size
        return rejudged(path)

    monkeypatch.setattr(pack, "rejudged", spoilt)
    with pytest.raises(
        EvidenceError, match="out/published: the packed run must have the same content as the original run; found "
    ):
        pack.published(run, Path("out/published"))
    assert list(Path("out").iterdir()) == []


def test_packing_writes_to_the_reports_folder_by_default(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack.pack(run)
    size, manifest = capsys.readouterr().out.splitlines()
    assert size.startswith("reports/1-run: ")
    assert manifest.startswith("manifest: sha256:")

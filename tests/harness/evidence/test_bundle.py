"""Run directories: writing, interruption, tampering."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bundle_builders import LOADED, RUN_ID, finished, header, write_evidence

from harness.errors import EvidenceError, UsageError
from harness.run_directory.bundle import altered, read_bundle
from harness.run_directory.shards import attempts
from harness.run_directory.writer import BundleWriter


def test_a_finished_directory_holds_contracts_evidence_and_digests(tmp_path: Path) -> None:
    writer = BundleWriter(tmp_path / "out" / "run", header(), [LOADED])
    assert writer.path.parent == tmp_path / "out"
    assert writer.path.name.startswith("run.incomplete-")
    assert (writer.path / "INCOMPLETE").exists()
    write_evidence(writer)
    assert writer.finish() == tmp_path / "out" / "run"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["run"]
    bundle = read_bundle(tmp_path / "out" / "run")
    assert bundle.complete
    assert sorted(path.name for path in bundle.path.iterdir()) == ["contracts", "evidence", "manifest.json", "run.json"]
    assert [path.read_text() for path in bundle.contract_paths()] == [LOADED.text]
    of_the_run = {f"evidence/{RUN_ID}/{name}" for name in ("heartbeat", "records.jsonl", "run.json")}
    assert bundle.recorded() == {"run.json", "contracts/c.yaml", *of_the_run}
    assert bundle.evidence(RUN_ID).death is None
    assert altered(bundle) == []


def test_an_abandoned_run_directory_is_incomplete_and_its_missing_run_counts_as_dead(tmp_path: Path) -> None:
    writer = BundleWriter(tmp_path / "run", header(), [LOADED])
    assert writer.abandon() == tmp_path / "run"
    bundle = read_bundle(tmp_path / "run")
    assert not bundle.complete
    [attempt] = attempts([bundle], [])
    [evidence] = attempt.evidence
    assert (evidence.run_id, evidence.probe) == (RUN_ID, "paired")
    assert evidence.death is not None
    assert (evidence.death.cause, evidence.death.detail) == ("incomplete", "the run left no evidence")
    assert altered(bundle) == []


def test_a_killed_writer_leaves_the_marker_under_the_temporary_name(tmp_path: Path) -> None:
    writer = BundleWriter(tmp_path / "run", header(), [LOADED])
    write_evidence(writer)
    assert not (tmp_path / "run").exists()
    assert not read_bundle(writer.path).complete


def test_a_run_directory_cannot_be_written_twice(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with pytest.raises(UsageError, match="written only once"):
        BundleWriter(tmp_path / "run", header(), [LOADED])


def test_a_run_whose_name_was_taken_meanwhile_loses_no_evidence(tmp_path: Path) -> None:
    writer = BundleWriter(tmp_path / "run", header(), [LOADED])
    write_evidence(writer)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "someone_elses").touch()
    with pytest.raises(EvidenceError, match="written only once"):
        writer.finish()
    assert read_bundle(writer.path).evidence(RUN_ID).death is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda root: (root / "evidence" / RUN_ID / "records.jsonl").write_text(""), "records.jsonl: changed"),
        (lambda root: (root / "evidence" / RUN_ID / "records.jsonl").unlink(), "records.jsonl: missing"),
        (lambda root: (root / "evidence" / RUN_ID / "death.json").write_text("{}"), "death.json: not recorded"),
        (lambda root: (root / "contracts" / "c.yaml").write_text("id: d"), "contracts/c.yaml: changed"),
        (lambda root: (root / "contracts" / "c.yaml").unlink(), "contracts/c.yaml: missing"),
    ],
)
def test_each_change_of_a_finished_run_directory_is_reported(tmp_path: Path, change: object, said: str) -> None:
    bundle = finished(tmp_path / "run", header())
    assert callable(change)
    change(bundle.path)
    [line] = altered(read_bundle(bundle.path))
    assert said in line


def test_deleting_the_manifest_and_lowering_the_format_version_is_still_reported(tmp_path: Path) -> None:
    bundle = finished(tmp_path / "run", header())
    document = json.loads((bundle.path / "run.json").read_text())
    (bundle.path / "run.json").write_text(json.dumps({**document, "format_version": 2}))
    (bundle.path / "manifest.json").unlink()
    assert len(altered(read_bundle(bundle.path))) == 3


@pytest.mark.parametrize("text", ["", "[]", "{}", "nonsense", "[" * 100_000, '{"units": NaN}'])
def test_a_damaged_header_is_an_evidence_error(tmp_path: Path, text: str) -> None:
    bundle = finished(tmp_path / "run", header())
    (bundle.path / "run.json").write_text(text)
    with pytest.raises(EvidenceError, match="a run directory must contain a readable run"):
        read_bundle(bundle.path)


def test_a_folder_that_is_not_a_run_is_refused_with_the_folders_to_name(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="found none; name the folder that `harness verify` printed"):
        read_bundle(tmp_path)
    for number in range(4):
        finished(tmp_path / f"run-{number}", header())
    with pytest.raises(EvidenceError, match="found none; name one of the runs in this folder: run-0, run-1, run-2, …"):
        read_bundle(tmp_path)


def test_a_missing_run_directory_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="must exist"):
        read_bundle(tmp_path / "nowhere")


def test_a_run_id_cannot_point_outside_of_the_run_directory(tmp_path: Path) -> None:
    bundle = finished(tmp_path / "run", header())
    for name in ("../../elsewhere", "..", "/etc"):
        with pytest.raises(EvidenceError, match="a run's id must be the name of its directory"):
            bundle.evidence(name)


def test_evidence_stored_under_the_name_of_a_different_run_counts_as_damaged(tmp_path: Path) -> None:
    bundle = finished(tmp_path / "run", header())
    (bundle.path / "evidence" / RUN_ID).rename(bundle.path / "evidence" / "c+w+paired")
    death = bundle.evidence("c+w+paired").death
    assert death is not None
    assert (death.cause, death.detail) == ("garbage", f"this is the evidence of run {RUN_ID!r}")


def test_a_run_with_damaged_evidence_counts_as_dead_without_an_effect_on_other_runs(tmp_path: Path) -> None:
    bundle = finished(tmp_path / "run", header())
    (bundle.path / "evidence" / RUN_ID / "run.json").write_text("[" * 100_000)
    evidence = bundle.evidence(RUN_ID)
    assert (evidence.run_id, evidence.probe, evidence.arms) == (RUN_ID, "paired", {})
    assert evidence.death is not None
    assert evidence.death.cause == "garbage"

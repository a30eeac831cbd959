"""What may change a sealed run, what it leaves as it was, and what a seal is asked by."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from archive_builders import packed
from sealing import forge, seal

from harness.api.rejudge import judged, refuse_others, rejudged
from harness.cli import judge as judge_command
from harness.cli.compare import comparison
from harness.cli.pack import published
from harness.cli.report import render
from harness.errors import EvidenceError, UsageError
from harness.run_directory.seal import read_manifest, write_manifest

PAGES = ("verdicts.json", "report.html", "junit.xml", "summary.md")
VIOLATED = "scripted-v1+violated+paired"


def digest(directory: Path) -> str:
    return read_manifest(directory)[1]


def gate(directory: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = judge_command.print_verdicts([directory], gate=True, as_json=False)
    return code, next(line for line in capsys.readouterr().out.splitlines() if line.startswith(("ERROR", "VIOLATED")))


def test_judging_an_unchanged_run_again_keeps_its_manifest(run: Path) -> None:
    before = digest(run)
    assert judge_command.replace_recorded([run]) == 0
    assert render(run) == []
    assert digest(run) == before


@pytest.mark.parametrize("name", PAGES)
def test_verdicts_and_pages_are_regenerated_from_the_evidence(run: Path, name: str) -> None:
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    (run / name).unlink()
    assert judge_command.replace_recorded([run]) == 0
    assert {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()} == before


def test_a_rerendered_run_gets_a_manifest_that_names_the_manifest_that_it_replaces(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = read_manifest(run)[0]
    first = digest(run)
    monkeypatch.setattr("harness.report.markdown.render_markdown", lambda _view: "drawn otherwise\n")
    assert render(run) == []
    after = read_manifest(run)[0]
    assert (after.seen, after.replaces) == (before.seen, first)
    assert rejudged(run).problems == []


@pytest.mark.parametrize(
    "name", ["run.json", f"evidence/{VIOLATED}/fast.0.csv", f"evidence/{VIOLATED}/records.jsonl", "notes.txt"]
)
def test_a_run_with_changed_evidence_is_never_sealed_again(run: Path, name: str) -> None:
    with (run / name).open("a") as file:
        file.write("\n")
    before = (run / "manifest.json").read_bytes()
    with pytest.raises(EvidenceError, match="can be written again only if its other files are unchanged"):
        judge_command.replace_recorded([run])
    assert any(name in warning for warning in render(run))
    assert (run / "manifest.json").read_bytes() == before
    assert name in "\n".join(rejudged(run).problems)


def test_evidence_that_changes_while_pages_are_written_is_not_sealed(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_more(folder: Path, *_: object, **__: object) -> None:
        (folder / "evidence" / VIOLATED / "death.json").write_text("{}")

    before = (run / "manifest.json").read_bytes()
    monkeypatch.setattr("harness.api.session.write_reports", write_more)
    with pytest.raises(
        EvidenceError,
        match="when verdicts and pages are written again; found evidence that differs from the sealed evidence",
    ):
        judge_command.replace_recorded([run])
    assert (run / "manifest.json").read_bytes() == before


@pytest.mark.parametrize("form", ["folder", "published"])
def test_a_manifest_whose_evidence_digest_differs_is_reported(run: Path, form: str) -> None:
    published(run, Path("published"))
    directory = run if form == "folder" else Path("published")
    forged = read_manifest(directory)[0].model_copy(update={"seen": "0" * 64})
    write_manifest(directory, forged)
    assert rejudged(directory).problems == [
        f"{directory.name}: manifest.json: belongs to different evidence than the evidence in this directory"
    ]


def test_an_unfinished_run_is_never_sealed(run: Path) -> None:
    (run / "manifest.json").unlink()
    with pytest.raises(EvidenceError, match="found the run did not finish"):
        judge_command.replace_recorded([run])
    assert "did not finish" in render(run)[0]
    assert not (run / "manifest.json").exists()


@pytest.mark.parametrize("change", ["INCOMPLETE", "manifest.json"])
def test_an_incomplete_or_changed_run_is_reported_by_every_reader(
    run: Path, change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run, "whole")
    if change == "INCOMPLETE":
        (run / change).touch()
    else:
        (run / change).unlink()
    assert gate(run, capsys) == (12, "ERROR: The gate is closed: the run did not finish, so nothing here is proven.")
    assert judge_command.check_recorded([run], as_json=False) == 12
    assert judge_command.check_recorded([Path("whole"), run], gate=True, as_json=False) == 12
    text, code = comparison(Path("whole"), run)
    told = "WARNING, after: Incomplete: 1-run did not finish"
    assert (any(line.startswith(told) for line in text), code) == (True, 12)
    with pytest.raises(EvidenceError, match="only a complete and unchanged run can be published"):
        published(run, Path("published"))


def of_before(directory: Path) -> None:
    """The directory as it would have been written before there were manifests."""
    (directory / "manifest.json").unlink()
    evidence = {
        path.relative_to(directory).as_posix(): _sha256(path)
        for path in (directory / "evidence").rglob("*")
        if path.is_file()
    }
    header = json.loads((directory / "run.json").read_text())
    del header["digests"]["packages"]
    header["digests"]["evidence"] = evidence
    (directory / "run.json").write_text(json.dumps({**header, "format_version": 2}))


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_run_without_a_manifest_keeps_the_gate_closed_until_it_is_judged_again(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of_before(run)
    assert gate(run, capsys) == (12, "ERROR: The gate is closed: the run has no seal, so nothing here is proven.")
    assert judge_command.check_recorded([run], as_json=False) == 12
    assert "the run has no manifest.json; `harness judge --write` seals" in capsys.readouterr().err
    assert judge_command.replace_recorded([run]) == 0
    code, headline = gate(run, capsys)
    assert (code, headline.startswith("VIOLATED: 1 unit is violated.")) == (1, True)  # an uncommitted change adds some
    assert judge_command.check_recorded([run], as_json=False) == 0


@pytest.mark.parametrize("name", [f"evidence/{VIOLATED}/fast.0.csv", "contracts/scripted-v1.yaml"])
def test_sealing_a_run_without_a_manifest_first_checks_its_recorded_digests(run: Path, name: str) -> None:
    of_before(run)
    (run / name).write_text((run / name).read_text() + "\n")
    with pytest.raises(
        EvidenceError, match=re.escape(f"if its other files are unchanged; found 1-run: {name}: changed")
    ):
        judge_command.replace_recorded([run])


def test_a_published_run_without_a_manifest_is_sealed_next_to_its_archive(run: Path, tmp_path: Path) -> None:
    of_before(run)
    folder = Path("published")
    folder.mkdir()
    for name in PAGES:
        (run / name).rename(folder / name if name != "junit.xml" else tmp_path / name)
    packed(run, folder / "run.tar.xz", "run")
    assert rejudged(folder).problems == [
        "the run has no manifest.json; `harness judge --write` seals runs that were recorded before manifests existed"
    ]
    assert judge_command.replace_recorded([folder]) == 0
    assert rejudged(folder).problems == []
    published(folder, Path("again"))
    assert rejudged(Path("again")).problems == []
    assert read_manifest(Path("again"))[0].replaces == digest(folder)


def test_a_forged_run_is_refused_by_its_earlier_digest(run: Path) -> None:
    kept = digest(run)
    refuse_others([run], [kept])
    refuse_others([run], [f"sha256:{kept}"])
    forge(run / "run.json", lambda header: header["environment"]["gpu"].update(name="NVIDIA H200"))
    assert rejudged(run).problems == []  # nothing in the directory tells
    with pytest.raises(
        EvidenceError,
        match="runs/1-run: the digest of the run's manifest must be one of the digests given with --digest; found "
        f"{digest(run)}",
    ):
        refuse_others([run], [kept])


def test_every_expected_digest_needs_a_directory_and_each_directory_a_digest(run: Path) -> None:
    with pytest.raises(EvidenceError, match=f"no run whose manifest has the digest {'0' * 64}"):
        refuse_others([run], [digest(run), "0" * 64])
    with pytest.raises(UsageError, match="--digest must be the SHA-256 of a manifest"):
        refuse_others([run], ["abc"])
    (run / "manifest.json").unlink()
    with pytest.raises(EvidenceError, match="found no manifest"):
        refuse_others([run], ["0" * 64])


def claim_nothing(header: Any) -> None:
    header["narrowed"]["claims"] = ["SCRIPT-001", "NO-SUCH"]


def other_gpu(header: Any) -> None:
    header["environment"]["gpu"]["uuid"] = "GPU-other"


def other_commit(header: Any) -> None:
    header["environment"]["git"]["commit"] = f"{'2' * 40}+changes"


def stray_run(header: Any) -> None:
    header["runs"]["more"] = "paired"


def lost_run(header: Any) -> None:
    del header["runs"][VIOLATED]


def other_source(header: Any) -> None:
    header["digests"]["source"] = "0" * 64


def invented_waiver(header: Any) -> None:
    unit = {"contract": "scripted-v1", "claim": "SCRIPT-001", "workload": "violated"}
    header["waivers"] = [{**unit, "owner": "eve", "reason": "no", "expires": "2099-01-01", "expired": False}]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (claim_nothing, "the run was narrowed to claim NO-SUCH, which none of these contracts has"),
        (
            lambda header: header["narrowed"].update(workloads=["x"]),
            "the run was narrowed to workload x, which none of these contracts",
        ),
        (
            lambda header: header["narrowed"].update(workloads=["held"]),
            "SCRIPT-001 on violated is planned, but",
        ),
        (other_gpu, f"the recorded GPU is GPU-other, but run {VIOLATED} used GPU-own"),
        (other_commit, f"the recorded commit is {'2' * 40}, but run {VIOLATED} was executed at {'1' * 40}"),
        (stray_run, "run more was planned, but no unit reads it"),
        (lost_run, f"run {VIOLATED} is read by a unit, but was not planned"),
        (lost_run, f"evidence/{VIOLATED} belongs to no planned run"),
        (other_source, "`digests.source` differs from `environment.source_digest`"),
        (invented_waiver, "the recorded waiver of SCRIPT-001 on violated is in no file of waivers/"),
    ],
)
def test_a_header_that_contradicts_the_evidence_keeps_the_gate_closed(
    run: Path, change: Callable[[Any], None], said: str
) -> None:
    times = {"started": 0.0, "ended": 1.0, "gpu": "GPU-own", "commit": "1" * 40}
    (run / "evidence" / VIOLATED / "process.json").write_text(json.dumps(times))
    forge(run / "run.json", lambda header: header["environment"]["gpu"].update(uuid="GPU-own"))
    forge(run / "run.json", lambda header: header["environment"]["git"].update(commit=f"{'1' * 40}+changes"))
    assert rejudged(run).problems == []
    forge(run / "run.json", change)
    _, judgement = judged([run])
    assert any(f"1-run: run.json: {said}" in line for line in judgement.view.altered)
    assert judgement.exit_code == 12


def test_an_edited_waiver_file_in_a_run_is_reported(run: Path) -> None:
    (run / "waivers").mkdir()
    waiver = (
        "schema: waivers/v1\nwaivers:\n  - {contract: scripted-v1, claim: SCRIPT-001, workload: violated, "
        "owner: ada, reason: known, expires: 2099-01-01}\n"
    )
    (run / "waivers" / "1.yaml").write_text(waiver)
    forge(run / "run.json", invented_waiver)
    assert judged([run])[1].exit_code == 12
    signed = {"owner": "ada", "reason": "known"}
    forge(run / "run.json", lambda header: header["waivers"][0].update(signed))
    assert judged([run])[1].exit_code == 0
    for changes in ({"expires": "2099-12-31"}, {"reason": "because"}, {"expired": True}):
        waived = {**signed, **changes}
        forge(run / "run.json", lambda header, waived=waived: header["waivers"][0].update(waived))  # type: ignore[misc]
        assert judged([run])[1].view.altered
    (run / "waivers" / "1.yaml").write_text("nothing of the kind")
    seal(run)
    assert "1-run: run.json: the files in waivers/ are not valid waiver files" in judged([run])[1].view.altered

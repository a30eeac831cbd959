"""A run reads the same as a folder, as an archive and as a published folder, and nothing stays behind."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from archive_builders import packed
from sealing import forge
from waiting import LIMIT_S

from harness.api.rejudge import judged, rejudged
from harness.api.session import judgement_json
from harness.cli import judge as judge_command
from harness.cli.compare import comparison
from harness.cli.history import write_history
from harness.cli.pack import published
from harness.cli.report import render
from harness.errors import ContractErrors, EvidenceError, UsageError
from harness.run_directory.bundle import read_bundle
from harness.run_directory.places import runs_in


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.tgz", "a.tar.xz", "a.txz", "A.TAR.XZ"])
@pytest.mark.parametrize("top", [".", "1-run"])
def test_an_archive_is_judged_like_its_folder(run: Path, temporary: Path, name: str, top: str) -> None:
    archive = packed(run, Path(name), top)
    again = rejudged(archive)
    assert again.problems == []
    assert again.judgement.verdicts == judged([run])[1].verdicts
    assert json.loads(judgement_json(again.judgement))["run_directory"] == name


def test_files_unpacked_from_an_archive_are_deleted_with_the_bundle(run: Path, temporary: Path) -> None:
    bundle = read_bundle(packed(run, Path("a.tar"), "."))
    assert len(list(temporary.iterdir())) == 1
    del bundle
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("damage", ["no archive", "no header", "newer header"])
def test_a_refused_archive_leaves_no_unpacked_files(run: Path, temporary: Path, damage: str) -> None:
    header = run / "run.json"
    if damage == "newer header":
        header.write_text(header.read_text().replace('"format_version": 3', '"format_version": 99'))
    elif damage == "no header":
        header.unlink()
    archive = packed(run, Path("a.tar"), ".")
    if damage == "no archive":
        archive.write_bytes(b"nothing of the kind")
    with pytest.raises(EvidenceError, match=r"^a\.tar: ") as refused:
        read_bundle(archive)
    assert str(temporary) not in str(refused.value)
    assert list(temporary.iterdir()) == []


def test_a_terminated_command_deletes_the_files_that_it_unpacked(run: Path, temporary: Path) -> None:
    archive = packed(run, Path("a.tar"), ".")
    program = (
        "import sys, time, harness.api.session\n"
        "from harness.cli import application\n"
        "harness.api.session.judge_bundles = lambda *_, **__: (print('reading', flush=True), time.sleep(600))\n"
        f"sys.argv = ['harness', 'judge', {str(archive)!r}]\n"
        "application.main()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "reading\n"
        assert len(list(temporary.iterdir())) == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 143
    assert list(temporary.iterdir()) == []


def test_an_error_in_an_archived_contract_names_the_archive(run: Path, temporary: Path) -> None:
    [copy] = (run / "contracts").iterdir()
    copy.write_text("schema: contract/v9\n", encoding="utf-8")
    digest = hashlib.sha256(copy.read_bytes()).hexdigest()
    forge(run / "run.json", lambda header: header["digests"]["contracts"].update({copy.stem: digest}))
    with pytest.raises(ContractErrors, match=rf"^a\.tar/contracts/{copy.name}:1:9: 'schema' must name a known version"):
        judged([packed(run, Path("a.tar"), "1-run")])


def test_a_changed_contract_in_an_archive_is_reported_as_altered(run: Path, temporary: Path) -> None:
    [copy] = (run / "contracts").iterdir()
    copy.write_text("schema: contract/v9\n", encoding="utf-8")
    with pytest.raises(EvidenceError, match=rf"must not be changed; found contracts/{copy.name}: changed"):
        judged([packed(run, Path("a.tar"), "1-run")])


def test_an_archive_with_an_extra_file_is_refused_with_the_files_name(run: Path, temporary: Path) -> None:
    (run.parent / "notes.txt").touch()
    with pytest.raises(
        EvidenceError,
        match=r"a\.tar: an archive of a run must contain nothing except this run; found notes.txt next to 1",
    ):
        read_bundle(packed(run.parent, Path("a.tar"), "."))


def test_a_file_with_an_unknown_extension_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    (tmp_path / "run.zip").touch()
    with pytest.raises(EvidenceError, match=r"found a file; name a folder, or a file that ends in \.tar, \.tar\.gz"):
        read_bundle(tmp_path / "run.zip")


def test_no_command_writes_into_an_archive(run: Path, temporary: Path) -> None:
    archive = packed(run, Path("a.tar"), ".")
    before = archive.read_bytes()
    for command in (render, lambda path: judge_command.replace_recorded([path])):
        with pytest.raises(UsageError, match=r"^a\.tar: .*; unpack the archive and name the folder"):
            command(archive)
    assert archive.read_bytes() == before


def test_shards_of_a_gate_may_be_archives(run: Path, temporary: Path) -> None:
    shutil.copytree(run, "other")
    bundles, judgement = judged([packed(run, Path("a.tar"), "."), packed(Path("other"), Path("b.tar"), ".")])
    assert [bundle.path for bundle in bundles] == [Path("a.tar"), Path("b.tar")]
    assert {name.partition("/")[0] for name in judgement.view.evidence} == {"a.tar"}
    assert judgement.counts.line() == judged([run])[1].counts.line()


def test_compare_and_history_read_runs_in_folders_and_in_archives(
    run: Path, temporary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    published(run, Path("runs/2-published"))
    archive = packed(run, Path("runs/3-archive.tar.gz"), "run")
    (run / "INCOMPLETE").touch()
    packed(run, Path("runs/4-unfinished.tar"), ".")
    (run / "INCOMPLETE").unlink()
    assert comparison(Path("runs/2-published"), archive) == comparison(run, run)
    assert [path.name for path in runs_in(Path("runs"))] == [
        *("1-run", "2-published", "3-archive.tar.gz", "4-unfinished.tar")
    ]
    assert write_history(Path("runs"), Path("page.html")) == "3 runs, 1 left out: page.html"
    assert capsys.readouterr().err == (
        "left out: runs/4-unfinished.tar did not finish, or its manifest.json was removed\n"
    )
    assert str(temporary) not in Path("page.html").read_text()


def test_history_lists_every_run_below_a_folder_with_its_page(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run directory within another run directory, such as a manually unpacked run, is not listed separately."""
    assert (run / "report.html").is_file()
    packed(run, Path("runs/packed.tar"), "run")
    shutil.copytree(run, "runs/gates/a & b: c")
    shutil.copytree(run, "runs/gates/outer")
    shutil.copytree(run, "runs/gates/outer/evidence/inner")
    shutil.copytree(run, "runs/gates/damaged")
    Path("runs/gates/damaged/run.json").write_text("{")
    Path("pages").mkdir()
    written = write_history(Path("runs"), Path("pages/history.html"))
    assert written == "3 runs, 2 left out: pages/history.html"
    page = Path("pages/history.html").read_text()
    links = ["../runs/1-run", "../runs/gates/a%20%26%20b%3A%20c", "../runs/gates/damaged", "../runs/gates/outer"]
    assert sorted(re.findall(r'href="(\.\.[^"]+)/report.html"', page)) == links
    assert "5 runs: 3 verified, 2 left out" in page
    assert "outer</a>: differs from its recorded digests" in page
    assert "damaged</a>: cannot be read: a run directory must contain a readable run.json; found run.json:" in page


def test_checking_and_rewriting_a_published_run_uses_the_files_next_to_its_archive(
    run: Path, temporary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path("published")
    published(run, folder)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    (folder / "verdicts.json").write_text("{}")
    assert judge_command.check_recorded([folder], as_json=False) == 12
    assert "published/verdicts.json: the evidence gives other verdicts" in capsys.readouterr().err
    for name in ("verdicts.json", "report.html", "summary.md"):
        (folder / name).write_text("{}")
    assert judge_command.replace_recorded([folder]) == 0
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files
    assert render(folder) == []
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files


def test_an_archive_replaced_by_another_archive_of_the_same_run_is_reported(run: Path, temporary: Path) -> None:
    published(run, Path("published"))
    packed(run, Path("published/run.tar.xz"), "run")
    [problem] = rejudged(Path("published")).problems
    assert problem.startswith("published: run.tar.xz: changed: ")


@pytest.mark.parametrize(("name", "got"), [("evidence", "evidence next to it"), ("run.json", "run.json next to it")])
def test_a_published_run_with_evidence_next_to_its_archive_is_refused(run: Path, name: str, got: str) -> None:
    published(run, Path("published"))
    copy = shutil.copytree if (run / name).is_dir() else shutil.copy
    copy(run / name, Path("published") / name)
    with pytest.raises(EvidenceError, match=f"its evidence only in run.tar.xz; found {got}"):
        read_bundle(Path("published"))


def test_a_published_archive_that_is_a_link_is_refused(run: Path) -> None:
    published(run, Path("published"))
    Path("published/run.tar.xz").rename("elsewhere.tar.xz")
    Path("published/run.tar.xz").symlink_to(Path("elsewhere.tar.xz").absolute())
    with pytest.raises(EvidenceError, match=r"only in run\.tar\.xz; found a link"):
        read_bundle(Path("published"))


def test_a_folder_with_only_a_summary_says_that_its_evidence_was_not_kept(tmp_path: Path) -> None:
    (tmp_path / "summary.md").write_text("12 units held")
    with pytest.raises(EvidenceError, match=r"found only a summary\.md; .*; read the summary\.md"):
        read_bundle(tmp_path)

"""One page for several run directories: `judge --gate … --out` and `report … --out`, with runs that are played."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree as ET

import pytest
from report_page import Page
from sealing import forge

from harness.cli import application

A, B, OUT = Path("harness-reports/a"), Path("harness-reports/b"), Path("gate")

Shards = Callable[..., None]


def called(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["harness", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            application.main()
    assert isinstance(left.value.code, int)
    return subprocess.CompletedProcess(sys.argv, left.value.code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders with the run directories of some behaviours, each made once."""
    return tmp_path_factory.mktemp("shards")


@pytest.fixture
def shards(kept: Path, played: None) -> Shards:
    """Two run directories of one contract, in the current folder: of its first workload, and of all others."""

    def made(*behaviours: str) -> None:
        folder = kept / "-".join(behaviours)
        if not folder.exists():
            folder.mkdir()
            with contextlib.chdir(folder):
                _run_apart(*behaviours)
        shutil.copytree(folder, ".", dirs_exist_ok=True)

    return made


def _run_apart(*behaviours: str) -> None:
    from scripted_system import contract_text

    Path("contracts").mkdir()
    Path("contracts/scripted-v1.yaml").write_text(contract_text(*behaviours))
    others = [word for name in behaviours[1:] for word in ("--workload", name)]
    for directory, narrowed in ((A, ["--workload", behaviours[0]]), (B, others)):
        called("verify", "contracts", *narrowed, "--name", directory.name)


def set_to(*path: str, value: object) -> Callable[[Any], None]:
    """What sets a value deep in a header."""

    def change(header: Any) -> None:
        for key in path[:-1]:
            header = header[key]
        header[path[-1]] = value

    return change


@pytest.fixture(autouse=True)
def _somewhere(played: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def page() -> Page:
    return Page((OUT / "report.html").read_text())


def test_shards_that_passed_open_the_gate_on_one_page(shards: Shards) -> None:
    shards("held", "repeated")
    done = called("judge", "--gate", A, B, "--out", OUT)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in OUT.iterdir()) == ["junit.xml", "report.html", "summary.md"]
    assert "HELD 2 units · 2 held The gate is open: every planned unit was decided and held." in page().words()
    suites = ET.fromstring((OUT / "junit.xml").read_text())  # noqa: S314 - our own output
    parts = [part for each in suites.iter("system-out") for part in re.findall(r"(?m)^part: (.+)$", each.text or "")]
    assert (suites.get("tests"), suites.get("failures"), parts) == ("2", "0", ["a", "b"])
    summary = (OUT / "summary.md").read_text()
    assert "2 units · 2 held" in summary
    assert re.findall(r"^\| (\w+) \| HELD \| 1 of 1 \|", summary, re.MULTILINE) == ["a", "b"]
    assert done.stdout.splitlines()[-1] == f"report: {OUT / 'report.html'}"


@pytest.mark.parametrize(("behaviours", "code"), [(("held", "violated"), 1), (("held", "not_run"), 10)])
def test_a_shared_page_exits_with_the_code_of_the_gate(shards: Shards, behaviours: tuple[str, ...], code: int) -> None:
    shards(*behaviours)
    assert called("judge", "--gate", A, B, "--out", OUT).returncode == code
    assert (OUT / "report.html").exists()


def test_the_terminal_prints_a_line_for_each_part(shards: Shards) -> None:
    shards("held", "violated")
    lines = [line for line in called("judge", "--gate", A, B).stdout.splitlines() if line.startswith("part ")]
    assert [line.partition(" · ")[0] for line in lines] == [
        "part a: HELD, 1 of 1 held",
        "part b: VIOLATED, 0 of 1 held",
    ]


def test_the_links_of_a_shared_page_lead_to_each_parts_own_page(shards: Shards) -> None:
    shards("held", "violated")
    spaced = Path(shutil.copytree(B, "with space"))
    called("judge", "--gate", A, spaced, "--out", "deep/gate")
    links = Page(Path("deep/gate/report.html").read_text()).all("a")
    ways = [str(each["href"]) for each in links if not str(each["href"]).startswith("#")]
    assert ways[1] == "../../with%20space/report.html"
    assert [Path("deep/gate", unquote(way)).resolve() for way in ways] == [
        (folder / "report.html").resolve() for folder in (A, spaced)
    ]


def test_a_part_without_a_page_has_no_link(shards: Shards) -> None:
    shards("held", "repeated")
    (B / "report.html").unlink()
    called("judge", "--gate", A, B, "--out", OUT)
    assert [each["href"] for each in page().all("a") if "report.html" in str(each["href"])] == [
        "../harness-reports/a/report.html"
    ]


def test_runs_with_equal_names_in_two_folders_are_labelled_with_their_folder(shards: Shards) -> None:
    shards("held", "violated")
    Path("x").mkdir()
    shutil.move(A, "x/run")
    shutil.move(B, B.with_name("run"))
    done = called("judge", "--gate", "x/run", B.with_name("run"), "--out", OUT)
    assert "part x/run: HELD, 1 of 1 held" in done.stdout
    assert "part harness-reports/run: VIOLATED, 0 of 1 held" in done.stdout


def test_a_unit_judged_differently_by_a_later_part_is_named_and_the_earliest_counts(shards: Shards) -> None:
    shards("held", "violated")
    later = Path(shutil.copytree(B, "later"))
    [records] = later.glob("evidence/*/fast.0.csv")
    [plain] = later.glob("evidence/*/plain.0.csv")
    shutil.copyfile(plain, records)
    forge(later / "run.json", set_to("started_at", value="2030-01-01T00:00:00+00:00"))
    done = called("judge", "--gate", A, B, later, "--out", OUT)
    assert done.returncode == 1
    note = "Judged differently in several parts: SCRIPT-001 on violated. The earliest attempt counts."
    assert note in done.stdout.splitlines()
    assert note in page().words()
    assert "judged in later, too, where it does not count: held, held" in page().words()


# --- runs that are not one gate ----------------------------------------------------------------------------------


def of_other_sources(directory: Path) -> None:
    forge(directory / "run.json", set_to("digests", "source", value="ab" * 32))
    forge(directory / "run.json", set_to("environment", "source_digest", value="ab" * 32))


def test_runs_with_different_sources_are_refused_as_a_gate(shards: Shards) -> None:
    shards("held", "repeated")
    of_other_sources(B)
    refused = called("judge", "--gate", A, B, "--out", OUT)
    assert (refused.returncode, "shards must come from the same sources" in refused.stderr) == (12, True)
    assert not OUT.exists()


def test_runs_with_different_sources_on_one_page_never_count_as_a_passed_gate(shards: Shards) -> None:
    shards("held", "repeated")
    of_other_sources(B)
    done = called("report", A, B, "--out", OUT)
    assert done.returncode == 0, done.stderr
    words = page().words()
    apart = "Every planned unit held. Each run was judged by itself: together the runs are not one gate."
    assert f"HELD SEPARATELY 2 units · 2 held {apart}" in words
    assert "Not one gate (shards must come from the same sources): each run is judged by itself." in words
    assert "≠ abababababab" in words
    assert (OUT / "summary.md").read_text().count("**HELD SEPARATELY**") == 1


def test_a_unit_judged_under_two_versions_of_a_contract_is_shown_twice(shards: Shards) -> None:
    from scripted_system import contract_text

    shards("held", "violated")
    Path("contracts/scripted-v1.yaml").write_text(contract_text("held", "violated").replace("0.1", "0.2"))
    called("verify", "contracts", "--workload", "violated", "--name", "c")
    done = called("report", B, "harness-reports/c", "--out", OUT)
    assert done.returncode == 0, done.stderr
    assert "2 units · 2 violated" in (OUT / "summary.md").read_text()
    suites = ET.fromstring((OUT / "junit.xml").read_text())  # noqa: S314 - our own output
    assert [suite.get("name") for suite in suites.iter("testsuite")] == ["scripted-v1 (b)", "scripted-v1 (c)"]


# --- what is refused, and what is warned of -----------------------------------------------------------------------


@pytest.mark.parametrize("command", [["judge", "--gate"], ["report"]], ids=["judge", "report"])
@pytest.mark.parametrize(
    ("out", "said"),
    [
        (
            "full",
            "full: the folder of --out must be empty; found a folder that contains kept.txt; name a folder that is new",
        ),
        ("file", "file: --out must name a folder; found a file"),
        ("harness-reports/a/gate", "harness-reports/a/gate: nothing may be written into an existing run"),
    ],
    ids=["a full folder", "a file", "inside a run"],
)
def test_invalid_output_folders_of_a_page_are_refused(shards: Shards, command: list[str], out: str, said: str) -> None:
    shards("held", "repeated")
    Path("full").mkdir()
    Path("full/kept.txt").write_text("kept")
    Path("file").write_text("kept")
    done = called(*command, A, B, "--out", out)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert [path.name for path in Path("full").iterdir()] == ["kept.txt"]
    assert called("judge", "--check", A).returncode == 0


def test_a_shared_page_is_written_into_an_existing_empty_folder(shards: Shards) -> None:
    shards("held", "repeated")
    OUT.mkdir()
    assert called("report", A, B, "--out", OUT).returncode == 0
    assert (OUT / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["report", A, B], "the pages of several runs need a separate folder, which --out names; found no --out"),
        (
            ["judge", A, B, "--out", OUT, "--check"],
            "--out cannot be combined with --check or --write; found --check",
        ),
        (
            ["judge", A, B, "--out", OUT, "--write"],
            "--out cannot be combined with --check or --write; found --write",
        ),
        (["report", A, "nowhere", "--out", OUT], "nowhere: the path must exist"),
    ],
    ids=["several without --out", "--check", "--write", "nothing there"],
)
def test_invalid_options_of_shared_pages_are_refused(shards: Shards, arguments: list[str | Path], said: str) -> None:
    shards("held", "repeated")
    done = called(*arguments)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    assert not OUT.exists()


def test_a_run_and_a_drill_of_its_contract_can_have_one_page(shards: Shards) -> None:
    shards("held", "repeated")
    called("drill", "contracts", "--name", "drill")
    drill = Path("harness-reports/drill")
    sealed = {path: path.read_bytes() for run in (A, drill) for path in run.rglob("*") if path.is_file()}
    done = called("report", A, drill, "--out", OUT)
    assert done.returncode == 0, done.stderr
    words = page().words()
    assert "Verification" in words
    assert "Faults by claims" in words
    assert "no fault planted" not in words
    assert {path: path.read_bytes() for path in sealed} == sealed

    told = f"the page lacks a later drill; to show both: harness report {A} {drill} --out FOLDER"
    assert called("report", A).stdout.splitlines()[0] == told
    assert "later drill" not in called("report", drill).stdout
    began = json.loads((A / "run.json").read_text())["started_at"]
    record = drill / "drill.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"recorded_at": began}))
    assert called("report", A).stdout.splitlines()[0] == told

    contract = Path("contracts/scripted-v1.yaml")
    contract.write_text(contract.read_text().replace("0.1", "0.2"))
    called("drill", "contracts", "--name", "other")
    refused = called("report", A, "harness-reports/other", "--out", "elsewhere")
    assert refused.returncode == 12
    assert (
        "a page can show a drill next to runs only if the drill planted faults into contracts of these runs"
        in refused.stderr
    )


@pytest.mark.parametrize("command", [["judge", "--gate"], ["report"]], ids=["judge", "report"])
@pytest.mark.parametrize(
    ("second", "said"),
    [
        ("contracts", "contracts: a run directory must contain a readable run.json"),
        (
            "harness-reports/../harness-reports/a",
            "each run must be named only once; found harness-reports/a again; leave out one",
        ),
        ("harness-reports/drill", "a shard of a gate must not plant a fault; found fault `nan_tail`"),
    ],
    ids=["no run directory", "twice", "a drill"],
)
def test_a_run_that_cannot_join_a_gate_is_refused(shards: Shards, command: list[str], second: str, said: str) -> None:
    shards("held", "repeated")
    called("verify", "contracts", "--fault", "nan_tail", "--workload", "held", "--name", "drill")
    done = called(*command, A, second, "--out", OUT)
    assert (done.returncode, said in done.stderr) == (12, True), done.stderr
    assert not OUT.exists()


@pytest.mark.parametrize("command", [["judge", "--gate"], ["report"]], ids=["judge", "report"])
@pytest.mark.parametrize(
    ("file", "warning"),
    [
        ("INCOMPLETE", "Incomplete: b did not finish, or its manifest was removed."),
        ("contracts/added.txt", "Altered: 1 file differs from the digests recorded with the run"),
    ],
    ids=["unfinished", "altered"],
)
def test_an_incomplete_or_changed_part_makes_the_gate_an_error(
    shards: Shards, command: list[str], file: str, warning: str
) -> None:
    shards("held", "repeated")
    (B / file).touch()
    done = called(*command, A, B, "--out", OUT)
    assert (done.returncode, f"WARNING: {warning}" in done.stdout + done.stderr) == (12, True)
    words = page().words()
    assert warning in words
    assert re.search(r"\ba HELD 1 of 1 .*\bb ERROR 1 of 1 ", words)


def test_a_shared_page_under_github_actions_writes_one_set_of_annotations(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards("held", "violated")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "step.md")
    judged = called("judge", "--gate", A, B, "--out", OUT)
    drawn = called("report", A, B, "--out", "other")
    for done in (judged, drawn):
        told = [line for line in done.stdout.splitlines() if line.startswith("::")]
        assert [line.partition("::")[2].partition("::")[0] for line in told] == [
            "error file=contracts/scripted-v1.yaml,line=12,title=SCRIPT-001 on violated%3A violated"
        ]
    assert Path("step.md").read_text().count("2 units · 1 held · 1 violated") == 2


def test_json_output_is_one_object_even_when_pages_are_written(shards: Shards) -> None:
    shards("held", "repeated")
    done = called("judge", "--gate", A, B, "--out", OUT, "--json")
    assert json.loads(done.stdout)["gate"]["open"] is True
    assert (OUT / "report.html").exists()

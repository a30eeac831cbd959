"""What the file system refuses ends a command with a line that says of which path: never with a traceback, and where an
option names the path, as usage does, before anything runs."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_here import called

from harness.api.rejudge import judged, rejudged
from harness.errors import ExitCode

LONG = "x" * 300
STEP = "def make_step(seed):\n    return step, batch, model\n"


@pytest.fixture
def folder(run_that_held: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, played: None) -> Path:
    """The working directory, with `runs/run`, contracts, a step's file, and a file in the place of a folder."""
    shutil.copytree(run_that_held, tmp_path, dirs_exist_ok=True)
    (tmp_path / "FILE").touch()
    (tmp_path / "train.py").write_text(STEP)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        f"{command} --reports {place}"
        for command in ("verify contracts", "verify contracts --on local", "drill contracts", "try train.py:make_step")
        for place in ("FILE", "FILE/a", "/proc/x", LONG)
    ]
    + [f"verify contracts --name {'x' * length}" for length in (240, 300)]
    + [f"verify contracts --on local --name {LONG}", f"drill contracts --name {LONG}"]
    + [f"{command} runs/run --out {place}" for command in ("judge", "report") for place in ("FILE/a", "/proc/x", LONG)]
    + [f"pack runs/run --out {place}" for place in ("FILE/a", "/proc/x/a", LONG)]
    + [f"judge runs/run --badge {place}" for place in ("FILE/a", "/proc/x", LONG, "contracts")]
    + [f"attest runs/run --unsigned --file {place}" for place in ("FILE/a", LONG)]
    + [f"history runs --out {place}" for place in ("FILE/a", LONG)],
    ids=lambda words: words.replace("/", "_").replace(LONG, "LONG"),
)
def test_an_output_path_that_cannot_be_written_is_a_usage_error_before_any_run(
    words: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def executed(*_: object, **__: object) -> None:
        raise AssertionError("something was run")

    monkeypatch.setattr("harness.execution.supervisor.execute", executed)
    monkeypatch.setattr("harness.extras.fleet.gate.ShardJob", executed)
    code, said = called(*words.split())
    error = [line for line in said.splitlines() if line.startswith("error: ")]
    assert (code, len(error), "Traceback" in said) == (ExitCode.USAGE, 1, False), said
    assert "the named path must be writable; found " in error[0]


def test_a_folder_that_cannot_be_written_is_a_usage_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path, _: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("harness.api.session.write_text", refused)
    code, said = called("judge", "runs/run", "--out", "pages")
    assert (code, said.splitlines()[-1][:16], "found Permission denied" in said) == (
        ExitCode.USAGE,
        "error: pages: th",
        True,
    )


def test_init_writes_no_file_if_one_of_its_files_cannot_be_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.cli.init._measured", lambda draft, *_: (draft, "", []))  # nothing is trained
    (folder / "contracts-long").write_text("a file")
    before = sorted(path.relative_to(folder) for path in folder.rglob("*"))
    code, said = called("init", "train.py:make_step")
    assert (code, "contracts-long/train-long-v1.yaml: the named path must" in said) == (ExitCode.USAGE, True), said
    assert sorted(path.relative_to(folder) for path in folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EACCES, "make the path readable"),
        (errno.EROFS, "copy the folder to a place that is writable"),
        (errno.ENOSPC, "make room"),
        (errno.EIO, "fix this"),
    ],
)
def test_an_operating_system_error_with_a_path_is_printed_in_one_line_with_a_remedy(
    number: int, remedy: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        error = OSError(number, os.strerror(number), "runs/run/verdicts.json")
        error.add_note("kept the evidence so far")
        raise error

    monkeypatch.setattr("harness.cli.judge.write_verdicts", refused)
    code, said = called("judge", "runs/run", "--write")
    first, *others = said.splitlines()
    assert (code, others) == (ExitCode.ERROR, ["kept the evidence so far"])
    assert first.startswith("error: runs/run/verdicts.json: ")
    assert f"found {os.strerror(number)}; {remedy}" in first


def test_a_system_error_without_a_path_keeps_its_traceback(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")

    monkeypatch.setattr("harness.cli.judge.write_verdicts", broken)
    code, said = called("judge", "runs/run", "--write")
    assert (code, "| Traceback" in said, "ConnectionResetError" in said) == (ExitCode.ERROR, True, True)


@pytest.fixture
def unreadable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run as whoever may not look into its `evidence/` has it: mode 000, which root would read."""
    evidence = os.fspath(folder / "runs" / "run" / "evidence")

    def asked(function: Callable[..., Any], *, itself: bool) -> Callable[..., Any]:
        def call(path: Any = ".", *arguments: Any, **named: Any) -> Any:
            place = os.path.abspath(os.fspath(path)) if isinstance(path, str | os.PathLike) else ""  # noqa: PTH100
            if place.startswith(f"{evidence}/") or (itself and place == evidence):
                raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))
            return function(path, *arguments, **named)

        return call

    for name in ("stat", "lstat", "open"):
        monkeypatch.setattr(os, name, asked(getattr(os, name), itself=False))
    for name in ("scandir", "listdir"):
        monkeypatch.setattr(os, name, asked(getattr(os, name), itself=True))
    return Path("runs/run")


@pytest.mark.parametrize("options", [[], ["--gate"], ["--json"], ["--check"]], ids="-".join)
def test_a_run_with_unreadable_evidence_counts_as_dead_and_as_altered(options: list[str], unreadable: Path) -> None:
    code, said = called("judge", str(unreadable), *options)
    assert (code, "Traceback" in said, "error:" in said) == (ExitCode.ERROR, False, False), said
    [bundle], judgement = judged([unreadable])
    assert "run: evidence: cannot be read: Permission denied" in judgement.view.altered
    [run] = bundle.header.runs
    death = bundle.evidence(run).death
    assert death is not None
    assert (death.cause, death.detail) == ("garbage", "cannot be read: Permission denied")


def test_further_commands_report_an_unreadable_run_without_a_traceback(unreadable: Path) -> None:
    shutil.copytree(unreadable, "same", ignore=lambda *_: ["evidence"])
    for words in (["compare", "same", str(unreadable)], ["report", str(unreadable), "--out", "pages"]):
        code, said = called(*words)
        assert (code, "Traceback" in said, "error:" in said) == (ExitCode.ERROR, False, False), said
    code, said = called("history", "runs")
    assert (code, "left out: runs/run" in said) == (ExitCode.USAGE, True), said
    assert rejudged(unreadable).problems

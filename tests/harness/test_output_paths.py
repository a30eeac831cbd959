"""No command writes into a run that is there: it would break the seal, and say nothing of it."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from command_here import called

from harness.api.rejudge import rejudged
from harness.cli.attest import beside
from harness.errors import ExitCode, UsageError
from harness.run_directory.places import made_folder, refuse_within_run

PUBLISHED = Path(__file__).parents[2] / "reports" / "examples" / "2026-11-22-h200-plain_loop"
STEP = "def make_step(seed):\n    return step, batch, model\n"
UPSTREAM = """\
proof_obligations:
- {id: G-2, property: Faster, formal: graphed_tok_s / ungraphed_tok_s >= 2.0}
"""


@pytest.fixture
def runs(run_that_held: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, played: None) -> Path:
    """The working directory, with `runs/run`, `published`, a step's file and contracts that are no run's."""
    shutil.copytree(run_that_held, tmp_path, dirs_exist_ok=True)
    shutil.copytree(PUBLISHED, tmp_path / "published")
    monkeypatch.chdir(tmp_path)
    return tmp_path


RUN, PUB = "runs/run", "published"


@pytest.mark.parametrize(
    ("within", "words"),
    [
        (RUN, ["pack", "."]),
        (RUN, ["pack", "../run"]),
        (RUN, ["pack", "../../published"]),
        (".", ["pack", RUN, "--out", f"{RUN}/pub"]),
        (f"{RUN}/evidence", ["pack", ".."]),
        (PUB, ["pack", "../runs/run"]),
        (".", ["pack", RUN, "--out", f"{PUB}/pub"]),
        (RUN, ["judge", ".", "--badge", "badge.json"]),
        (RUN, ["judge", "../../published", "--badge", "badge.json"]),
        (".", ["judge", PUB, "--badge", f"{PUB}/badge.json"]),
        (".", ["judge", RUN, "--badge", f"{RUN}/verdicts.json"]),
        (RUN, ["judge", "../../published", "--out", "gate"]),
        (RUN, ["report", "../../published", "--out", "gate"]),
        (RUN, ["history", ".."]),
        (".", ["history", "runs", "--out", f"{RUN}/evidence/history.html"]),
        (".", ["attest", RUN, "--unsigned", "--file", f"{RUN}/statement.json"]),
        (RUN, ["verify", "../../contracts"]),
        (".", ["verify", "contracts", "--reports", f"{RUN}/evidence"]),
        (".", ["verify", "contracts", "--reports", "runs", "--name", "run/another"]),
        (".", ["verify", "contracts", "--on", "local", "--reports", RUN]),
        (".", ["drill", "contracts", "--reports", RUN]),
        (RUN, ["init", "../../train.py:make_step"]),
        (".", ["try", "train.py:make_step", "--reports", RUN]),
        (RUN, ["try", "../../train.py:make_step", "--write-contract"]),
        (".", ["import", "upstream.yaml", "--write", f"{RUN}/imported.yaml"]),
    ],
    ids=lambda value: "-".join(map(str, value)).replace("/", "_") if isinstance(value, list) else None,
)
def test_commands_refuse_to_write_into_a_sealed_run(within: str, words: Sequence[str | Path], runs: Path) -> None:
    (runs / "train.py").write_text(STEP)
    (runs / "upstream.yaml").write_text(UPSTREAM)
    before = {path: path.read_bytes() for path in runs.rglob("*") if path.is_file()}
    with contextlib.chdir(within):
        code, said = called(*words)
    assert (code, "nothing may be written into an existing run" in said) == (ExitCode.USAGE, True), said
    assert {path: path.read_bytes() for path in runs.rglob("*") if path.is_file()} == before
    assert [rejudged(Path(run)).problems for run in (RUN, PUB)] == [[], []]


def test_a_run_is_packed_under_the_name_of_its_directory(runs: Path) -> None:
    with contextlib.chdir("runs/run/evidence"):
        assert called("pack", "..", "--out", runs / "first")[0] == ExitCode.HELD
    assert called("pack", "runs/../runs/run/.")[0] == ExitCode.HELD
    with contextlib.chdir("runs"):
        assert called("pack", "./run/")[0] == ExitCode.HELD
        with contextlib.chdir("run"):
            assert "run.intoto.json" in str(beside(Path()))
            assert beside(Path()).parent == runs / "runs"
        with contextlib.chdir("run/evidence"):
            assert beside(Path("..")) == runs / "runs" / "run.intoto.json"
    assert [path.name for path in (runs / "reports").iterdir()] == ["run"]
    assert [path.name for path in (runs / "runs" / "reports").iterdir()] == ["run"]


def test_writing_into_a_run_through_a_link_is_refused(runs: Path) -> None:
    Path("linked").symlink_to("runs/run/evidence")
    (runs / "page.html").symlink_to("runs/run/report.html")
    for path in (Path("linked/page.html"), Path("page.html"), Path("linked/../page.html")):
        with pytest.raises(UsageError, match="nothing may be written into an existing run"):
            refuse_within_run(path)
    refuse_within_run(Path("runs/page.html"))
    refuse_within_run(Path("contracts/page.html"))


@pytest.mark.parametrize("mark", ["manifest.json", "INCOMPLETE", "verdicts.json"])
@pytest.mark.parametrize("kept", ["run.json", "run.tar.xz"])
def test_a_run_header_with_a_run_mark_makes_a_folder_a_run(kept: str, mark: str, tmp_path: Path) -> None:
    (tmp_path / kept).touch()
    refuse_within_run(tmp_path / "a" / "b")
    (tmp_path / mark).touch()
    with pytest.raises(UsageError, match="a path inside the run"):
        refuse_within_run(tmp_path / "a" / "b")
    with pytest.raises(UsageError, match="a path inside the run"):
        made_folder(tmp_path)
    os.unlink(tmp_path / kept)  # noqa: PTH108
    made_folder(tmp_path / "a" / "b")


@pytest.mark.parametrize(("umask", "is_taken"), [(0o077, True), (0o400, False), (0o777, False)])
def test_a_run_is_not_started_if_the_umask_makes_it_unreadable(runs: Path, umask: int, is_taken: bool) -> None:
    before = os.umask(umask)
    try:
        code, said = called("verify", "contracts", "--name", "new", "--reports", "others")
    finally:
        os.umask(before)
    assert (runs / "others" / "new" / "run.json").exists() is is_taken
    assert (code == ExitCode.USAGE) is not is_taken
    assert (f"found a umask of {umask:03o}, which denies the owner access" in said) is not is_taken

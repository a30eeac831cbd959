"""Two commits compared: equal commits are equal, and each planted difference is found and named."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import compare_commits
import pytest
import snapshot

from harness.execution.recorder import Recorder, StepRows

ROOT = Path(__file__).parents[2]
# what the head changes, by file: an exit code, a line of help, a status, a figure
PLANTED = {
    "harness/errors.py": ("VIOLATED = 1\n", "VIOLATED = 3\n"),
    "harness/cli/check.py": ("Read contracts and lint them", "Read contracts"),
    "harness/judging/reasons.py": ('DIFFERS = _fails("differs")', 'DIFFERS = _undecided("differs")'),
    "harness/kinds/captures/capture.py": ("capture.replays,", "capture.replays + 1,"),
}


@pytest.fixture
def commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A repository with this harness, and with a second commit in which four things are changed."""
    repository = tmp_path / "repository"
    for name in ("harness", "tests/support"):
        shutil.copytree(ROOT / name, repository / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", repository)

    def git(*arguments: str) -> str:
        command = ["git", "-c", "user.name=A", "-c", "user.email=a@example.org", *arguments]
        done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def commit() -> str:
        git("add", "--all")
        git("commit", "--quiet", "--message", "A state of the harness")
        return git("rev-parse", "HEAD")

    git("init", "--quiet")
    base = commit()
    for name, (before, after) in PLANTED.items():
        text = (repository / name).read_text(encoding="utf-8")
        assert text.count(before) == 1, name
        (repository / name).write_text(text.replace(before, after), encoding="utf-8")
    monkeypatch.setattr(compare_commits, "ROOT", repository)
    return [base, commit()]


def test_comparing_a_commit_with_itself_finds_no_difference(
    commits: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare_commits.main([commits[0], commits[0], "--only", "exit-codes"]) == 0
    assert capsys.readouterr().out == "exit-codes: 8 equal, 0 different, 0 new\n"


@pytest.mark.slow
def test_planted_differences_of_two_commits_are_named(
    commits: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare_commits, "MOST_SHOWN", 10_000)
    sections = ["judge", "help", "exit-codes", "published"]
    assert compare_commits.main([*commits, "--only", *sections]) == 1
    printed = capsys.readouterr().out
    assert "  VIOLATED\n    base: 1\n    head: 3\n" in printed
    assert '    base: ["  check    Read contracts and lint them; nothing is run."]\n' in printed
    assert "published: 0 equal" in printed  # nothing to compare is not equal
    assert " › status\n    base: " in printed
    assert " › figures › replays › 0\n    base: " in printed


def recorded(folder: Path, loss: float = 1.0) -> dict[str, Any]:
    """The recorded values of a run, as the sections of a commit have them."""
    folder.mkdir()
    with Recorder(folder) as recorder:
        recorder.phase("plain.0: steps")
        recorder.series("plain", 0).rows(StepRows([0], [loss], ["b"], [-1], [8]))
    files = (folder / name for name in ("records.jsonl", "plain.0.csv"))
    return dict(pair for file in files for pair in snapshot.values_of(f"run/{file.name}", file.read_text()))


def test_comparing_commits_ignores_times_and_compares_other_records(tmp_path: Path) -> None:
    base, again, head = (recorded(tmp_path / name) for name in ("base", "again", "head"))
    found = compare_commits.compare("records", base, head, again)
    assert (found.different, found.new) == ([], [])
    assert found.left_out == ["records.jsonl › phase › began", "records.jsonl › phase › seconds"]
    assert found.holds
    head = recorded(tmp_path / "other", loss=1.5)
    head |= {"run/records.jsonl › phase #1 › name": "other", "run/records.jsonl › phase #1 › added": 1}
    del head[began := "run/records.jsonl › phase #1 › began"]
    found = compare_commits.compare("records", base, head, again)
    assert found.different == [
        (began, base[began], compare_commits.ABSENT),
        ("run/records.jsonl › phase #1 › name", "plain.0: steps", "other"),
        ("run/plain.0.csv › loss › 0", ["1.0"], ["1.5"]),
    ]
    assert found.new == ["run/records.jsonl › phase #1 › added"]
    assert not found.holds


def test_comparing_commits_ignores_line_numbers_inside_the_harness() -> None:
    stack = 'Traceback:\n  File "harness/a.py", line {0}, in f\n    g()\n  File "own.py", line 2, in g\n    h()\n'
    texts = [json.dumps({"stack": stack.format(line), "file": "harness/a.py", "line": line}) for line in (3, 4)]
    values = [dict(snapshot.values_of("death.json", text)) for text in texts]
    assert values[0] == values[1] == {"death.json › stack": 'Traceback:\n  File "own.py", line 2, in g\n    h()\n'}


def test_comparing_commits_finds_changed_order_errors_and_missing_entries() -> None:
    base = {"a": {"order": ["x", "y"]}, "b": {snapshot.ERROR: "ValueError"}, "c": 1}
    found = compare_commits.compare("judge", base, {"a": {"order": ["y", "x"]}, "b": base["b"]}, base)
    assert {place for place, _, _ in found.different} == {"a › order › 0", "a › order › 1", "b", "c"}
    assert compare_commits.compared("help", {"a": 1}, "no module", {"a": 1}).lines() == [
        "help: could not be compared: head: no module"
    ]

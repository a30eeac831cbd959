"""Every command that writes a file where its user says makes the folder, or refuses the path as usage does."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cli.history import write_history
from harness.errors import ExitCode, UsageError
from harness.run_directory.places import write_named, write_together

REPORTS = Path(__file__).parents[2] / "reports" / "examples"
RUN = REPORTS / "2026-11-22-h200-plain_loop"


def test_the_missing_folder_of_a_written_file_is_created(tmp_path: Path) -> None:
    write_named(tmp_path / "a" / "b" / "page.html", "text")
    assert (tmp_path / "a" / "b" / "page.html").read_text() == "text"


def test_a_path_that_cannot_be_written_is_a_usage_error_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    for path in (tmp_path / "file" / "page.html", tmp_path):
        with pytest.raises(UsageError, match="the named path must be writable") as refused:
            write_named(path, "text")
        assert (refused.value.where, refused.value.exit_code) == (str(path), ExitCode.USAGE)
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.slow
def test_history_and_badge_files_are_written_with_their_folders(tmp_path: Path) -> None:
    from harness.cli.judge import print_verdicts

    page, badge = tmp_path / "new" / "history.html", tmp_path / "other" / "badge.json"
    write_history(REPORTS, page)
    assert "2026-11-22-h200-plain_loop" in page.read_text()
    print_verdicts([RUN], gate=False, as_json=True, badge=badge)
    assert json.loads(badge.read_text())["schemaVersion"] == 1


def tree(folder: Path) -> dict[str, bytes | None]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")
    }


def in_the_way(folder: Path) -> None:
    (folder / "contracts").write_text("a file")


def a_folder_of_its_name(folder: Path) -> None:
    (folder / "contracts-long" / "b.yaml").mkdir(parents=True)


def taken_meanwhile(folder: Path) -> None:
    (folder / "contracts-long").mkdir()
    (folder / "contracts-long" / f".b.yaml.{os.getpid()}").write_text("another's")


@pytest.mark.parametrize("broken", [in_the_way, a_folder_of_its_name, taken_meanwhile])
def test_files_are_written_together_or_not_at_all(broken: Callable[[Path], None], tmp_path: Path) -> None:
    (tmp_path / "adapter.py").write_text("mine")
    broken(tmp_path)
    before = tree(tmp_path)
    texts = {tmp_path / name: "new" for name in ("adapter.py", "contracts/a.yaml", "contracts-long/b.yaml")}
    with pytest.raises(UsageError, match="the named path must be writable"):
        write_together(texts)
    assert tree(tmp_path) == before


def test_files_replaced_before_a_failing_write_are_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("mine")
    replace = Path.replace

    def broken(path: Path, target: Path) -> Path:
        if target.name == "c":
            raise PermissionError(errno.EPERM, "Operation not permitted", str(target))
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", broken)
    before = tree(tmp_path)
    with pytest.raises(UsageError, match=r"c: the named path must be writable; found Operation not permitted"):
        write_together({tmp_path / name: "new" for name in ("a", "new/b", "c")})
    assert tree(tmp_path) == before
    monkeypatch.undo()
    write_together({tmp_path / name: "new" for name in ("a", "new/b", "c")})
    assert tree(tmp_path) == {"a": b"new", "new": None, "new/b": b"new", "c": b"new"}

"""Caches of libraries lie elsewhere where the home folder takes no file: nobody has to set a variable for that."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.platform.paths import moved_caches

NAMES = {"TRITON_CACHE_DIR", "MPLCONFIGDIR"}


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    return tmp_path / "temporary"


def _private(temporary: Path) -> Path:
    return temporary / f"contract-harness-{os.getuid()}"


def test_a_writable_home_folder_keeps_its_caches(tmp_path: Path) -> None:
    assert moved_caches({"HOME": str(tmp_path)}) == {}


@pytest.mark.parametrize("home", ["file/home", "file", "~", "link"])
def test_caches_of_an_unusable_home_move_to_a_private_folder(home: str, tmp_path: Path, temporary: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    moved = moved_caches({"HOME": home if home == "~" else str(tmp_path / home)})
    assert moved == {
        "TRITON_CACHE_DIR": str(_private(temporary) / "triton/cache"),
        "MPLCONFIGDIR": str(_private(temporary) / "config/matplotlib"),
    }
    assert _private(temporary).stat().st_mode & 0o777 == 0o700


def test_a_home_folder_without_write_permission_is_recognized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test replaces `os.access`, because the user root may write everywhere."""
    monkeypatch.setattr("os.access", lambda path, _: Path(path) != tmp_path)
    assert moved_caches({"HOME": str(tmp_path)}).keys() == NAMES


def test_cache_variables_that_the_user_set_are_kept(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    moved = moved_caches({"HOME": str(tmp_path / "file"), "TRITON_CACHE_DIR": "", "MPLCONFIGDIR": "/x"})
    assert moved == {}


def test_without_a_temporary_folder_caches_are_not_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    assert moved_caches({"HOME": "~"}) == {}


DRAWN = "from harness.report.charts.svg import draw; print(draw(lambda axes: None, alt='x').width)"
IMPORTED_EARLIER = f"from harness.api.execute import _import_for_pages; _import_for_pages(); {DRAWN}"


@pytest.mark.parametrize("program", [DRAWN, IMPORTED_EARLIER], ids=["drawn", "imported earlier"])
def test_drawing_a_plot_without_a_home_folder_prints_nothing(program: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    environment = {**os.environ, "HOME": str(tmp_path / "file"), "TMPDIR": str(tmp_path)}
    environment.pop("MPLCONFIGDIR", None)
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "499\n", "")


def test_workers_get_the_moved_cache_folders_in_their_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, temporary: Path
) -> None:
    from harness.execution import supervisor

    monkeypatch.setenv("HOME", str(tmp_path / "nowhere"))
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    monkeypatch.setattr("os.access", lambda *_: False)
    given: dict[str, str] = {}
    monkeypatch.setattr(supervisor, "start_child", lambda *_words, variables, **_rest: given.update(variables))
    supervisor.start()
    assert given["TRITON_CACHE_DIR"] == str(_private(temporary) / "triton/cache")

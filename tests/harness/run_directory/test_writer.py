"""Writing a run directory: whole only with its last write, and what a worker leaves that none holds."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest
from bundle_builders import LOADED, RUN_ID, header, write_evidence

from harness.evidence.files import write_text
from harness.platform import signals_noted
from harness.run_directory import writer as writer_module
from harness.run_directory.bundle import read_bundle
from harness.run_directory.seal import Manifest
from harness.run_directory.writer import BundleWriter


@pytest.fixture
def writer(tmp_path: Path) -> BundleWriter:
    """One run has left its evidence."""
    made = BundleWriter(tmp_path / "run", header(), [LOADED], ["schema: waivers/v1\n"])
    write_evidence(made)
    return made


def test_the_manifest_is_written_last(writer: BundleWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut_off(folder: Path, _manifest: Manifest) -> str:
        assert folder == writer.final
        assert not (folder / "INCOMPLETE").exists()
        raise SystemExit(143)

    monkeypatch.setattr(writer_module, "write_manifest", cut_off)
    with pytest.raises(SystemExit):
        writer.finish()
    assert not read_bundle(writer.final).complete
    writer.abandon()
    assert (writer.final / "INCOMPLETE").exists()


def test_a_run_is_not_sealed_after_a_signal_whose_exception_was_swallowed(
    writer: BundleWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the exception was raised during the import of a judge and taken for a missing judge, so a unit was
    reported as not run in a finished directory.
    """
    monkeypatch.setattr(signals_noted, "noted", [signal.SIGTERM])
    with pytest.raises(SystemExit) as raised:
        writer.finish()
    assert raised.value.code == 143
    assert not writer.final.exists()


def test_a_run_abandoned_right_after_its_seal_becomes_incomplete(writer: BundleWriter) -> None:
    writer.finish()
    assert read_bundle(writer.final).complete
    assert writer.abandon() == writer.final
    assert sorted(path.name for path in writer.final.iterdir()) == [
        *("INCOMPLETE", "contracts", "evidence", "run.json", "waivers")
    ]


def test_a_run_abandoned_after_its_directory_was_renamed_is_found_under_the_final_name(writer: BundleWriter) -> None:
    writer.path.rename(writer.final)
    assert writer.abandon() == writer.final
    assert not read_bundle(writer.final).complete


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes the disk full: a file can be begun, and nothing written into it."""

    def fill() -> None:
        opened = Path.open

        def begun(path: Path, mode: str = "r", *rest: Any, **others: Any) -> IO[Any]:
            if "x" not in mode:
                return opened(path, mode, *rest, **others)
            path.touch()
            return opened(Path("/dev/full"), "wb", buffering=0)

        monkeypatch.setattr(Path, "open", begun)

    return fill


def names_of(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_writing_a_file_on_a_full_disk_leaves_the_old_file_unchanged(tmp_path: Path, full: Callable[[], None]) -> None:
    (tmp_path / "run.json").write_text("before")
    full()
    with pytest.raises(OSError, match="No space left") as raised:
        write_text(tmp_path / "run.json", "after")
    assert raised.value.filename == str(tmp_path / "run.json")
    assert (names_of(tmp_path), (tmp_path / "run.json").read_text()) == (["run.json"], "before")


def test_a_run_abandoned_on_a_full_disk_keeps_its_evidence_and_is_incomplete(
    writer: BundleWriter, full: Callable[[], None]
) -> None:
    for name in ("verdicts.json", "report.html"):
        (writer.path / name).write_text("as of a run that is whole")
    before = {*names_of(writer.path)} - {"verdicts.json", "report.html"}
    full()
    assert writer.abandon() == writer.final
    assert {*names_of(writer.final)} == before
    assert not read_bundle(writer.final).complete


def test_a_run_that_cannot_start_on_a_full_disk_leaves_no_files(tmp_path: Path, full: Callable[[], None]) -> None:
    full()
    with pytest.raises(OSError, match="No space left"):
        BundleWriter(tmp_path / "run", header(), [LOADED])
    assert names_of(tmp_path) == []


@pytest.mark.parametrize(
    "name",
    [
        *(".report.html.8517", ".INCOMPLETE.9173", ".run.json.1", ".manifest.json.2", ".summary.md.3", ".junit.xml.4"),
        *("contracts/.scripted-v1.yaml.5", "waivers/.1.yaml.6"),
    ],
)
def test_a_half_written_file_of_a_killed_process_is_not_sealed(writer: BundleWriter, name: str) -> None:
    (writer.path / name).write_text("half of")
    writer.settle()
    assert name not in names_of(writer.finish())


def test_hidden_files_of_users_are_not_removed_as_half_written_files(writer: BundleWriter) -> None:
    for name in (".report.html.bak", ".notes.12", f"evidence/{RUN_ID}/.own.json.7"):
        (writer.path / name).write_text("theirs")
    before = names_of(writer.path)
    writer.settle()
    assert names_of(writer.path) == before


def test_waiver_files_are_copied(writer: BundleWriter) -> None:
    assert (writer.finish() / "waivers" / "1.yaml").read_text() == "schema: waivers/v1\n"


def link(folder: Path) -> None:
    (folder / "weights").symlink_to("/etc")


def pipe(folder: Path) -> None:
    os.mkfifo(folder / "pipe")


def endless(folder: Path) -> None:
    with (folder / "dump").open("wb") as file:
        file.truncate(100 * 2**30)


def odd(folder: Path) -> None:
    (folder / "a\nb").touch()


def gone(folder: Path) -> None:
    folder.rename(folder.parents[2] / "moved")
    folder.symlink_to(folder.parents[2] / "moved")


def in_a_lane(folder: Path) -> None:
    (folder / "lane.1").mkdir()
    (folder / "lane.1" / "dump").symlink_to("/etc")


LEFT: dict[str, tuple[Callable[[Path], None], str]] = {
    "link": (link, "it left weights: a symbolic link"),
    "pipe": (pipe, "it left pipe: a pipe, a socket or a device"),
    "endless": (endless, "it left dump: 107374182400 bytes, but at most 536870912 are allowed"),
    "odd": (odd, "it left a\\nb: a name with a control character, a backslash or a colon"),
    "gone": (gone, "it left .: its folder is missing"),
}


@pytest.mark.parametrize("kind", LEFT)
def test_a_special_file_left_by_a_worker_is_removed_and_its_run_counts_as_dead(writer: BundleWriter, kind: str) -> None:
    leave, said = LEFT[kind]
    leave(writer.evidence_directory(RUN_ID))
    writer.settle()
    directory = writer.finish()
    assert read_bundle(directory).complete
    death = read_bundle(directory).evidence(RUN_ID).death
    assert death is not None
    assert (death.cause, death.detail) == ("garbage", said if kind != "gone" else death.detail)


OWN = [
    *("INCOMPLETE", "run.json", "journal.json", "journal.lock", "manifest.json", "verdicts.json", "drill.json"),
    *("report.html", "summary.md", "junit.xml"),
    *("contracts", "contracts/c.yaml", "waivers", "waivers/1.yaml"),
]


@pytest.fixture(params=[(name, how) for name in OWN for how in ("pipe", "folder", "link", "loop")], ids="-".join)
def planted(request: pytest.FixtureRequest, writer: BundleWriter, tmp_path: Path) -> tuple[str, str]:
    """What a system put in the place of one of the directory's own files; and a file outside, to which links lead."""
    name, how = request.param
    place, outside = writer.path / name, tmp_path / "outside"
    outside.write_text("outside")
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    if how == "pipe":
        os.mkfifo(place)
    elif how == "folder":
        (place / "below").mkdir(parents=True)
    else:
        place.symlink_to(outside if how == "link" else name.rpartition("/")[2])
    return name, str(outside)


def test_a_special_file_left_in_a_lane_makes_only_this_lane_count_as_dead(writer: BundleWriter) -> None:
    """A lane is a part of a run with its own worker process."""
    in_a_lane(writer.evidence_directory(RUN_ID))
    writer.settle()
    assert (writer.evidence_directory(RUN_ID) / "lane.1" / "death.json").exists()
    assert not (writer.evidence_directory(RUN_ID) / "death.json").exists()


def test_a_file_planted_in_place_of_a_run_file_is_removed_and_never_opened(
    writer: BundleWriter, planted: tuple[str, str]
) -> None:
    name, outside = planted
    writer.settle()
    (writer.path / "verdicts.json").write_text("{}")
    directory = writer.finish()
    assert read_bundle(directory).complete
    assert (directory / "contracts" / "c.yaml").read_text(encoding="utf-8") == LOADED.text
    assert not (directory / "journal.json").exists(), name
    assert Path(outside).read_text() == "outside"


def test_a_planted_file_does_not_stop_the_abandoning_of_a_run(writer: BundleWriter, planted: tuple[str, str]) -> None:
    name, outside = planted
    directory = writer.abandon()
    assert not read_bundle(directory).complete
    assert (directory / "INCOMPLETE").is_file(), name
    assert Path(outside).read_text() == "outside"


def test_plain_files_left_by_a_worker_are_kept(writer: BundleWriter) -> None:
    before = sorted(writer.path.rglob("*"))
    writer.settle()
    assert sorted(writer.path.rglob("*")) == before

"""Every file of a run, changed, truncated, removed, linked, added to, one at a time: each is noticed, by its name."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from archive_builders import packed

from harness.api.rejudge import rejudged
from harness.cli import judge as judge_command
from harness.errors import HarnessError
from harness.run_directory.archive import TOP
from harness.run_directory.bundle import read_bundle
from harness.run_directory.seal import ListedFile, listed_file

Change = Callable[[Path], object]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def add_to(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\n")


def symbolic(path: Path) -> None:
    path.rename("elsewhere")
    path.symlink_to(Path("elsewhere").absolute())


def hard(path: Path) -> None:
    os.link(path, "elsewhere")


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


CHANGES: dict[str, Change] = {
    "changed": flip,
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "emptied": lambda path: path.write_bytes(b""),
    "removed": Path.unlink,
    "linked": symbolic,
    "hard link": hard,
    "added to": add_to,
    "folder": folder,
    "renamed": lambda path: path.rename(path.with_name(f"{path.name}~")),
}
NAMES = (
    *("run.json", "contracts/scripted-v1.yaml", "verdicts.json", "report.html", "junit.xml", "summary.md"),
    "problems/scripted-v1.SCRIPT-001.violated.md",
    *(f"evidence/scripted-v1+{workload}+paired/{file}" for workload in ("held", "violated") for file in
      ("fast.0.csv", "plain.0.csv", "plain.1.csv", "records.jsonl", "run.json")),
    "manifest.json",
)  # fmt: skip


def found(directory: Path) -> str:
    """What `judge --check` would say; the message, where the directory is refused."""
    try:
        return "\n".join(rejudged(directory).problems)
    except HarnessError as refused:  # a header, or a contract, that is none
        return str(refused)


def files_of(directory: Path) -> list[str]:
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())


def test_a_file_with_a_changed_size_is_reported_with_both_sizes_without_hashing(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []

    def listed(folder: Path, name: str) -> ListedFile:
        hashed.append(name)
        return listed_file(folder, name)

    monkeypatch.setattr("harness.run_directory.seal.listed_file", listed)
    size = (run / "summary.md").stat().st_size
    add_to(run / "summary.md")
    assert found(run) == f"1-run: summary.md: changed: {size + 1} bytes, but {size} were recorded"
    assert sorted(hashed) == sorted(set(NAMES) - {"summary.md", "manifest.json"})


def test_the_seal_lists_every_file_of_a_run(run: Path) -> None:
    assert files_of(run) == sorted(NAMES)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", NAMES)
def test_a_changed_file_of_a_sealed_run_is_reported_by_name(run: Path, name: str, change: str) -> None:
    CHANGES[change](run / name)
    assert name in found(run)


PUBLISHED = ("manifest.json", "report.html", "run.tar.xz", "summary.md", "verdicts.json")


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_changed_published_file_is_reported_by_name(unpacked: Path, name: str, change: str) -> None:
    CHANGES[change](Path("published") / name)
    told = found(Path("published"))
    assert name in told or "run.json" in told  # without its archive a published folder has no header


@pytest.fixture
def unpacked(published_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What lies in the archive of a published run, to be changed and packed again; the run is `published`."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(published_run, "published")
    return Path(shutil.copytree(published_run.with_name("inside"), tmp_path / "inside")) / TOP


SEEN = {"run.json", "contracts", "evidence", "manifest.json"}
ARCHIVED = [name for name in NAMES if name.partition("/")[0] in SEEN]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ARCHIVED)
def test_a_changed_file_within_a_published_archive_is_reported_by_name(unpacked: Path, name: str, change: str) -> None:
    if change == "hard link":
        return  # a tar file of one name has none
    CHANGES[change](unpacked / name)
    packed(unpacked, Path("published/run.tar.xz"), TOP)
    assert name in found(Path("published"))


@pytest.mark.parametrize("where", ["folder", "archive"])
@pytest.mark.parametrize(
    "name",
    [
        "notes.txt",
        "evidence/scripted-v1+held+paired/death.json",
        "evidence/stray/run.json",
        "Run.json",
        "evidence/.hidden",
        "waivers/1.yaml",
        "nested/run.json",
        "run.tar",
        "manifest.json.bak",
        "evidence/manifest.json",
        "é ü.txt",
    ],
)
def test_a_file_added_to_a_sealed_run_is_reported_by_name(unpacked: Path, run: Path, name: str, where: str) -> None:
    directory = run if where == "folder" else unpacked
    (directory / name).parent.mkdir(parents=True, exist_ok=True)
    (directory / name).write_text("{}")
    shown = ascii(name)[1:-1]
    if where == "folder":
        assert f"1-run: {shown}: not recorded with the run" in found(run)
        return
    told = found(packed(unpacked, Path("a.tar.xz"), TOP))
    assert shown in told  # two names that differ in case are refused by the archive itself


@pytest.mark.parametrize("name", ["empty", "evidence/empty", "contracts/a"])
def test_an_empty_folder_added_to_a_sealed_run_is_reported(run: Path, name: str) -> None:
    (run / name).mkdir()
    assert f"{name}: not recorded with the run" in found(run)


def test_a_folder_removed_from_a_sealed_run_is_reported(run: Path) -> None:
    shutil.rmtree(run / "evidence" / "scripted-v1+held+paired")
    assert "evidence/scripted-v1+held+paired: missing" in found(run)


@pytest.mark.parametrize("name", ["evidence", "contracts", "evidence/scripted-v1+held+paired"])
def test_a_symbolic_link_in_place_of_a_run_folder_is_reported(run: Path, name: str) -> None:
    (run / name).rename("moved")
    (run / name).symlink_to(Path("moved").absolute())
    assert found(run) == f"1-run: {name}: a symbolic link"


ODD = {
    "line end": ("a\nb: not recorded", "a\\nb: not recorded: a name with a control character"),
    "escape": ("\x1b[2J", "\\x1b[2J: a name with a control character"),
    "not UTF-8": (os.fsdecode(b"\xff"), "\\udcff: a name with a control character"),
    "backslash": ("a\\b", "a\\\\b: a name with a control character, a backslash"),
    "long": ("n" * 250 + "/" + "n" * 250 + "/" + "n" * 250, "a path of more than 508 bytes"),
    "deep": ("/".join("abcdefgh"), "a/b/c/d/e/f/g/h: a path of more than 508 bytes or 7 names"),
}


@pytest.mark.parametrize("kind", ODD)
def test_a_file_with_control_characters_in_its_name_is_reported_in_printable_letters(run: Path, kind: str) -> None:
    name, said = ODD[kind]
    (run / name).parent.mkdir(parents=True, exist_ok=True)
    (run / name).touch()
    assert said in found(run)


def test_a_pipe_in_a_sealed_run_is_reported_and_not_read(run: Path) -> None:
    os.mkfifo(run / "evidence" / "pipe")
    assert "evidence/pipe: a pipe, a socket or a device" in found(run)


def test_an_endless_file_in_a_sealed_run_is_reported_and_not_read(run: Path) -> None:
    with (run / "summary.md").open("r+b") as file:
        file.truncate(100 * 2**30)  # sparse
    assert "summary.md: 107374182400 bytes, but at most 536870912 are allowed" in found(run)


def test_a_file_unreadable_by_its_owner_is_reported(run: Path) -> None:
    (run / "summary.md").chmod(0)
    assert found(run).startswith("1-run: summary.md: its owner may not read it")


def manifests(text: str) -> Iterator[tuple[str, str, str]]:
    """A manifest written otherwise, and what is said of it."""
    whole = json.loads(text)
    first = whole["files"][0]
    yield "spaces", text + " ", "was changed, or was not written by the harness"
    yield "a key twice", text.replace('"files"', '"files": [],\n "files"', 1), "a key occurs twice in one object"
    yield "another version", text.replace('"format_version": 1', '"format_version": 2'), "this harness reads 1"

    yield "a digit", text.replace('"size": ', '"size": 1', 1), "was changed, or was not written"
    yield "another checksum", text.replace('"checksum": "', '"checksum": "0', 1), "checksum"

    def listed(*files: object, folders: object = None) -> str:
        folders = whole["folders"] if folders is None else folders
        return json.dumps({**whole, "files": list(files), "folders": folders})

    yield "a file twice", listed(first, *whole["files"]), "must be sorted, and none may occur twice"
    yield "itself", listed(*whole["files"], {**first, "path": "zz"}), "was changed, or was not written"
    for path, said in {
        "../elsewhere": "lists ../elsewhere: a path through `..`",
        "/etc/passwd": "lists /etc/passwd: an absolute path",
        "./run.json": "lists ./run.json: a path that is not in its normal form",
        "a//b": "lists a//b: a path that is not in its normal form",
        "a\\b": "a backslash",
        "": "no name",
        ".": "a path that is not in its normal form",
        "manifest.json": "lists manifest.json",
        "INCOMPLETE": "lists INCOMPLETE",
    }.items():
        yield f"the path {path}", listed({**first, "path": path}), said
    yield "as both", listed(first, folders=[first["path"]]), "as a file and as a folder"
    yield "a size below zero", listed({**first, "size": -1}), "files.0.size"
    yield "a size as text", listed({**first, "size": "1"}), "files.0.size"
    yield "no digest", listed({**first, "sha256": "0"}), "files.0.sha256"


@pytest.mark.parametrize("index", range(20))
def test_a_manifest_that_the_harness_cannot_have_written_is_refused(run: Path, index: int) -> None:
    cases = list(manifests((run / "manifest.json").read_text()))
    assert len(cases) == 20
    _, text, said = cases[index]
    (run / "manifest.json").write_text(text)
    told = found(run)
    assert told.startswith("1-run: manifest.json: ")
    assert said in told


@pytest.mark.parametrize("as_archive", [False, True])
def test_the_incomplete_mark_is_found_in_and_next_to_an_archive(run: Path, unpacked: Path, *, as_archive: bool) -> None:
    directory = unpacked if as_archive else Path("published")
    (directory / "INCOMPLETE").symlink_to("nowhere")  # though it leads to nothing
    assert not read_bundle(directory).complete
    assert judge_command.print_verdicts([directory], gate=True, as_json=False) == 12

"""Archives of runs: what is refused, with which words, and that nothing is written outside the folder."""

from __future__ import annotations

import contextlib
import lzma
import tarfile
import tracemalloc
from pathlib import Path

import pytest
from archive_builders import Member, archive_of, tar_bytes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.errors import EvidenceError
from harness.run_directory.archive import Limits, unpack, write_archive

FILE = Member("run/evidence/a/run.json", b"{}")
SMALL = Limits(compressed=10_000, unpacked=3_000, file=2_000, members=4, name=60, depth=4)


def refusal(archive: Path, limits: Limits = SMALL) -> str:
    """The message, without the archive's own path."""
    folder = archive.parent / "unpacked"
    folder.mkdir(exist_ok=True)
    with pytest.raises(EvidenceError) as refused:
        unpack(archive, folder, limits)
    assert str(refused.value).startswith(str(archive))
    return str(refused.value).removeprefix(str(archive)).removeprefix(": ")


HOSTILE = {
    "absolute": (Member("/etc/x"), "/etc/x: an archive of a run must stay inside its folder", "an absolute path"),
    "parent": (Member("run/../../x"), "run/../../x: an archive", "a path through `..`"),
    "parent folder": (Member("..", kind=tarfile.DIRTYPE), "..: an archive", "a path through `..`"),
    "drive": (Member("C:x"), "C:x: an archive", "a colon"),
    "backslash": (Member("..\\x"), "..\\\\x: an archive", "a backslash"),
    "control": (Member("run/a\nb"), "run/a\\nb: an archive", "a name with a control character"),
    "undecodable": (Member("run/a\udcff"), "run/a\\udcff: an archive", "a name with a control character"),
    "no name": (Member(""), ": an archive", "no name"),
    "symbolic link": (Member("run/a", kind=tarfile.SYMTYPE, link="/etc"), "run/a: an archive", "a symbolic link"),
    "hard link": (Member("run/a", kind=tarfile.LNKTYPE, link="run/b"), "run/a: an archive", "a hard link"),
    "pipe": (Member("run/a", kind=tarfile.FIFOTYPE), "run/a: an archive", "a named pipe"),
    "device": (Member("run/a", kind=tarfile.CHRTYPE), "run/a: an archive", "a device"),
    "sparse": (Member("run/a", kind=tarfile.GNUTYPE_SPARSE), "run/a: an archive", "a sparse file"),
    "other": (Member("run/a", kind=b"Z"), "run/a: an archive", "something else"),
    "deep": (Member("a/b/c/d/e"), "a/b/c/d/e: an archive of a run must have paths of at most", "5 names"),
    "long": (Member("a" * 61), f"{'a' * 61}: an archive of a run must have paths of at most", "61 bytes"),
    "large": (
        Member("a", b"x" * 2_001),
        "a: an archive of a run must contain only files of at most 2000 bytes",
        "2001 bytes",
    ),
}


@pytest.mark.parametrize("name", list(HOSTILE))
def test_a_hostile_member_is_refused_by_name(tmp_path: Path, name: str) -> None:
    member, where, got = HOSTILE[name]
    message = refusal(archive_of(tmp_path / "run.tar.xz", FILE, member))
    assert message.startswith(where), message
    assert got in message
    assert "ask for one that `harness pack` made" in message
    assert [path.name for path in tmp_path.iterdir() if path.name not in {"run.tar.xz", "unpacked"}] == []


@pytest.mark.parametrize(
    ("second", "got"),
    [
        (Member(FILE.name, b"[]"), "run/evidence/a/run.json, which is also the name of a file"),
        (
            Member("run/evidence/a/RUN.json"),
            "a name that differs from run/evidence/a/run.json only in case or in Unicode form",
        ),
        (Member("run/Evidence/b"), "a name that differs from run/evidence only in case or in Unicode form"),
        (Member("run/evidence/a/run.json/b"), "run/evidence/a/run.json, which is also the name of a file"),
        (Member("run/evidence/a"), "a name that was used before"),
        (Member("./run/evidence//a/run.json"), "run/evidence/a/run.json, which is also the name of a file"),
    ],
    ids=["twice", "case", "folder's case", "below a file", "a folder as a file", "spelled otherwise"],
)
def test_an_archive_that_names_a_path_twice_is_refused(tmp_path: Path, second: Member, got: str) -> None:
    message = refusal(archive_of(tmp_path / "run.tar.xz", FILE, second), Limits())
    assert "must name each file once" in message
    assert got in message


def test_archive_names_that_differ_only_in_unicode_composition_are_refused(tmp_path: Path) -> None:
    message = refusal(archive_of(tmp_path / "run.tar.xz", Member("run/\u00e9"), Member("run/e\u0301")))
    assert "differs from run/\\xe9 only in case or in Unicode form" in message


def test_the_total_size_of_unpacked_files_has_a_limit(tmp_path: Path) -> None:
    parts = [Member(name, b"x" * 1_500) for name in "abc"]
    assert refusal(archive_of(tmp_path / "run.tar.xz", *parts)).startswith(
        "c: an archive of a run must unpack to at most"
    )


def test_the_number_of_members_has_a_limit(tmp_path: Path) -> None:
    message = refusal(archive_of(tmp_path / "run.tar.xz", *map(Member, "abcde")))
    assert message.startswith("e: an archive of a run must have at most 4 files and folders; found more")


def test_the_size_of_the_archive_file_has_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "run.tar"
    path.write_bytes(b"\0" * 10_001)
    assert refusal(path).startswith("an archive of a run must have at most 10000 bytes; found 10001 bytes")


@pytest.mark.parametrize(
    ("before", "kind"),
    [((), tarfile.XHDTYPE), ((), tarfile.XGLTYPE), ((), tarfile.GNUTYPE_LONGNAME), ((FILE,), tarfile.GNUTYPE_LONGNAME)],
)
def test_an_endless_archive_header_is_refused_without_reading_it_into_memory(
    tmp_path: Path, before: tuple[Member, ...], kind: bytes
) -> None:
    """`tarfile` reads such a header completely: 24 MB of memory for an archive of 4 KB."""
    path = archive_of(tmp_path / "run.tar.xz", *before, Member("run/x", b"0" * 24_000_000, kind))
    tracemalloc.start()
    message = refusal(path, Limits())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    start = "the headers and the padding between the files of a run's archive must be short; found a header"
    assert message.startswith(start)
    assert peak < 16_000_000  # half of it is the dictionary of the stream


def test_many_archive_headers_before_one_file_are_refused_without_recursion(tmp_path: Path) -> None:
    headers = [Member("run/x", b"10 a=bcde\n", tarfile.XHDTYPE)] * 5_000
    assert "found a header" in refusal(archive_of(tmp_path / "run.tar.xz", *headers, FILE))


def test_unpacking_a_decompression_bomb_stops_at_the_first_file_that_is_too_large(tmp_path: Path) -> None:
    path = archive_of(tmp_path / "run.tar.xz", Member("run/a", b"\0" * 8_000_000))
    assert path.stat().st_size < 10_000
    assert refusal(path).startswith(
        "run/a: an archive of a run must contain only files of at most 2000 bytes; found 8000000"
    )
    assert [path for path in (tmp_path / "unpacked").rglob("*") if path.is_file()] == []


def test_the_padding_at_the_end_of_an_archive_has_a_size_limit(tmp_path: Path) -> None:
    path = tmp_path / "run.tar.xz"
    path.write_bytes(lzma.compress(tar_bytes([FILE]) + b"\0" * 8_000_000))
    assert "found a header or padding that is too long" in refusal(path)


def test_a_compressed_stream_that_needs_much_memory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.tar.xz"
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 256 * 2**20}]
    path.write_bytes(lzma.compress(tar_bytes([FILE]), filters=filters))
    assert "found LZMAError: Memory usage limit exceeded" in refusal(path, Limits())


DAMAGE = {
    "second file cut off": lambda whole: whole[: 512 * 3 + 3],
    "no end marker": lambda whole: whole[: len(whole) - tarfile.RECORDSIZE],
    "header of the second file": lambda whole: whole[:1024] + b"\xff" * 8 + whole[1032:],
    "bytes after the end": lambda whole: whole + b"\0" * 512 + b"hidden",
}


@pytest.mark.parametrize("name", list(DAMAGE))
def test_a_damaged_archive_is_never_read_as_one_that_ends_early(tmp_path: Path, name: str) -> None:
    """`tarfile` alone would read three of these four damaged archives as complete archives."""
    path = tmp_path / "run.tar"
    whole = tar_bytes([FILE, Member("run/b", b"second")])
    path.write_bytes(DAMAGE[name](whole))
    assert refusal(path, Limits()).startswith("the archive of a run cannot be unpacked completely; found ")


@pytest.mark.parametrize("tail", [b"x", lzma.compress(b"more")], ids=["bytes", "another stream"])
def test_bytes_after_the_compressed_stream_are_refused(tmp_path: Path, tail: bytes) -> None:
    path = archive_of(tmp_path / "run.tar.xz", FILE)
    path.write_bytes(path.read_bytes() + tail)
    assert "there are bytes after the end of the compressed stream" in refusal(path)


def test_an_archive_path_that_is_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.tar.xz").mkdir()
    assert refusal(tmp_path / "run.tar.xz") == "an archive of a run must be a plain file; found no plain file"


WHOLE = tar_bytes([FILE, Member("run/" + "n" * 120, b"long"), Member("run/b", b"second" * 200)])
CONTENTS = {FILE.data, b"long", b"second" * 200}


@pytest.mark.parametrize("suffix", [".tar", ".tar.xz"])
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_mutated_archive_is_refused_or_read_below_its_folder(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("mutated")
    content = bytearray(WHOLE if suffix == ".tar" else lzma.compress(WHOLE))
    for place in data.draw(st.lists(st.integers(0, min(len(content), 4_096) - 1), min_size=1, max_size=6)):
        content[place] = data.draw(st.integers(0, 255))
    archive = folder / f"run{suffix}"
    archive.write_bytes(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content)
    (folder / "unpacked").mkdir()
    with contextlib.suppress(EvidenceError):
        unpack(archive, folder / "unpacked")
    assert {path.name for path in folder.iterdir()} == {archive.name, "unpacked"}
    assert not [path for path in folder.rglob("*") if path.is_symlink()]


def test_equal_runs_are_packed_into_equal_bytes(tmp_path: Path) -> None:
    archives = []
    for name, mode in (("first", 0o600), ("second", 0o755)):
        (tmp_path / name / "evidence" / "empty").mkdir(parents=True)
        (tmp_path / name / "run.json").write_text("{}")
        (tmp_path / name / "run.json").chmod(mode)
        folders = ["evidence", "evidence/empty"]
        given = folders if mode == 0o600 else folders[::-1]
        write_archive(tmp_path / name, ["run.json"], given, tmp_path / f"{name}.tar.xz", {"a.json": "é"})
        archives.append((tmp_path / f"{name}.tar.xz").read_bytes())
    assert archives[0] == archives[1]
    (tmp_path / "unpacked").mkdir()
    unpack(tmp_path / "first.tar.xz", tmp_path / "unpacked")
    found = sorted(path.relative_to(tmp_path / "unpacked").as_posix() for path in (tmp_path / "unpacked").rglob("*"))
    assert found == ["run", "run/a.json", "run/evidence", "run/evidence/empty", "run/run.json"]

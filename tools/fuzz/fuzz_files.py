"""Make fuzzed inputs (cases) for the readers of evidence, archives and checkpoints, and read them."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import shutil
import tarfile
from functools import cache
from pathlib import Path

from fuzz_mutations import changed, changes, damaged, damages

from harness.evidence.read_run import read_run
from harness.run_directory.archive import Limits, unpack
from harness.run_directory.bundle import read_bundle
from harness.run_directory.verdict_file import read_record, read_verdicts

ROOT = Path(__file__).parents[2]


# --- evidence ------------------------------------------------------------------------------------------------------


def _unpacked_run(folder: Path) -> Path:
    """Unpack a published run into the folder, and add the record of a drill. Return the run's folder."""
    unpack(ROOT / "reports" / "2026-11-22-h200-traced" / "run.tar.xz", folder)
    for name in ("verdicts.json", "drill.json"):
        source = ROOT / "reports" / ("drills/2026-11-30-cpu-fp8" if name == "drill.json" else "2026-11-22-h200-traced")
        shutil.copy(source / name, folder / "run" / name)
    return folder / "run"


class Evidence:
    """One run directory in which each case changes one small file."""

    def __init__(self, folder: Path) -> None:
        self.root = _unpacked_run(folder)
        paths = [path for path in sorted(self.root.rglob("*")) if path.is_file() and path.stat().st_size < 2**17]
        self.files = [(path.relative_to(self.root).as_posix(), path.read_bytes()) for path in paths]

    def case(self, row: bytes) -> bytes:
        """Return a case: the path of a file, a line end, and the file's content with changed bytes or JSON values."""
        name, content = self.files[row[0] % len(self.files)]
        if row[1] % 2 and name.endswith(".json"):
            content = _damaged_json(content, row)
        elif row[1] % 2 and name.endswith(".jsonl"):
            lines = content.splitlines()
            number = row[2] % max(1, len(lines))
            lines[number:] = [_damaged_json(line, row) for line in lines[number:][:1]] + lines[number:][1:]
            content = b"\n".join([*lines, b""])
        else:
            content = changed(content, changes(row))
        return name.encode() + b"\n" + content

    def read(self, case: bytes) -> None:
        name, _, content = case.partition(b"\n")
        path = self.root / name.decode()
        whole = path.read_bytes()
        path.write_bytes(content)
        try:
            if name.startswith(b"evidence/"):
                read_run(self.root / "evidence" / name.decode().split("/")[1])
            elif name == b"verdicts.json":
                read_verdicts(self.root)
            elif name == b"drill.json":
                read_record(path)
            else:
                read_bundle(self.root)
        finally:
            path.write_bytes(whole)


def _damaged_json(content: bytes, row: bytes) -> bytes:
    return json.dumps(damaged(json.loads(content), damages(row))).encode()


# --- archives and checkpoints --------------------------------------------------------------------------------------


_ODD_NAMES = (
    *("run", "run/", "run/run.json", "run/a", "run/a/b", "run/A", "run/é", "run/e\u0301", "run/\u202e", "run/a\nb"),
    *("run/" + "a" * 150, "run/" + "a/" * 60, "run/" + "b" * 300, "", ".", "..", "../x", "/x", "run/../x", "run//x"),
    *("run/nul", "run/x.", "run/x ", "run/a:b", "other/x", "run/manifest.json", "run/\udc80", "C:/x", "run\\x", "~/x"),
)
_KINDS = (*[tarfile.REGTYPE] * 8, tarfile.DIRTYPE, tarfile.DIRTYPE, b"1", b"2", b"3", b"4", b"6", b"S", b"A")
_SIZES = (5, 5, 5, 0, 1, 512, 4096, 2**20, 2**33, 2**40)


@cache
def _tars() -> list[bytes]:
    """Return two tar files of small folders, one in Python's default format, and one with long names."""
    made = []
    for form, names in ((tarfile.PAX_FORMAT, ("run/run.json", "run/é/b")), (tarfile.GNU_FORMAT, ("run/" + "a" * 150,))):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
            for name in names:
                member = tarfile.TarInfo(name)
                member.size = 5
                tar.addfile(member, io.BytesIO(b"12345"))
        made.append(buffer.getvalue())
    return made


def _odd_tar(row: bytes) -> bytes:
    """Return a well-formed tar file of members with odd names, kinds, sizes, modes or links."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=(tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)[row[4] % 2]) as tar:
        for at in range(5, 5 + 6 * (1 + row[-1] % 5), 6):
            name, kind, size, mode, link, more = row[at : at + 6]
            member = tarfile.TarInfo(_ODD_NAMES[name % len(_ODD_NAMES)])
            member.type = _KINDS[kind % len(_KINDS)]
            member.size = _SIZES[size % len(_SIZES)] if member.isreg() else 0
            member.mode, member.linkname = mode << 4, _ODD_NAMES[link % len(_ODD_NAMES)]
            if tar.format == tarfile.PAX_FORMAT and more % 4 == 0:
                member.pax_headers = {("path", "size", "linkpath", "GNU.sparse.size", "x")[more % 5]: str(more // 4)}
            tar.addfile(member, io.BytesIO(b"1" * min(member.size, 2**12)) if member.size <= 2**12 else None)
    return buffer.getvalue()


def packed(row: bytes) -> bytes:
    """Return a case: a file name, a line end, and an archive with changes before packing, after packing, or both."""
    how, which = ("xz", "gz", "")[row[1] % 3], row[2] % 3
    tar = _odd_tar(row) if row[3] % 2 else _tars()[row[0] % len(_tars())]
    tar = changed(tar, changes(row)) if which else tar
    packed = lzma.compress(tar, preset=0) if how == "xz" else gzip.compress(tar, 1) if how == "gz" else tar
    return f"run.tar.{how}\n".encode() + (packed if which == 1 else changed(packed, changes(row[::-1])))


def unpacked(scratch: Path, case: bytes) -> None:
    name, _, content = case.partition(b"\n")
    archive, folder = scratch / name.decode().removesuffix("."), scratch / "unpacked"
    archive.write_bytes(content)
    folder.mkdir()
    try:
        unpack(archive, folder, Limits(unpacked=2**20, file=2**20))
    finally:
        shutil.rmtree(folder)


_WEIGHTS = ROOT / "reference_impl" / "checkpoints" / "tiny" / "model.safetensors"


@cache
def _checkpoint() -> dict[str, bytes]:
    weights = _WEIGHTS.read_bytes()
    index = {"weight_map": {"model.norm.weight": "model.safetensors"}}
    length = int.from_bytes(weights[:8], "little")
    return {
        "config.json": (_WEIGHTS.parent / "config.json").read_bytes(),
        "model.safetensors.index.json": json.dumps(index).encode(),
        # Keep only the header. Tensors of zeros are added when the file is written.
        "model.safetensors": weights[: 8 + length],
    }


def checkpoint_case(row: bytes) -> bytes:
    name = sorted(_checkpoint())[row[0] % len(_checkpoint())]
    content = _checkpoint()[name]
    if row[1] % 2 and name.endswith(".json"):
        return f"{name}\n".encode() + _damaged_json(content, row)
    return f"{name}\n".encode() + changed(content, changes(row))


def read_checkpoint(folder: Path, case: bytes) -> None:
    import torch

    from reference_impl.checkpoint import CheckpointWeights, read_config

    name, _, content = case.partition(b"\n")
    for other, whole in _checkpoint().items():
        if other != "model.safetensors.index.json":
            (folder / other).write_bytes(whole)
    (folder / name.decode()).write_bytes(content)
    if (weights := folder / "model.safetensors").stat().st_size >= len(_checkpoint()[weights.name]):
        os.truncate(weights, _WEIGHTS.stat().st_size)
    try:
        CheckpointWeights(folder, read_config(folder), torch.device("cpu"))
    finally:
        (folder / name.decode()).unlink()

"""What is fuzzed: each reader of a stranger's file, and what is made of a contract that loads.

A target makes a case of a row of drawn bytes (a case is bytes, too: it is kept where it finds something) and tries it;
it raises what the reader raises.
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import re
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from fuzz_mutations import altered, changed, changes, damaged, damages
from pydantic import ValidationError

from harness.commands.explain import _explanation
from harness.contract import strict_yaml
from harness.contract.load import LoadedContract, load_contract
from harness.contract.references import problems
from harness.contract.schema import Contract
from harness.contract.waivers import load_waivers
from harness.errors import ContractError, EvidenceError, SystemResolutionError, UsageError
from harness.evidence.cuda_driver import Gpu
from harness.evidence.environment import Machine
from harness.evidence.read_run import read_run
from harness.lint import lint
from harness.ptx import parse_target, parse_version, read_module
from harness.run_directory.archive import Limits, unpack
from harness.run_directory.bundle import read_bundle
from harness.run_directory.drill_record import read_record
from harness.run_directory.verdict_file import read_verdicts
from harness.runners.plan import plan
from harness.system.described import describe_all
from harness.system.protocol import SystemDescription

ROOT = Path(__file__).parents[1]
MACHINES = (
    Machine(False, "this machine has no CUDA device", (), 16.0),
    Machine(True, "", (Gpu("NVIDIA H200", "GPU-0", "sm_90", 139.8),), 128.0),
)
NAMES = ("waivers", "archives", "ptx", "checkpoints", "evidence", "lint", "plan", "explain", "contracts")
WAIVERS = b"""schema: waivers/v1
waivers:
  - {contract: traced-step-v1, claim: TRACED-STEP-002, workload: smoke, owner: ada, reason: known, expires: 2026-12-31}
"""
PTX = b"""// made by a compiler
.version 8.7
.target sm_90a, debug   // options
/* .target sm_30 */
.visible .entry gemm_kernel(.param .u64 p) { ret; }
.entry $clip(.param .u64 p) { ret; }
"""


@dataclass(frozen=True)
class Target:
    """`case` makes an input of a row of bytes, `attempt` tries it; `typed` are the errors that a person can act on."""

    case: Callable[[bytes], bytes]
    attempt: Callable[[bytes], object]
    typed: tuple[type[Exception], ...] = ()
    inputs: int = 100_000  # of a long run


def _in_file(path: Path, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    def attempt(content: bytes) -> object:
        path.write_bytes(content)
        return read(path)

    return attempt


# --- contracts, and what is made of them ---------------------------------------------------------------------------


@cache
def _documents() -> list[Any]:
    return [strict_yaml.read(path).value for path in sorted((ROOT / "contracts").glob("*-v*.yaml"))]


@cache
def _texts() -> list[list[bytes]]:
    """Each contract in parts: what stands before its claims, and each claim."""
    paths = sorted((ROOT / "contracts").glob("*-v*.yaml"))
    return [re.split(rb"^(?=  - id: )", path.read_bytes(), flags=re.MULTILINE) for path in paths]


def _document(row: bytes) -> Any:
    """A contract with one or two of its claims, since a case's time goes with its length; one of eight is whole."""
    whole = _documents()[row[0] % len(_documents())]
    claims = whole["claims"]
    if row[2] % 8 == 7:
        return whole
    return {**whole, "claims": [claims[number] for number in sorted({row[3] % len(claims), row[4] % len(claims)})]}


def _damaged_document(row: bytes) -> bytes:
    return json.dumps(damaged(_document(row), damages(row))).encode()


def _text(row: bytes) -> bytes:
    """The same as `_document`, as it is written."""
    head, *claims = _texts()[row[0] % len(_texts())]
    if row[2] % 8 == 7:
        return b"".join([head, *claims])
    return head + b"".join(claims[number] for number in sorted({row[3] % len(claims), row[4] % len(claims)}))


def _contract(row: bytes) -> bytes:
    return changed(_text(row), changes(row)) if row[1] % 2 else _damaged_document(row)


def _likely_contract(row: bytes) -> bytes:
    """One that may well load, for what is made of those that do."""
    if row[1] % 4 == 0:
        return _damaged_document(row)
    return json.dumps(altered(_document(row), row, _documents()[row[0] % len(_documents())])).encode()


def _changed(contents: list[bytes], row: bytes) -> bytes:
    return changed(contents[row[0] % len(contents)], changes(row))


def _of_loaded(use: Callable[[LoadedContract], object]) -> Callable[[bytes], object]:
    """What is made of a contract that loads; to read it as YAML is another target's, and takes most of the time."""

    def attempt(content: bytes) -> object:
        try:
            contract = Contract.model_validate(json.loads(content))
        except ValidationError as error:
            raise ContractError("the document is a contract") from error
        if found := problems(contract):
            raise ContractError(found[0].rule)
        return use(LoadedContract(contract, Path("c.yaml"), content.decode(), "0" * 64, lambda _: (1, 1)))

    return attempt


@cache
def _descriptions() -> dict[str, SystemDescription]:
    answers = describe_all(["reference_impl.system:QLoRASystem", "harness.system.huggingface:HuggingFaceSystem"])
    return {name: answer for name, answer in answers.items() if isinstance(answer, SystemDescription)}


def _describe(name: str) -> SystemDescription:
    if name not in _descriptions():
        raise SystemResolutionError("the system's module must be importable", where=name)
    return _descriptions()[name]


def _plan(loaded: LoadedContract) -> None:
    for machine in MACHINES:
        plan([loaded], machine=machine, describe=_describe)


def _explain(loaded: LoadedContract) -> None:
    for claim in loaded.contract.claims:
        _explanation(loaded, claim)


# --- evidence ------------------------------------------------------------------------------------------------------


def _unpacked_run(folder: Path) -> Path:
    """A published run, with a drill's record beside it."""
    unpack(ROOT / "reports" / "2026-11-22-h200-traced" / "run.tar.xz", folder)
    for name in ("verdicts.json", "drill.json"):
        source = ROOT / "reports" / ("2026-11-22-cpu-drill" if name == "drill.json" else "2026-11-22-h200-traced")
        shutil.copy(source / name, folder / "run" / name)
    return folder / "run"


class _Evidence:
    """One run directory, of which each case changes one small file."""

    def __init__(self, folder: Path) -> None:
        self.root = _unpacked_run(folder)
        paths = [path for path in sorted(self.root.rglob("*")) if path.is_file() and path.stat().st_size < 2**17]
        self.files = [(path.relative_to(self.root).as_posix(), path.read_bytes()) for path in paths]

    def case(self, row: bytes) -> bytes:
        """The path, a line end, and the file's bytes: one that is changed as text, or as JSON where it is that."""
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
    """Two tar files of small folders: as Python writes them, and with long names."""
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
    """A tar of members that are odd in what they say of themselves, which is written as it should be."""
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


def _packed(row: bytes) -> bytes:
    """An ending, a line end, and the archive: the tar's bytes are changed, or the packed ones, or both."""
    how, which = ("xz", "gz", "")[row[1] % 3], row[2] % 3
    tar = _odd_tar(row) if row[3] % 2 else _tars()[row[0] % len(_tars())]
    tar = changed(tar, changes(row)) if which else tar
    packed = lzma.compress(tar, preset=0) if how == "xz" else gzip.compress(tar, 1) if how == "gz" else tar
    return f"run.tar.{how}\n".encode() + (packed if which == 1 else changed(packed, changes(row[::-1])))


def _unpack(scratch: Path, case: bytes) -> None:
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
    config = json.loads((_WEIGHTS.parent / "config.json").read_bytes())
    weights = _WEIGHTS.read_bytes()
    index = {"weight_map": {"model.norm.weight": "model.safetensors"}}
    length = int.from_bytes(weights[:8], "little")
    return {
        "config.json": json.dumps(config).encode(),
        "model.safetensors.index.json": json.dumps(index).encode(),
        "model.safetensors": weights[: 8 + length],  # its header; tensors of zeros come to it where it is written
    }


def _checkpoint_case(row: bytes) -> bytes:
    name = sorted(_checkpoint())[row[0] % len(_checkpoint())]
    content = _checkpoint()[name]
    if row[1] % 2 and name.endswith(".json"):
        return f"{name}\n".encode() + _damaged_json(content, row)
    return f"{name}\n".encode() + changed(content, changes(row))


def _read_checkpoint(folder: Path, case: bytes) -> None:
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


def _read_ptx(content: bytes) -> None:
    module = read_module(content.decode("utf-8", "replace"))
    for read, words in ((parse_target, module.targets), (parse_version, module.versions)):
        for word in words[:100]:
            try:
                read(word)
            except ValueError:
                continue


def targets(scratch: Path) -> dict[str, Target]:
    """Every target by its name; they write into `scratch`, which is made, and is the caller's to remove."""
    from reference_impl.errors import ReferenceImplError

    scratch.mkdir()
    for name in ("run", "archives", "checkpoints"):
        (scratch / name).mkdir()
    evidence = _Evidence(scratch / "run")

    def of_contract(use: Callable[[LoadedContract], object], *typed: type[Exception]) -> Target:
        return Target(_likely_contract, _of_loaded(use), (ContractError, *typed))

    return {
        "contracts": Target(_contract, _in_file(scratch / "c.yaml", load_contract), (ContractError,), 1_000_000),
        "waivers": Target(partial(_changed, [WAIVERS]), _in_file(scratch / "w.yaml", load_waivers), (ContractError,)),
        "evidence": Target(evidence.case, evidence.read, (EvidenceError,)),
        "archives": Target(_packed, partial(_unpack, scratch / "archives"), (EvidenceError,)),
        "ptx": Target(partial(_changed, [PTX]), _read_ptx),
        "checkpoints": Target(
            _checkpoint_case, partial(_read_checkpoint, scratch / "checkpoints"), (ReferenceImplError,)
        ),
        "lint": of_contract(lambda loaded: lint(loaded, _describe)),
        "plan": of_contract(_plan, UsageError),
        "explain": of_contract(_explain),
    }

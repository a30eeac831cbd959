"""What is fuzzed: each reader of a stranger's file, and what is made of a contract that loads.

A target draws a case (bytes, which are kept where they find something) and tries it; it raises what the reader raises.
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from fuzz_mutations import CHANGES, DAMAGES, changed, damaged
from hypothesis import strategies as st

from harness.commands.explain import _explanation
from harness.contract import strict_yaml
from harness.contract.load import LoadedContract, load_contract
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
    """`cases` draws bytes, `attempt` tries them; `typed` are the errors that a person can act on."""

    cases: st.SearchStrategy[bytes]
    attempt: Callable[[bytes], object]
    typed: tuple[type[Exception], ...] = ()
    inputs: int = 100_000  # of a long run


@contextmanager
def _folder() -> Iterator[Path]:
    memory = Path("/dev/shm")  # noqa: S108 - a folder of its own in it; a disk would be worn for nothing
    folder = Path(tempfile.mkdtemp(prefix="fuzz-", dir=memory if memory.is_dir() else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _in_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    def attempt(content: bytes) -> object:
        with _folder() as folder:
            (folder / name).write_bytes(content)
            return read(folder / name)

    return attempt


# --- contracts, and what is made of them ---------------------------------------------------------------------------


@cache
def _documents() -> list[Any]:
    return [strict_yaml.read(path).value for path in sorted((ROOT / "contracts").glob("*.yaml"))]


@cache
def _texts() -> list[bytes]:
    return [path.read_bytes() for path in sorted((ROOT / "contracts").glob("*.yaml"))]


def _damaged_documents() -> st.SearchStrategy[bytes]:
    documents = st.integers(0, len(_documents()) - 1)
    return st.builds(
        lambda number, damages: json.dumps(damaged(_documents()[number], damages)).encode(), documents, DAMAGES
    )


def _changed(contents: list[bytes]) -> st.SearchStrategy[bytes]:
    return st.builds(changed, st.sampled_from(contents), CHANGES)


def _of_loaded(use: Callable[[LoadedContract], object]) -> Callable[[bytes], object]:
    """What is made of a contract that loads; one that does not is another target's."""

    def read(path: Path) -> object:
        try:
            loaded = load_contract(path)
        except ContractError:
            return None
        return use(loaded)

    return _in_file("c.yaml", read)


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


@cache
def _run_directory() -> Path:
    """A published run, unpacked once; the folder goes with the process."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-run-"))
    unpack(ROOT / "reports" / "2026-11-22-h200-traced" / "run.tar.xz", folder)
    for name in ("verdicts.json", "drill.json"):
        source = ROOT / "reports" / ("2026-11-22-cpu-drill" if name == "drill.json" else "2026-11-22-h200-traced")
        shutil.copy(source / name, folder / "run" / name)
    return folder / "run"


@cache
def _evidence_files() -> list[tuple[str, bytes]]:
    """Every small file of the run, by its path in it."""
    root = _run_directory()
    files = [path for path in sorted(root.rglob("*")) if path.is_file() and path.stat().st_size < 2**17]
    return [(path.relative_to(root).as_posix(), path.read_bytes()) for path in files]


def _evidence_case() -> st.SearchStrategy[bytes]:
    """The path, a line end, and the file's bytes: one that is changed as text, or as JSON where it is that."""

    def build(number: int, changes: Any, damages: Any, *, as_json: bool) -> bytes:
        name, content = _evidence_files()[number]
        if as_json and name.endswith(".json"):
            content = json.dumps(damaged(json.loads(content), damages)).encode()
        else:
            content = changed(content, changes)
        return name.encode() + b"\n" + content

    return st.builds(build, st.integers(0, len(_evidence_files()) - 1), CHANGES, DAMAGES, as_json=st.booleans())


def _read_evidence(case: bytes) -> None:
    name, _, content = case.partition(b"\n")
    path = _run_directory() / name.decode()
    whole = path.read_bytes()
    path.write_bytes(content)
    try:
        readers: list[Callable[[], object]] = [lambda: read_bundle(_run_directory())]
        if name.startswith(b"evidence/"):
            readers = [lambda: read_run(_run_directory() / "evidence" / name.decode().split("/")[1])]
        elif name == b"verdicts.json":
            readers = [lambda: read_verdicts(_run_directory())]
        elif name == b"drill.json":
            readers = [lambda: read_record(path)]
        for read in readers:
            read()
    finally:
        path.write_bytes(whole)


# --- archives and checkpoints --------------------------------------------------------------------------------------


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


def _packed(tar: bytes, how: str, changes: Any) -> bytes:
    """An ending, a line end, and the archive: the tar's bytes were changed before, the packed ones are now."""
    packed = lzma.compress(tar, preset=0) if how == "xz" else gzip.compress(tar, 1) if how == "gz" else tar
    return f"run.tar.{how}\n".encode() + changed(packed, changes)


def _unpack(case: bytes) -> None:
    name, _, content = case.partition(b"\n")
    with _folder() as folder:
        archive = folder / name.decode().removesuffix(".")
        archive.write_bytes(content)
        (folder / "unpacked").mkdir()
        unpack(archive, folder / "unpacked", Limits(unpacked=2**20, file=2**20))


@cache
def _checkpoint() -> dict[str, bytes]:
    folder = ROOT / "reference_impl" / "checkpoints" / "tiny"
    config = json.loads((folder / "config.json").read_bytes())
    weights = next(path for path in folder.iterdir() if path.suffix == ".safetensors").read_bytes()
    index = {"weight_map": {"model.norm.weight": "model.safetensors"}}
    length = int.from_bytes(weights[:8], "little")
    return {
        "config.json": json.dumps(config).encode(),
        "model.safetensors.index.json": json.dumps(index).encode(),
        "model.safetensors": weights[: 8 + length],  # its header: the tensors are not there
    }


def _checkpoint_case() -> st.SearchStrategy[bytes]:
    def build(name: str, changes: Any, damages: Any, *, as_json: bool) -> bytes:
        content = _checkpoint()[name]
        if as_json and name.endswith(".json"):
            return f"{name}\n".encode() + json.dumps(damaged(json.loads(content), damages)).encode()
        return f"{name}\n".encode() + changed(content, changes)

    return st.builds(build, st.sampled_from(sorted(_checkpoint())), CHANGES, DAMAGES, as_json=st.booleans())


def _read_checkpoint(case: bytes) -> None:
    import torch

    from reference_impl.checkpoint import CheckpointWeights, read_config

    name, _, content = case.partition(b"\n")
    with _folder() as folder:
        for other, whole in _checkpoint().items():
            if other != "model.safetensors.index.json":
                (folder / other).write_bytes(whole)
        (folder / name.decode()).write_bytes(content)
        CheckpointWeights(folder, read_config(folder), torch.device("cpu"))


def _read_ptx(content: bytes) -> None:
    module = read_module(content.decode("utf-8", "replace"))
    for read, words in ((parse_target, module.targets), (parse_version, module.versions)):
        for word in words[:100]:
            try:
                read(word)
            except ValueError:
                continue


def targets() -> dict[str, Target]:
    """Every target by its name."""
    from reference_impl.errors import ReferenceImplError

    contracts = _changed(_texts()) | _damaged_documents()
    tars = st.builds(_packed, _changed(_tars()), st.sampled_from(["xz", "gz", ""]), CHANGES | st.just([]))
    return {
        "contracts": Target(contracts, _in_file("c.yaml", load_contract), (ContractError,), 1_000_000),
        "waivers": Target(_changed([WAIVERS]), _in_file("w.yaml", load_waivers), (ContractError,)),
        "evidence": Target(_evidence_case(), _read_evidence, (EvidenceError,)),
        "archives": Target(tars, _unpack, (EvidenceError,)),
        "ptx": Target(_changed([PTX]), _read_ptx),
        "checkpoints": Target(_checkpoint_case(), _read_checkpoint, (ReferenceImplError,)),
        "lint": Target(_damaged_documents(), _of_loaded(lambda loaded: lint(loaded, _describe))),
        "plan": Target(_damaged_documents(), _of_loaded(_plan), (UsageError,)),
        "explain": Target(_damaged_documents(), _of_loaded(_explain)),
    }

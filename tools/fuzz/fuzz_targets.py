"""The targets of fuzzing: each reader of untrusted files, and each use of a valid contract.

A target makes an input (a "case", which is a row of bytes, too) from a row of random bytes, and tries the case with a
reader. A case that finds a bug is stored. Trying a case raises the error that the reader raises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from fuzz_files import Evidence, checkpoint_case, packed, read_checkpoint, unpacked
from fuzz_mutations import altered, changed, changes, damaged, damages
from pydantic import ValidationError

from harness.cli.explain import WIDTH, _explanation
from harness.contract import strict_yaml
from harness.contract.load import LoadedContract, load_contract, problems
from harness.contract.schema import Contract
from harness.contract.waivers import load_waivers
from harness.devices.cuda_driver import Gpu
from harness.devices.environment import Machine
from harness.devices.ptx import parse_target, parse_version, read_module
from harness.errors import ContractError, EvidenceError, SystemResolutionError, UsageError
from harness.extras.upstream.importing import contract_text, decide
from harness.extras.upstream.items import read_upstream
from harness.lint import lint
from harness.planning.plan import plan
from harness.system.described import describe_all
from harness.system.protocol import SystemDescription

ROOT = Path(__file__).parents[2]
MACHINES = (
    Machine(False, "this machine has no CUDA device", (), 16.0),
    Machine(True, "", (Gpu("NVIDIA H200", "GPU-0", "sm_90", 139.8),), 128.0),
)
NAMES = ("waivers", "archives", "ptx", "checkpoints", "evidence", "lint", "plan", "explain", "contracts", "upstream")
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
    """A target of fuzzing. case: makes an input from a row of bytes. attempt: tries an input. typed: the types of
    errors that `attempt` may raise, whose messages say what to do."""

    case: Callable[[bytes], bytes]
    attempt: Callable[[bytes], object]
    typed: tuple[type[Exception], ...] = ()
    inputs: int = 100_000  # number of inputs in a long run


def _in_file(path: Path, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    def attempt(content: bytes) -> object:
        path.write_bytes(content)
        return read(path)

    return attempt


# --- contracts, and uses of contracts -------------------------------------------------------------------------------


@cache
def _documents() -> list[Any]:
    return [strict_yaml.read(path).value for path in sorted((ROOT / "contracts").glob("*-v*.yaml"))]


@cache
def _texts() -> list[list[bytes]]:
    """Return the parts of each contract: first the text before its claims, then each claim."""
    paths = sorted((ROOT / "contracts").glob("*-v*.yaml"))
    return [re.split(rb"^(?=  - id: )", path.read_bytes(), flags=re.MULTILINE) for path in paths]


def _document(row: bytes) -> Any:
    """Return a contract with, for seven of eight rows, only one or two claims, because long cases take more time."""
    whole = _documents()[row[0] % len(_documents())]
    claims = whole["claims"]
    if row[2] % 8 == 7:
        return whole
    return {**whole, "claims": [claims[number] for number in sorted({row[3] % len(claims), row[4] % len(claims)})]}


def _damaged_document(row: bytes) -> bytes:
    return json.dumps(damaged(_document(row), damages(row))).encode()


def _text(row: bytes) -> bytes:
    """Return the contract of `_document` as the text of its file."""
    head, *claims = _texts()[row[0] % len(_texts())]
    if row[2] % 8 == 7:
        return b"".join([head, *claims])
    return head + b"".join(claims[number] for number in sorted({row[3] % len(claims), row[4] % len(claims)}))


def _contract(row: bytes) -> bytes:
    return changed(_text(row), changes(row)) if row[1] % 2 else _damaged_document(row)


def _likely_contract(row: bytes) -> bytes:
    """Return a contract that is probably valid, for targets that need a valid contract."""
    if row[1] % 4 == 0:
        return _damaged_document(row)
    return json.dumps(altered(_document(row), row, _documents()[row[0] % len(_documents())])).encode()


def _changed(contents: list[bytes], row: bytes) -> bytes:
    return changed(contents[row[0] % len(contents)], changes(row))


def _of_loaded(use: Callable[[LoadedContract], object]) -> Callable[[bytes], object]:
    """Return a function for `Target.attempt` that validates a contract and then calls `use` with it. It parses the case
    as JSON, because reading YAML would take most of the time, and another target tests YAML."""

    def attempt(content: bytes) -> object:
        try:
            contract = Contract.model_validate(json.loads(content))
        except ValidationError as error:
            raise ContractError("the document must be a contract") from error
        if found := problems(contract):
            raise ContractError(found[0].rule)
        return use(LoadedContract(contract, Path("c.yaml"), content.decode(), "0" * 64, {}, lambda _: (1, 1)))

    return attempt


@cache
def _descriptions() -> dict[str, SystemDescription]:
    answers = describe_all(
        ["reference_impl.system:QLoRASystem", "reference_impl.transformers_twin.system:TransformersTwin"]
    )
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
        _explanation(loaded, claim, WIDTH)


# --- contracts in the language of another project ---------------------------------------------------------------------


@cache
def _upstream_files() -> list[Path]:
    return sorted((ROOT / "docs" / "upstream" / "excerpts").rglob("*.yaml"))


def _upstream(row: bytes) -> bytes:
    path = _upstream_files()[row[0] % len(_upstream_files())]
    if row[1] % 2:
        return changed(path.read_bytes(), changes(row))
    return json.dumps(damaged(strict_yaml.read(path).value, damages(row))).encode()


def _import(path: Path) -> None:
    contract_text([decide(read_upstream(path))], Path("ours.yaml"))


# --- PTX, and the table of all fuzz targets ---------------------------------------------------------------------------


def _read_ptx(content: bytes) -> None:
    module = read_module(content.decode("utf-8", "replace"))
    for read, words in ((parse_target, module.targets), (parse_version, module.versions)):
        for word in words[:100]:
            try:
                read(word)
            except ValueError:
                continue


def targets(scratch: Path) -> dict[str, Target]:
    """Return every target by name. Targets write into `scratch`, which is created here. The caller removes it."""
    from reference_impl.errors import ReferenceImplError

    scratch.mkdir()
    for name in ("run", "archives", "checkpoints"):
        (scratch / name).mkdir()
    evidence = Evidence(scratch / "run")

    def of_contract(use: Callable[[LoadedContract], object], *typed: type[Exception]) -> Target:
        return Target(_likely_contract, _of_loaded(use), (ContractError, *typed))

    return {
        "contracts": Target(_contract, _in_file(scratch / "c.yaml", load_contract), (ContractError,), 1_000_000),
        "upstream": Target(_upstream, _in_file(scratch / "u.yaml", _import), (ContractError,)),
        "waivers": Target(partial(_changed, [WAIVERS]), _in_file(scratch / "w.yaml", load_waivers), (ContractError,)),
        "evidence": Target(evidence.case, evidence.read, (EvidenceError,)),
        "archives": Target(packed, partial(unpacked, scratch / "archives"), (EvidenceError,)),
        "ptx": Target(partial(_changed, [PTX]), _read_ptx),
        "checkpoints": Target(
            checkpoint_case, partial(read_checkpoint, scratch / "checkpoints"), (ReferenceImplError,)
        ),
        "lint": of_contract(lambda loaded: lint(loaded, _describe)),
        "plan": of_contract(_plan, UsageError),
        "explain": of_contract(_explain),
    }

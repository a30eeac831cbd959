"""The run directory: write it so that an interrupted run says so, and read it whatever it holds.

    run.json  contracts/  evidence/<run id>/…  verdicts.json  (and the report's files)

It is written under a temporary name beside its final one, with an `INCOMPLETE` marker that is removed last.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Literal, Protocol, Self

from pydantic import Field, field_validator, model_validator

from harness.contract.schema import Contract
from harness.errors import EvidenceError, UsageError
from harness.evidence import layout
from harness.evidence.base import Probe, Record
from harness.evidence.environment_records import Environment
from harness.evidence.files import Damaged, read_bytes, read_model
from harness.evidence.plan_records import Run, Unit
from harness.evidence.read_run import read_run
from harness.evidence.run_evidence import Death, RunEvidence
from harness.numbers import dump_json
from harness.run_directory.places import Place, place_of


class Narrowed(Record):
    """What the plan was narrowed to on the command line; empty: everything."""

    claims: list[str] = Field(default_factory=list)
    workloads: list[str] = Field(default_factory=list)

    def asks_for(self, unit: Unit) -> bool:
        """Whether the unit is in the part of its contract that was asked for."""
        named = (self.claims, unit.claim), (self.workloads, unit.workload)
        return all(not wanted or name in wanted for wanted, name in named)


class Digests(Record):
    """SHA-256 in hexadecimal: of each contract by id, of the sources, of each evidence file by its path."""

    contracts: dict[str, str]
    source: str
    evidence: dict[str, str] = Field(default_factory=dict)


class WaiverRecord(Record):
    """A waiver as it stood when the run began; `expires` is its last day (UTC)."""

    contract: str
    claim: str
    workload: str
    owner: str
    reason: str
    expires: str
    expired: bool


class Header(Record):
    """`run.json`. Of a drill's directory the units are the controls, which run without a fault.

    Version 1 had no `purpose`: `fault` was "drill" in a drill's directory. It is read as what it meant.
    """

    format_version: Literal[2] = 2
    purpose: Literal["verify", "fault", "drill"]
    started_at: str  # ISO 8601, UTC
    command: list[str]
    narrowed: Narrowed = Narrowed()
    fault: str | None = None  # the planted one, where the purpose is "fault"
    environment: Environment
    units: list[Unit]
    runs: dict[str, Probe]  # planned run -> its probe
    digests: Digests
    waivers: list[WaiverRecord] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _upgrade(cls, values: object) -> object:
        if not isinstance(values, dict) or values.get("format_version") != 1:
            return values
        fault = values.get("fault")
        purpose = "verify" if fault is None else "drill" if fault == "drill" else "fault"
        return {**values, "format_version": 2, "purpose": purpose, "fault": fault if purpose == "fault" else None}

    @model_validator(mode="after")
    def _purpose_fits_fault(self) -> Self:
        if (self.purpose == "fault") != (self.fault is not None):
            raise ValueError(f"the purpose {self.purpose!r} does not fit the fault {self.fault!r}")
        return self

    @field_validator("units")
    @classmethod
    def _each_once(cls, units: list[Unit]) -> list[Unit]:
        names = Counter((unit.contract, unit.claim, unit.workload) for unit in units)
        if names and (twice := names.most_common(1)[0])[1] > 1:
            raise ValueError(f"unit {' / '.join(twice[0])} is listed {twice[1]} times")
        return units


class LoadedContract(Protocol):
    """A contract with its source, as the loader gives it."""

    @property
    def contract(self) -> Contract: ...
    @property
    def text(self) -> str: ...
    @property
    def digest(self) -> str: ...


class BundleWriter:
    """A run directory being written. `path` is where its files are now; `final` where `finish` puts it."""

    def __init__(self, final: Path, header: Header, contracts: Sequence[LoadedContract], *, named: bool = True) -> None:
        """Create the directory. Raises UsageError when `final` exists and somebody `named` it; else takes another."""
        if named and final.exists():
            raise UsageError("a run directory is written once", where=str(final), remedy="name another directory")
        self._named, final = named, final if named else unused(final)
        final.parent.mkdir(parents=True, exist_ok=True)
        self.final, self._header, self._contracts = final, header, contracts
        self.path = Path(tempfile.mkdtemp(prefix=f"{final.name}.incomplete-", dir=final.parent))
        self.path.chmod(0o755)  # mkdtemp makes it private; a report is for others to read
        self.put_back()

    def put_back(self) -> None:
        """Write all that is not evidence: at first, and again where a system may have removed it."""
        for folder in (layout.CONTRACTS, layout.EVIDENCE):
            (self.path / folder).mkdir(parents=True, exist_ok=True)
        (self.path / layout.INCOMPLETE).write_text(
            "This run did not finish: what is missing from its evidence is an error.\n", encoding="utf-8"
        )
        for loaded in self._contracts:
            copy = self.path / layout.CONTRACTS / f"{loaded.contract.id}.yaml"
            copy.write_bytes(loaded.text.encode("utf-8"))
        self._write_header()

    def evidence_directory(self, run_id: str) -> Path:
        """Where the supervisor puts the evidence of a run."""
        return self.path / layout.EVIDENCE / run_id

    def narrow(self, header: Header) -> None:
        """Write another header: the run was cut short, and its units and runs are fewer than planned."""
        self._header = header
        self._write_header()

    def seal(self) -> None:
        """Record the evidence's digests, once every run has been executed."""
        self.put_back()
        digests = self._header.digests.model_copy(update={"evidence": _digests(self.path)})
        self._header = self._header.model_copy(update={"digests": digests})
        self._write_header()

    def finish(self) -> Path:
        """Remove the marker and take the final name; the final path. Raises EvidenceError when it is taken."""
        if not self._named:  # a run that began in the same second may have ended before
            self.final = unused(self.final)
        try:
            self.path.rename(self.final)
        except OSError as error:
            raise EvidenceError(
                "a run directory is written once", where=str(self.final), got=f"it exists; this run is in {self.path}"
            ) from error
        self.path = self.final
        (self.path / layout.INCOMPLETE).unlink()
        return self.path

    def abandon(self) -> Path:
        """Keep what there is, marked INCOMPLETE, under the final name if that is free; its path.

        Verdicts and pages that were written as those of a finished run go away.
        """
        if not self.path.exists() and not self.final.exists():
            self.put_back()
        for name in (layout.VERDICTS, layout.PAGE, layout.SUMMARY, layout.JUNIT):
            (self.path / name).unlink(missing_ok=True)
        if not self.final.exists():
            self.path.rename(self.final)
            self.path = self.final
        return self.path

    def _write_header(self) -> None:
        write_text(self.path / layout.HEADER, dump_json(self._header.model_dump(), indent=2) + "\n")


@dataclass(frozen=True)
class Bundle:
    """A run as read. `complete` is False when it did not finish. What was unpacked goes when the bundle does."""

    place: Place
    header: Header
    complete: bool
    _read: dict[str, RunEvidence] = field(default_factory=dict, repr=False, compare=False)
    _made: dict[str, Run] = field(default_factory=dict, repr=False, compare=False)

    @property
    def path(self) -> Path:
        """The run as the caller named it."""
        return self.place.named

    @property
    def root(self) -> Path:
        """Where header, contracts and evidence are read."""
        return self.place.root

    def contract_paths(self) -> list[Path]:
        """The copies of the contracts, by id: those that the header names, and any other that lies there."""
        folder = self.root / layout.CONTRACTS
        names = {f"{name}.yaml" for name in self.header.digests.contracts}
        return [folder / name for name in sorted(names | {path.name for path in folder.glob("*.yaml")})]

    def evidence(self, run_id: str) -> RunEvidence:
        """One run's evidence; none gives an `incomplete` death, damage a `garbage` one.

        Raises EvidenceError for an id that leads out of the directory.
        """
        if run_id not in self._read:
            self._read[run_id] = self._evidence(run_id)
        return self._read[run_id]

    def made(self, run_id: str) -> Run | None:
        """What was executed, as the evidence itself has it; None where that cannot be read."""
        self.evidence(run_id)
        return self._made.get(run_id)

    def _evidence(self, run_id: str) -> RunEvidence:
        if run_id in {".", ".."} or Path(run_id).name != run_id:
            raise EvidenceError("a run's id names a directory", where=str(self.path), got=f"{run_id!r}")
        directory = self.root / layout.EVIDENCE / run_id
        if not directory.is_dir():
            return self._dead(run_id, "incomplete", "the run left no evidence")
        try:
            run, evidence = read_run(directory)
        except EvidenceError as error:  # it costs this run's units their verdict, and no other's
            return self._dead(run_id, "garbage", error.got)
        if run.id != run_id:
            return self._dead(run_id, "garbage", f"this is the evidence of run {run.id!r}")
        self._made[run_id] = run
        return evidence

    def _dead(self, run_id: str, cause: Literal["incomplete", "garbage"], detail: str) -> RunEvidence:
        death = Death(cause=cause, detail=detail, phase=None, stack="")
        return RunEvidence(run_id, self.header.runs.get(run_id, "paired"), {}, death=death)


def read_bundle(path: Path) -> Bundle:
    """Open a run: a folder, an archive, a published folder.

    Raises EvidenceError when it is none, is refused, or its `run.json` is damaged.
    """
    place = place_of(path)
    try:
        header = read_model(place.root / layout.HEADER, Header)
    except BaseException as error:
        if place.temporary is not None:
            shutil.rmtree(place.temporary, ignore_errors=True)
        if not isinstance(error, Damaged):
            raise
        raise EvidenceError("a run directory holds a readable run.json", where=str(path), got=str(error)) from error
    bundle = Bundle(place, header, complete=not (place.root / layout.INCOMPLETE).exists())
    if place.temporary is not None:
        weakref.finalize(bundle, shutil.rmtree, place.temporary, ignore_errors=True)
    return bundle


def altered(bundle: Bundle) -> list[str]:
    """What differs from the digests recorded with the run, one line a file; a run never sealed has none to differ."""
    recorded = bundle.header.digests.evidence
    found = [*_contract_changes(bundle), *_twice(bundle)]
    if not recorded and not bundle.complete:
        return found
    present = _digests(bundle.root)
    found += [f"{name}: missing" for name in sorted(set(recorded) - set(present))]
    found += [f"{name}: not recorded with the run" for name in sorted(set(present) - set(recorded))]
    found += [f"{name}: changed" for name in sorted(recorded) if present.get(name, recorded[name]) != recorded[name]]
    return found


def _twice(bundle: Bundle) -> list[str]:
    """Of a published run: what lies in the archive too, and is another there."""
    if not bundle.place.published:
        return []
    within = [name for name in (layout.VERDICTS, layout.DRILL) if (bundle.root / name).exists()]
    return [
        f"{name}: not the one in {layout.ARCHIVE}"
        for name in within
        if recorded_bytes(bundle.root / name) != recorded_bytes(bundle.place.derived / name)
    ]


def recorded_bytes(path: Path) -> bytes | None:
    """The bytes of a small file that was recorded with the run; None when it cannot be read."""
    try:
        return read_bytes(path)
    except Damaged:
        return None


def _contract_changes(bundle: Bundle) -> list[str]:
    found = []
    for path in bundle.contract_paths():
        name = f"{layout.CONTRACTS}/{path.name}"
        try:
            digest = hashlib.sha256(read_bytes(path)).hexdigest()
        except Damaged:
            found.append(f"{name}: missing")
            continue
        if path.stem not in bundle.header.digests.contracts:
            found.append(f"{name}: not recorded with the run")
        elif digest != bundle.header.digests.contracts[path.stem]:
            found.append(f"{name}: changed")
    return found


def _digests(root: Path) -> dict[str, str]:
    """SHA-256 of every file below `evidence/`, by its path from `root`."""
    files = sorted(path for path in (root / layout.EVIDENCE).rglob("*") if path.is_file() and not path.is_symlink())
    digests = {}
    for path in files:
        with path.open("rb") as file:
            digests[path.relative_to(root).as_posix()] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests


def unused(path: Path) -> Path:
    """The path, or where something has its name the first of `name-2`, `name-3`, … that nothing has."""
    names = (path.with_name(f"{path.name}-{number}") for number in count(2))
    return path if not path.exists() else next(other for other in names if not other.exists())


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all: a reader never sees half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(text.encode("utf-8"))
    temporary.replace(path)


def contract_digests(contracts: Iterable[LoadedContract]) -> dict[str, str]:
    """For `Digests.contracts`."""
    return {loaded.contract.id: loaded.digest for loaded in contracts}

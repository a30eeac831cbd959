"""Read a run directory and its header. The content of the directory is not trusted.

A run directory contains these files and folders (optional ones in parentheses):

run.json  contracts/  (waivers/)  evidence/<run id>/…  verdicts.json  (and the report's files)  manifest.json
"""

from __future__ import annotations

import hashlib
import os
import shutil
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from harness.contract.shared import contract_digest
from harness.errors import EvidenceError
from harness.evidence import layout
from harness.evidence.base import ProbeName, Record
from harness.evidence.environment_records import Environment, TwoCommits
from harness.evidence.files import Damaged, read_bytes, read_model
from harness.evidence.layout import shown, unfit
from harness.evidence.plan_records import Run, Unit
from harness.evidence.read_run import read_run, read_so_far
from harness.evidence.run_evidence import Death, RunEvidence
from harness.run_directory.places import Place, place_of, runs_in
from harness.run_directory.seal import UNFINISHED, Seal, listed_file, listing, seal_of
from harness.run_directory.verdict_file import ClaimDrilled, Versioned, header_1

if TYPE_CHECKING:
    from harness.contract.load import LoadedContract


class TimedBefore(Record):
    """A timed unit, and the names of the other run directories in which the unit was timed."""

    contract: str
    claim: str
    workload: str
    directories: list[str]


class Attempts(Record):
    """Other timings of a run's units. ci: the number, counted from 1, of the CI job's attempt in which the run was
    made."""

    timings: list[TimedBefore] = Field(default_factory=list)
    ci: Annotated[int, Field(ge=1)] | None = None  # None: unknown

    def directories(self, unit: tuple[str, str, str]) -> list[str]:
        """Return the names of the other directories in which a unit (contract, claim, workload) was timed."""
        return next((one.directories for one in self.timings if (one.contract, one.claim, one.workload) == unit), [])


class Narrowed(Record):
    """The part of the contracts that the command line selected. An empty list selects everything.

    tags: the tags from which `claims` was computed.
    """

    claims: list[str] = Field(default_factory=list)
    workloads: list[str] = Field(default_factory=list)
    tags: list[str] = Field(default_factory=list)

    def asks_for(self, unit: Unit) -> bool:
        """Return True if the command line selected this unit."""
        named = (self.claims, unit.claim), (self.workloads, unit.workload)
        return all(not wanted or name in wanted for wanted, name in named)


class Digests(Record):
    """SHA-256 digests in hexadecimal: of contracts by id, of all sources together, and of the sources by package.

    shared: by the id of a contract, the digests of the contract's shared files, in order. The contract's digest
    includes these files.
    evidence: the digest of each evidence file by path, in versions 1 and 2 of `run.json`. Later versions have these
    digests in the manifest.
    """

    contracts: dict[str, str]
    shared: dict[str, list[Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]]] = Field(default_factory=dict)
    source: str
    packages: dict[str, str] = Field(default_factory=dict)
    evidence: dict[str, str] = Field(default_factory=dict)


class WaiverRecord(Record):
    """A waiver as it was when the run started. expires: the last day (UTC) on which the waiver is valid."""

    contract: str
    claim: str
    workload: str
    owner: str
    reason: str
    expires: str
    expired: bool


class Resumption(Record):
    """One resumption of an interrupted run: its time, its command, and the runs that it executed.

    cut_off: the executed runs that had already started before the interruption. Their earlier evidence was removed.
    """

    at: str  # time in ISO 8601, in UTC
    command: list[str]
    executed: list[str]
    cut_off: list[str]


class Header(Versioned):
    """The content of `run.json`. In the directory of a drill, `units` are the controls, which run without a fault."""

    older: ClassVar = {1: header_1}
    format_version: Literal[2, 3] = 3
    purpose: Literal["verify", "fault", "drill"]
    started_at: str  # time in ISO 8601, in UTC
    command: list[str]
    narrowed: Narrowed = Narrowed()
    fault: str | None = None  # if the purpose is "fault": the name of the planted fault
    # the commits of candidates and baselines; None: all arms used the working tree
    commits: TwoCommits | None = None
    environment: Environment
    units: list[Unit]
    runs: dict[str, ProbeName]  # id of each planned run -> its probe
    digests: Digests
    # By id of a contract, the path of its file, relative to the folder in which the run was started.
    contract_files: dict[str, str] = Field(default_factory=dict)
    waivers: list[WaiverRecord] = Field(default_factory=list)
    attempts: Attempts = Attempts()  # earlier attempts
    # results of drills that were in the reports folder when the run started
    drilled: list[ClaimDrilled] = Field(default_factory=list)
    # one entry for each time that the run was resumed after an interruption
    resumed: list[Resumption] = Field(default_factory=list)

    @property
    def before_manifests(self) -> bool:
        """Return True if manifests did not exist when the directory was written, so that it may lack a manifest."""
        return self.format_version < 3

    @model_validator(mode="after")
    def _purpose_fits_fault(self) -> Self:
        if (self.purpose == "fault") != (self.fault is not None):
            raise ValueError(f"the purpose {self.purpose!r} does not match the planted fault {self.fault!r}")
        return self

    @field_validator("digests")
    @classmethod
    def _names_of_files(cls, digests: Digests) -> Digests:
        """Refuse a contract id that cannot be a file name, because the copy of a contract is a file with the id as its
        name."""
        for name in digests.contracts:
            if "/" in name or unfit(name):
                raise ValueError(f"a contract's copy cannot be named {shown(name)}.yaml")
        return digests

    @field_validator("units")
    @classmethod
    def _each_once(cls, units: list[Unit]) -> list[Unit]:
        names = Counter((unit.contract, unit.claim, unit.workload) for unit in units)
        if names and (twice := names.most_common(1)[0])[1] > 1:
            raise ValueError(f"unit {' / '.join(twice[0])} is listed {twice[1]} times")
        return units


@dataclass(frozen=True)
class Bundle:
    """The content of a run directory. seal: the result of comparing the directory with its manifest.

    If the run was unpacked from an archive, the unpacked files are removed when this object is deleted.
    """

    place: Place
    header: Header
    seal: Seal
    under_way: bool = False
    _read: dict[str, RunEvidence] = field(default_factory=dict, repr=False, compare=False)
    _made: dict[str, Run] = field(default_factory=dict, repr=False, compare=False)

    @property
    def complete(self) -> bool:
        """Return True if the run finished and was sealed, even if files were changed later (see `altered`)."""
        return not self.seal.missing

    @property
    def path(self) -> Path:
        """Return the path of the run as the caller gave it."""
        return self.place.named

    @property
    def root(self) -> Path:
        """Return the folder that contains the header, the contracts and the evidence."""
        return self.place.root

    def recorded(self) -> set[str]:
        """Return the paths of the evidence files that were recorded when the run was sealed."""
        return {*self.header.digests.evidence, *(self.seal.within.by_path() if self.seal.within is not None else ())}

    def contract_paths(self) -> list[Path]:
        """Return the sorted paths of the copies of contracts: a path for each contract that the header names, and all
        other YAML files in the same folder."""
        folder = self.root / layout.CONTRACTS
        names = {f"{name}.yaml" for name in self.header.digests.contracts}
        return [folder / name for name in sorted(names | {path.name for path in folder.glob("*.yaml")})]

    def shared_path(self, digest: str) -> Path:
        """Return the path of the copy of a shared file. digest: the SHA-256 of the file."""
        return self.root / layout.CONTRACTS / layout.SHARED_FILES / f"{digest}.yaml"

    def evidence(self, run_id: str) -> RunEvidence:
        """Return the evidence of one run. If the evidence is missing or damaged, return a death record: `incomplete` or
        `garbage`.

        Raises EvidenceError for a run id that leads out of the directory.
        """
        if run_id not in self._read:
            self._read[run_id] = self._evidence(run_id)
        return self._read[run_id]

    def so_far(self) -> Bundle:
        """Return this bundle for a directory that is still being written.

        The evidence of a run that is still executing then has only the arms' executions that have ended.
        """
        return replace(self, under_way=True, _read={}, _made={})

    def made(self, run_id: str) -> Run | None:
        """Return the executed `Run` as the evidence records it, or None if the record cannot be read."""
        self.evidence(run_id)
        return self._made.get(run_id)

    def _evidence(self, run_id: str) -> RunEvidence:
        if run_id in {".", ".."} or Path(run_id).name != run_id:
            raise EvidenceError("a run's id must be the name of its directory", where=str(self.path), got=f"{run_id!r}")
        directory = self.root / layout.EVIDENCE / run_id
        try:
            if not directory.is_dir():
                return self._dead(run_id, "incomplete", "the run left no evidence")
            run, evidence = read_so_far(directory) if self.under_way else read_run(directory)
        # Damaged evidence makes only the units of this run undecidable, so return a death record.
        except EvidenceError as error:
            return self._dead(run_id, "garbage", error.got)
        except OSError as error:  # A file that this user may not read is handled like damaged evidence.
            return self._dead(run_id, "garbage", f"cannot be read: {error.strerror or type(error).__name__}")
        if run.id != run_id:
            return self._dead(run_id, "garbage", f"this is the evidence of run {run.id!r}")
        self._made[run_id] = run
        return evidence

    def _dead(self, run_id: str, cause: Literal["incomplete", "garbage"], detail: str) -> RunEvidence:
        death = Death(cause=cause, detail=detail, phase=None, stack="")
        return RunEvidence(run_id, self.header.runs.get(run_id, "paired"), {}, death=death)


def read_bundle(path: Path) -> Bundle:
    """Open a run: a run directory, an archive of one, or a published folder.

    Raises EvidenceError in three cases: the path is not a run, the run contains something that is not allowed, or its
    `run.json` is damaged.
    """
    place = place_of(path)
    try:
        header = read_model(place.root / layout.HEADER, Header)
    except BaseException as error:
        if place.temporary is not None:
            shutil.rmtree(place.temporary, ignore_errors=True)
        if not isinstance(error, Damaged):
            raise
        raise _unreadable(path, place.root, error) from error
    bundle = Bundle(place, header, seal_of(place, before_manifests=header.before_manifests))
    if place.temporary is not None:
        weakref.finalize(bundle, shutil.rmtree, place.temporary, ignore_errors=True)
    return bundle


def _unreadable(path: Path, root: Path, damage: Damaged) -> EvidenceError:
    rule, where = f"a run directory must contain a readable {layout.HEADER}", str(path)
    if os.path.lexists(root / layout.HEADER):
        return EvidenceError(rule, where=where, got=str(damage))
    if (root / layout.SUMMARY).is_file():
        remedy = f"its evidence was not kept in this folder; read the {layout.SUMMARY}, or name an archive of the run"
        return EvidenceError(rule, where=where, got=f"only a {layout.SUMMARY}", remedy=remedy)
    runs = [each.name for each in runs_in(root)]
    named = f"name one of the runs in this folder: {', '.join(runs[:3])}{', …' if len(runs) > 3 else ''}"
    return EvidenceError(
        rule, where=where, got="none", remedy=named if runs else "name the folder that `harness verify` printed"
    )


def altered(bundle: Bundle) -> list[str]:
    """Return one line for each file that differs from the manifest or from the digests in the header."""
    sealed = dict.fromkeys(bundle.seal.lines())
    names = {name for name, _ in bundle.seal.differences}
    others = [*_contract_changes(bundle), *_evidence_changes(bundle)]
    return [*sealed, *(f"{name}: {what}" for name, what in others if name not in names)]


def _evidence_changes(bundle: Bundle) -> Iterator[tuple[str, str]]:
    """Yield name and difference of each evidence file that differs from its digest in the header. Only old headers, of
    directories without a manifest, have these digests."""
    recorded = bundle.header.digests.evidence
    if not recorded and (bundle.seal.missing == UNFINISHED or not bundle.header.before_manifests):
        return
    found = listing(bundle.root / layout.EVIDENCE)
    present = {f"{layout.EVIDENCE}/{name}" for name in found.files}
    yield from ((f"{layout.EVIDENCE}/{name}", what) for name, what in sorted(found.unfit.items()))
    yield from ((name, "missing") for name in sorted(set(recorded) - present))
    yield from ((name, "not recorded with the run") for name in sorted(present - set(recorded)))
    for name in sorted(present & set(recorded)):
        if listed_file(bundle.root, name).sha256 != recorded[name]:
            yield name, "changed"


def _contract_changes(bundle: Bundle) -> Iterator[tuple[str, str]]:
    shared = bundle.header.digests.shared
    for digest in sorted({each for used in shared.values() for each in used}):
        path = bundle.shared_path(digest)
        text = recorded_bytes(path)
        if text is None or hashlib.sha256(text).hexdigest() != digest:
            yield path.relative_to(bundle.root).as_posix(), "missing" if text is None else "changed"
    for path in bundle.contract_paths():
        name = f"{layout.CONTRACTS}/{path.name}"
        try:
            digest = contract_digest(read_bytes(path), shared.get(path.stem, []))
        except Damaged:
            yield name, "missing"
            continue
        if path.stem not in bundle.header.digests.contracts:
            yield name, "not recorded with the run"
        elif digest != bundle.header.digests.contracts[path.stem]:
            yield name, "changed"


def recorded_bytes(path: Path) -> bytes | None:
    """Return the bytes of a recorded file, or None if the file cannot be read."""
    try:
        return read_bytes(path)
    except Damaged:
        return None


def unused(path: Path) -> Path:
    """Return the path if nothing exists there, otherwise the first unused path among `name-2`, `name-3`, …"""
    names = (path.with_name(f"{path.name}-{number}") for number in count(2))
    return path if not os.path.lexists(path) else next(other for other in names if not os.path.lexists(other))


def contract_digests(contracts: Iterable[LoadedContract]) -> dict[str, str]:
    """Return the value of `Digests.contracts`: the digest of each contract, by contract id."""
    return {loaded.contract.id: loaded.digest for loaded in contracts}


def shared_digests(contracts: Iterable[LoadedContract]) -> dict[str, list[str]]:
    """Return the value of `Digests.shared`: the digests of the shared files of each contract, by contract id."""
    return {loaded.contract.id: [file.digest for file in loaded.shared] for loaded in contracts if loaded.shared}

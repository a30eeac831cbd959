"""Define `verdicts.json` (verdicts without sentences) and `drill.json` (a drill's results), and read their old formats.

Equal verdicts give equal bytes of `verdicts.json`, because the file contains no sentences, paths or times. Sentences
are computed from the evidence when they are shown. Their wording can change without a change of published runs.

`drill.json` is published and has a version. The last drill of a contract is the newest published record for it.

Each old format has one reader, which converts its values to the next version. Evidence has no version. A value that
older evidence lacks is read as None, and never replaced by an assumed value. The judges decide what a missing value
means (for example `end_state_unrecorded`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice, permutations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from harness.contract.load import LoadedContract, demands_of
from harness.contract.shared import SharedFiles, contract_digest
from harness.errors import ContractError, ContractErrors, EvidenceError
from harness.evidence import layout
from harness.evidence.base import Record
from harness.evidence.files import Damaged, read_bytes, read_model, require_keys_once, write_text
from harness.judging.verdict import Counts, Status, UnitFacts, count
from harness.numbers import Count, Real, dump_json
from harness.run_directory.archive import TOP, unpack

Values = dict[str, Any]


class Versioned(Record):
    """A file with a `format_version`. older: for each old version, a function that converts the file's values to the
    next version."""

    older: ClassVar[dict[int, Callable[[Values], Values]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _newer(cls, values: object) -> object:
        for version, reader in cls.older.items():
            if isinstance(values, dict) and values.get("format_version") == version:
                values = {**reader(values), "format_version": version + 1}
        return values


def header_1(values: Values) -> Values:
    """Convert a header of version 1 to version 2. Version 1 had no `purpose`; a drill's `fault` was "drill".

    In version 2, manifests did not exist yet (`Header.before_manifests`).
    """
    fault = values.get("fault")
    purpose = "verify" if fault is None else "drill" if fault == "drill" else "fault"
    return {**values, "purpose": purpose, "fault": fault if purpose == "fault" else None}


def verdict_file_1(values: Values) -> Values:
    """Convert verdicts of version 1 to version 2. Version 1 also contained the sentences of verdicts."""
    claims = values.get("claims")
    if not isinstance(claims, list):
        return values
    facts = [{k: v for k, v in each.items() if k != "message"} if isinstance(each, dict) else each for each in claims]
    return {**values, "claims": facts}


def drill_record_1(values: Values) -> Values:
    """Convert a drill record of version 1 to version 2. Version 1 did not contain the number of planned faults."""
    listed = [values.get("rows"), values.get("not_run", [])]
    return {**values, "planned": sum(len(each) for each in listed if isinstance(each, list))}


class Gate(Record):
    """The gate over all planned units, which is open if every unit has the verdict PASS."""

    open: bool


class VerdictFile(Versioned):
    """The content of `verdicts.json`."""

    older: ClassVar = {1: verdict_file_1}
    format_version: Literal[2] = 2
    counts: Counts
    gate: Gate
    claims: list[UnitFacts]


def verdict_file(verdicts: Sequence[UnitFacts]) -> VerdictFile:
    """Return the content of `verdicts.json` for these verdicts. Without any verdict the gate is closed."""
    held = bool(verdicts) and all(verdict.status is Status.PASS for verdict in verdicts)
    facts = [UnitFacts(**{name: getattr(each, name) for name in UnitFacts.model_fields}) for each in verdicts]
    return VerdictFile(counts=count(verdicts), gate=Gate(open=held), claims=facts)


def verdict_text(verdicts: Sequence[UnitFacts]) -> str:
    """Return the text of `verdicts.json`. Equal facts give equal bytes."""
    return dump_json(verdict_file(verdicts).model_dump(mode="json"), indent=2) + "\n"


def write_verdicts(directory: Path, verdicts: Sequence[UnitFacts]) -> None:
    """Write the verdicts into a run directory, and replace existing ones."""
    write_text(directory / layout.VERDICTS, verdict_text(verdicts))


def read_verdicts(directory: Path) -> VerdictFile:
    """Return a directory's verdicts. The file may have any version.

    Raises EvidenceError if the file is missing or damaged.
    """
    try:
        return read_model(directory / layout.VERDICTS, VerdictFile)
    except Damaged as damage:
        raise EvidenceError(
            "a finished run directory must contain its verdicts",
            where=str(directory),
            got=str(damage),
            remedy="create them again from the evidence with `harness judge --write`",
        ) from damage


def other_than(recorded: bytes | None, verdicts: Sequence[UnitFacts]) -> str | None:
    """Return as text the difference between the recorded `verdicts.json` and a new file with these verdicts. Return
    None if the bytes are equal.

    recorded: the content of the file, or None if it cannot be read. Sentences in a file of version 1 are not compared.
    """
    if recorded is None:
        return "the file cannot be read"
    given = verdict_text(verdicts).encode("utf-8")
    return None if given in (recorded, _without_sentences(recorded)) else "the evidence gives other verdicts"


def _without_sentences(recorded: bytes) -> bytes | None:
    """Convert the content of a `verdicts.json` of version 1 to version 2. Return None for another version, and for a
    file that is not JSON or repeats a key."""
    try:
        require_keys_once(recorded)
        values = json.loads(recorded)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict) or repr(values.get("format_version")) != "1":
        return None
    return f"{dump_json({**verdict_file_1(values), 'format_version': 2}, indent=2)}\n".encode()


FILE = layout.DRILL
# Largest number of orders of shared files that are tried, to find the order in which a contract's digest includes them.
# The header contains this order, but the header is at the end of the archive and would be slow to reach.
MOST_ORDERS = 10_000
Scalar = bool | int | Real | str


class Triple(Record):
    """The verdict that a fault must cause, or that it caused: status, reason code, and the figures that are checked."""

    status: str
    reason: str
    figures: dict[str, Scalar | None] = Field(default_factory=dict)


class Row(Record):
    """The result of one fault in one unit. runs: ids of the runs with the fault, in the order in which they were
    judged."""

    contract: str
    claim: str
    workload: str
    fault: str
    expected: Triple
    seen: Triple
    killed: bool
    upstream_alone_passes: bool | None
    message: str
    runs: list[str] = Field(default_factory=list)


class Control(Record):
    """The verdict of a unit without a fault. The verdict must be PASS. Otherwise the results of the unit's faults prove
    nothing."""

    contract: str
    claim: str
    workload: str
    status: str
    reason: str
    message: str


class NotDrilled(Record):
    """A fault that was not planted, or a claim that was not decided, because this machine could not execute the run, or
    because the drill was interrupted."""

    contract: str
    claim: str
    fault: str
    reason: str
    message: str


class Source(Record):
    """The origin of the evidence of a run with a fault. donor: the id of the run without a fault from which the
    evidence of the other arms was taken, or None."""

    probe: str
    executed_arms: list[str]
    faulted_arms: list[str]
    donor: str | None


class DrillMachine(Record):
    """The machine of a drill. cuda: True if the drill could plant faults that need CUDA. gpus: names of the GPUs."""

    cuda: bool
    gpus: list[str]
    host_memory_gib: Real


INTERRUPTED = "interrupted"  # the value of `NotDrilled.reason` for faults that an interrupted drill did not plant


class DrillRecord(Versioned):
    """The content of `drill.json`. contracts: contract id -> SHA-256 of the contract for which the record is valid.

    planned: the number of pairs of a claim and a fault in the drill. Each pair is in `rows` or in `not_run`.
    """

    older: ClassVar = {1: drill_record_1}
    format_version: Literal[2] = 2
    planned: int
    recorded_at: str  # time in ISO 8601, in UTC
    machine: DrillMachine
    contracts: dict[str, str]
    controls: list[Control]
    rows: list[Row]
    not_run: list[NotDrilled] = Field(default_factory=list)
    sources: dict[str, Source] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _all_are_listed(self) -> Self:
        listed = len(self.rows) + len(self.not_run)
        if listed != self.planned:
            raise ValueError(f"{self.planned} faults were planned, but {listed} are listed")
        return self

    @property
    def interrupted(self) -> list[NotDrilled]:
        """Return the faults that were not planted because the drill was interrupted."""
        return [item for item in self.not_run if item.reason == INTERRUPTED]

    @property
    def survivors(self) -> list[Row]:
        return [row for row in self.rows if not row.killed]

    @property
    def failed_controls(self) -> list[Control]:
        return [control for control in self.controls if control.status != "PASS"]


def record_text(record: DrillRecord) -> str:
    """Return the text of `drill.json` for a record."""
    return dump_json(record.model_dump(mode="json"), indent=2) + "\n"


def read_record(path: Path, shown: Path | None = None) -> DrillRecord:
    """Return a drill record.

    Raises EvidenceError if the file is missing, damaged or too new. shown: the path for the message.
    """
    try:
        return read_model(path, DrillRecord)
    except Damaged as damage:
        raise EvidenceError("the drill record must be readable", where=str(shown or path), got=str(damage)) from damage


def record_of(path: Path, contracts: Sequence[LoadedContract], known: dict[str, str] | None = None) -> DrillRecord:
    """Return a drill record with digests that are valid for `contracts`. Raises EvidenceError if it cannot be read.

    If a contract has changed since the drill only in texts by which nothing is executed or judged, the record gets the
    contract's new digest. known: digest of a drilled contract -> digest of its demands (see `LoadedContract.demands`).
    All drills of one command share this mapping, and new entries are added to it.
    """
    record = read_record(path)
    changed = [one for one in contracts if record.contracts.get(one.contract.id, one.digest) != one.digest]
    if not changed:
        return record
    drilled = {one.contract.id: record.contracts[one.contract.id] for one in changed}
    known = {} if known is None else known
    unread = [contract for contract, digest in drilled.items() if not known.get(digest)]
    if unread:  # the directory of this drill may contain a copy of the contract that earlier drills' directories lack
        with TemporaryDirectory(prefix="harness-drill-") as scratch:
            copies = _copies(path.parent, Path(scratch))
            known.update({drilled[contract]: _demands(copies, contract, record) for contract in unread})
    same = {one.contract.id: one.digest for one in changed if known[drilled[one.contract.id]] == one.demands()}
    return record.model_copy(update={"contracts": {**record.contracts, **same}})


def _copies(drill: Path, scratch: Path) -> Path:
    """Return the folder with the copies of the drilled contracts.

    If the copies are in an archive, unpack only this folder of the archive.
    """
    archive = drill / layout.ARCHIVE
    if not archive.is_file():
        return drill / layout.CONTRACTS
    with suppress(EvidenceError):
        unpack(archive, scratch, first=layout.CONTRACTS)
    return scratch / TOP / layout.CONTRACTS


def _demands(copies: Path, contract: str, record: DrillRecord) -> str:
    """Return the digest of the drilled contract's demands (see `LoadedContract.demands`). Return "" if no readable copy
    of the contract has the recorded digest."""
    try:
        path = copies / f"{contract}.yaml"
        text = read_bytes(path)
        shared = [file.stem for file in sorted((copies / layout.SHARED_FILES).glob("*.yaml"))]
        orders = chain.from_iterable(permutations(shared, number) for number in range(len(shared) + 1))
        tried = islice(orders, MOST_ORDERS)
        used = next((each for each in tried if contract_digest(text, each) == record.contracts[contract]), None)
        if used is None:
            return ""
        located = SharedFiles(lambda _contract, number, _name: copies / layout.SHARED_FILES / f"{used[number]}.yaml")
        return demands_of(path, located)
    except (ContractError, ContractErrors, Damaged):
        return ""


def records_below(folder: Path, contracts: Sequence[LoadedContract]) -> list[DrillRecord]:
    """Return every drill record below a folder, oldest first, as `record_of` returns it for these contracts.

    Files that cannot be read are ignored.
    """
    records, known = [], dict[str, str]()
    for path in sorted(folder.rglob(FILE)):
        try:
            records.append(record_of(path, contracts, known))
        except EvidenceError:
            continue
    return sorted(records, key=lambda record: record.recorded_at)


class ClaimDrilled(Record):
    """The results of a claim's faults in the newest drill that planted one of these faults.

    A drill counts only if the contract had the same demands then as now.
    """

    contract: str
    claim: str
    killed: Count
    planted: Count
    not_run: Count
    recorded_at: str  # time in ISO 8601, in UTC


def drilled_claims(records: Sequence[DrillRecord], contracts: Mapping[str, str]) -> list[ClaimDrilled]:
    """Return the result of the faults of each claim. contracts: SHA-256 digests by id. records: oldest first.

    For each claim, the result comes from the newest record of a drill that planted one of the claim's faults.
    """
    found: dict[tuple[str, str], ClaimDrilled] = {}
    for record in records:
        of_this_text = {name for name, digest in record.contracts.items() if contracts.get(name) == digest}
        planted = [(row.contract, row.claim) for row in record.rows]
        units = [*planted, *((left.contract, left.claim) for left in record.not_run)]
        for contract, claim in dict.fromkeys(unit for unit in units if unit[0] in of_this_text):
            unit = (contract, claim)
            if unit in found and found[unit].planted and unit not in planted:
                continue  # the machine of this drill could plant none of the faults, so keep the earlier drill's result
            found[unit] = ClaimDrilled(
                contract=contract,
                claim=claim,
                killed=sum(row.killed for row in record.rows if (row.contract, row.claim) == unit),
                planted=planted.count(unit),
                not_run=units.count(unit) - planted.count(unit),
                recorded_at=record.recorded_at,
            )
    return list(found.values())


def last_of(contract: str, records: Sequence[DrillRecord]) -> DrillRecord | None:
    """Return the newest record that contains this contract id, or None. records: oldest first."""
    return next((record for record in reversed(records) if contract in record.contracts), None)

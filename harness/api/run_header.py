"""Define the options of a verification, and make the header of its run directory from them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from harness.contract.load import LoadedContract
from harness.contract.waivers import Waiver
from harness.devices import environment
from harness.evidence import redaction, sources
from harness.evidence.environment_records import TwoCommits
from harness.evidence.redaction import Redaction
from harness.evidence.sources import trainers
from harness.planning.plan import Plan
from harness.run_directory.attempts import attempts_before
from harness.run_directory.bundle import (
    Digests,
    Header,
    Narrowed,
    WaiverRecord,
    contract_digests,
    shared_digests,
)
from harness.run_directory.drill_record import drilled_claims, records_below


@dataclass(frozen=True)
class VerifyOptions:
    """What to verify, and how. Empty `claims`, `workloads` and `tags` mean all."""

    claims: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    fault: str | None = None
    gate: bool = False
    reports: Path = Path("harness-reports")
    name: str | None = None  # of the run directory; by default the date and the machine
    data: Path | None = None
    model_directory: Path | None = None
    waivers: Path | None = None  # by default `waivers.yaml` next to the contracts
    wall_limit_s: float | None = None  # of each run; None: as planned
    heartbeat_s: float | None = None  # likewise
    redact: bool | None = None  # leave out names of host, user and folders; None: in CI
    command: tuple[str, ...] = ("harness", "verify")
    resume: Path | None = None  # an interrupted run directory to resume
    baseline: str | None = None  # a branch, tag or commit: arms that claims name as `baseline` are of it
    where: bool = False  # locate the first difference of each claim that failed


def waiver_texts(waivers: Sequence[Waiver]) -> list[str]:
    """Return the texts of the waivers' files, each once: copies of them lie in the run directory."""
    return list(dict.fromkeys(waiver.file_text for waiver in waivers))


def redaction_of(contracts: Sequence[LoadedContract], asked: bool | None) -> Redaction | None:
    """Return what is left out of evidence of these contracts, whose own words stay; None if nothing is left out."""
    if not redaction.wanted(asked):
        return None
    words = [redaction.texts_in(loaded.contract.model_dump(mode="json")) for loaded in contracts]
    return redaction.of_this_machine(set().union(*words))


def header_of(
    contracts: Sequence[LoadedContract],
    planned: Plan,
    options: VerifyOptions,
    started: datetime,
    waivers: Sequence[Waiver] = (),
    commits: TwoCommits | None = None,
) -> Header:
    """Return `run.json` without the digests of evidence. Waivers count by the day on which the run starts."""
    systems = sorted({system for loaded in contracts for system in loaded.contract.systems()})
    listed = sources.listed_sources(systems)
    collected = environment.collect(systems, listed).model_copy(update={"trainers": trainers(systems)})
    header = Header(
        purpose="verify" if options.fault is None else "fault",
        started_at=started.isoformat(timespec="seconds"),
        command=[_text(word) for word in options.command],
        narrowed=Narrowed(claims=list(options.claims), workloads=list(options.workloads), tags=list(options.tags)),
        fault=options.fault,
        commits=commits,
        environment=collected,
        units=planned.units,
        runs={run.id: run.probe for run in planned.runs},
        digests=Digests(
            contracts=contract_digests(contracts),
            shared=shared_digests(contracts),
            source=collected.source_digest,
            packages=sources.package_digests(listed),
        ),
        contract_files=_files_of(contracts, Path.cwd()),
        waivers=[WaiverRecord(**waiver.record(started.date())) for waiver in waivers],
    )
    left_out = redaction_of(contracts, options.redact)
    return header if left_out is None else redacted_header(header, left_out)


def _files_of(contracts: Sequence[LoadedContract], folder: Path) -> dict[str, str]:
    """Return each contract's file by its id, if it lies below the folder."""
    found = {loaded.contract.id: (folder / loaded.path).resolve() for loaded in contracts}
    below = folder.resolve()
    return {name: path.relative_to(below).as_posix() for name, path in found.items() if path.is_relative_to(below)}


def beside_the_header(options: VerifyOptions) -> dict[str, object]:
    """Return by name the options that change what is executed and stand in no header; files with sizes and times."""
    return {
        "--data": _files(options.data),
        "--model": _files(options.model_directory),
        "--wall-limit": options.wall_limit_s,
        "--heartbeat": options.heartbeat_s,
    }


def _files(path: Path | None) -> list[list[object]]:
    if path is None:
        return []
    found = sorted(below for below in path.rglob("*") if below.is_file()) if path.is_dir() else [path]
    states = [(file, file.stat()) for file in found]
    return [[str(file.resolve()), state.st_size, state.st_mtime_ns] for file, state in states]


def redacted_header(header: Header, left_out: Redaction) -> Header:
    """Return the header without names of host, user and folders, and with a note that says so."""
    noted = header.environment.model_copy(update={"redacted": redaction.NOTE})
    # a waiver's owner has signed it; names of units and runs are the contract's
    changes = {"environment": left_out.model(noted), "waivers": header.waivers}
    return left_out.model(header).model_copy(update=changes)


def _text(word: str) -> str:
    """Return a word of the command line as text for JSON, with bytes that Python's locale could not decode escaped."""
    return word.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def with_earlier_runs(header: Header, contracts: Sequence[LoadedContract], reports: Path) -> Header:
    """Return the header with earlier attempts and drills in `reports`; the run's own directory is not there yet."""
    drilled = drilled_claims(records_below(reports, contracts), header.digests.contracts)
    return header.model_copy(update={"attempts": attempts_before(header, reports, os.environ), "drilled": drilled})


def directory_name(started: datetime, options: VerifyOptions) -> str:
    gpus = environment.machine().gpus
    device = gpus[0].name.removeprefix("NVIDIA ").lower().replace(" ", "-") if gpus else "cpu"
    drill = f"-drill-{options.fault}" if options.fault else ""
    return f"{started:%Y-%m-%d-%H%M%S}-{device}{drill}"

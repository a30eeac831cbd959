"""`harness check`: read contracts and warn about weak ones. Nothing is run."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli.arguments import OWN_REPORTS, Json, Paths, Tags, Waivers
from harness.contract import version_1
from harness.contract.accepted_baselines import find_signed
from harness.contract.load import LoadedContract, load_contracts, selected, unused_files
from harness.contract.schema import SCHEMA_VERSION, parts_of
from harness.contract.shared import folders_read
from harness.contract.signed_entries import Signed, expired_on, unmatched
from harness.contract.waivers import FilesRead
from harness.errors import ContractError, ContractErrors, ExitCode
from harness.evidence.sources import broken_modules
from harness.lint import Finding, lint, lint_drill, lint_power, lint_rules, lint_together
from harness.numbers import counted, dump_json
from harness.platform.paths import require_existing
from harness.platform.standard_streams import print_json, print_line, print_lines, print_workflow_command
from harness.report.workflow_commands import show_end
from harness.run_directory.verdict_file import record_of, records_below
from harness.system.described import describe, describe_all

if TYPE_CHECKING:
    from harness.kinds.speed.speed_figures import LastTiming

REPORTS = Path("reports")  # folder of published drill records and timings, in the working directory


def check(
    paths: Paths,
    waivers: Waivers = None,
    drill: Annotated[Path | None, typer.Option("--drill", help="A drill record; default: those in reports/.")] = None,
    tag: Tags = None,
    power: Annotated[
        bool, typer.Option("--power", help="Warn about timings that would probably stay undecided.")
    ] = False,
    json: Json = False,
) -> None:
    """Read contracts and lint them; nothing is run."""
    raise typer.Exit(print_findings(paths, waivers=waivers, drill=drill, tags=tag or [], power=power, as_json=json))


def findings_of(
    paths: Sequence[Path],
    waivers: Path | None = None,
    drill: Path | None = None,
    tags: Sequence[str] = (),
    *,
    power: bool = False,
) -> tuple[list[LoadedContract], list[Finding]]:
    """Load contracts and waivers. Return the contracts, and the errors and warnings about contracts and waivers.

    Raises ContractErrors with every error of every file. Each contract is also compared with its last drill record,
    which is `drill` or the newest record below `reports/`. With `power`, a warning is added for each timed claim whose
    last run in `reports/` or `harness-reports/` was so noisy that a new run would probably leave it undecided. With
    `tags`, only claims that have one of these tags are checked.
    """
    loaded, signed = _read(paths, waivers)
    read = FilesRead.of(paths, waivers, loaded)
    only = selected(loaded, tags) if tags else None
    dead = unmatched(signed, loaded, all_known=any(path.is_dir() for path in paths))
    stale = [Finding("error", error.where, error.sentence()) for error in dead]
    stale += [Finding("warning", *late) for late in expired_on(datetime.now(tz=UTC).date(), signed)]
    # describe the systems of all contracts in one call, so that only one process is started for this
    describe_all(system for one in loaded for system in one.contract.systems())
    read.require_unchanged()
    if drill is not None:
        require_existing([drill])
    records = records_below(REPORTS, loaded) if drill is None else [record_of(drill, loaded)]
    timings = _last_timings(loaded) if power else []
    findings = [
        item
        for contract in loaded
        for item in (
            *lint(contract, describe, only),
            *lint_rules(contract, only),
            *lint_drill(contract, records),
            *lint_power(contract, timings),
        )
    ]
    unused = [
        Finding("warning", f"{file}:1:1", "no contract uses this shared file") for file in unused_files(paths, loaded)
    ]
    broken = _uncompilable(loaded)
    return loaded, [*_old_versions(loaded), *findings, *broken, *lint_together(loaded), *unused, *stale]


def _uncompilable(contracts: Sequence[LoadedContract]) -> list[Finding]:
    """Return an error for each module that Python cannot compile. The searched modules are those that contain the
    systems of the contracts, and the modules that they import."""
    systems = {system for loaded in contracts for system in loaded.contract.systems()}
    return [
        Finding(
            "error",
            f"{os.path.relpath(path)}:{error.lineno or 1}:{error.offset or 1}",
            f"Python cannot compile the file: {error.msg}",
        )
        for path, error in broken_modules(systems)
    ]


def _last_timings(contracts: Sequence[LoadedContract]) -> Sequence[LastTiming]:
    kinds = {part.kind for one in contracts for claim in one.contract.claims for part in parts_of(claim)}
    if "throughput_ratio" not in kinds:
        return []
    # Import this module late: it imports numpy, which takes as long as everything else in this command.
    from harness.api.last_timing import last_timings

    return last_timings([one.contract for one in contracts], [REPORTS, OWN_REPORTS])


def _old_versions(contracts: Sequence[LoadedContract]) -> list[Finding]:
    """Return a note for each file that is written in version 1 of the contract language. Version 1 is still
    supported."""
    return [
        Finding(
            "note",
            one.where("schema"),
            f"the file is in {version_1.SCHEMA_VERSION}, which is still supported; write new contracts in "
            f"{SCHEMA_VERSION}",
        )
        for one in contracts
        if one.version == 1
    ]


def _read(paths: Sequence[Path], waivers: Path | None) -> tuple[list[LoadedContract], list[Signed]]:
    """Load the contracts, and the waivers and accepted baselines for them. Raises ContractErrors with the errors in all
    files."""
    errors: list[ContractError] = []
    loaded: list[LoadedContract] = []
    signed: list[Signed] = []
    try:
        loaded = load_contracts(paths)
    except ContractError as problem:
        errors += problem.each()
    try:
        signed = find_signed(paths, waivers)
    except ContractError as problem:
        errors += problem.each()
    if errors:
        raise ContractErrors(errors)
    return loaded, signed


def print_findings(
    paths: Sequence[Path],
    *,
    waivers: Path | None = None,
    drill: Path | None = None,
    tags: Sequence[str] = (),
    power: bool = False,
    as_json: bool,
) -> int:
    """Print the errors and warnings about the contracts. Return exit code 11 if there is an error, otherwise 0."""
    print_lines(folders_read(paths), sys.stderr)
    try:
        loaded, findings = findings_of(paths, waivers, drill, tags, power=power)
    except ContractErrors as problem:
        findings = [Finding("error", error.where, error.sentence()) for error in problem.errors]
        loaded = []
    errors = [finding for finding in findings if finding.level == "error"]
    if errors:
        texts = [f"{finding.where}: {finding.message}" for finding in errors]
        show_end(ExitCode.INVALID_CONTRACT, texts, partial(print_workflow_command, file=sys.stderr))
    only = selected(loaded, tags) if loaded else ()
    claims = sum(not only or claim.id in only for contract in loaded for claim in contract.contract.claims)
    unchecked = sum(len(contract.contract.unchecked) for contract in loaded)
    if as_json:
        rows = [{"level": item.level, "where": item.where, "message": item.message} for item in findings]
        counts = {"contracts": len(loaded), "claims": claims, "unchecked": unchecked}
        print_json(dump_json({**counts, "findings": rows}, indent=2))
    else:
        print_lines(map(str, findings), sys.stderr)
        warnings = sum(finding.level == "warning" for finding in findings)
        listed = [f"{unchecked} without an executable check"] if unchecked else []
        read = [counted(len(loaded), "contract"), counted(claims, "claim"), *listed]
        print_line(" · ".join([*read, counted(len(errors), "error"), counted(warnings, "warning")]))
    return ExitCode.INVALID_CONTRACT if errors else ExitCode.HELD

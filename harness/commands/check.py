"""`harness check`: read contracts and lint them. Nothing is run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from harness.commands.arguments import Json, Paths, Waivers
from harness.contract.load import ContractErrors, LoadedContract, folders_read, load_contracts
from harness.contract.waivers import find_waivers, unmatched
from harness.errors import ExitCode
from harness.lint import Finding, lint, lint_drill
from harness.numbers import dump_json
from harness.run_directory.drill_record import read_record, records_below
from harness.system.described import describe, describe_all

REPORTS = Path("reports")  # where published drill records are looked for, in the working directory


def check(
    paths: Paths,
    waivers: Waivers = None,
    drill: Annotated[Path | None, typer.Option("--drill", help="A drill record; by default those in reports/.")] = None,
    json: Json = False,
) -> None:
    """Read contracts and lint them; nothing is run."""
    raise typer.Exit(print_findings(paths, waivers=waivers, drill=drill, as_json=json))


def findings_of(
    paths: Sequence[Path], waivers: Path | None = None, drill: Path | None = None
) -> tuple[list[LoadedContract], list[Finding]]:
    """Load contracts and waivers (raises ContractErrors with every error of every file) and lint them.

    Each contract is also held against its last drill record: the one in `drill`, or the newest below `reports/`.
    """
    loaded = load_contracts(paths)
    dead = unmatched(find_waivers(paths, waivers), loaded, all_known=any(path.is_dir() for path in paths))
    stale = [Finding("error", error.where, _without_place(str(error), error.where)) for error in dead]
    describe_all(system for one in loaded for system in one.contract.systems())  # all of them in one process
    records = records_below(REPORTS) if drill is None else [read_record(drill)]
    findings = [item for contract in loaded for item in (*lint(contract, describe), *lint_drill(contract, records))]
    return loaded, [*findings, *stale]


def print_findings(
    paths: Sequence[Path], *, waivers: Path | None = None, drill: Path | None = None, as_json: bool
) -> int:
    """Print errors and warnings; exit code 11 when there is an error, else 0."""
    for line in folders_read(paths):
        print(line, file=sys.stderr)
    try:
        loaded, findings = findings_of(paths, waivers, drill)
    except ContractErrors as problem:
        findings = [Finding("error", error.where, _without_place(str(error), error.where)) for error in problem.errors]
        loaded = []
    errors = [finding for finding in findings if finding.level == "error"]
    claims = sum(len(contract.contract.claims) for contract in loaded)
    if as_json:
        rows = [{"level": item.level, "where": item.where, "message": item.message} for item in findings]
        print(dump_json({"contracts": len(loaded), "claims": claims, "findings": rows}, indent=2))
    else:
        for finding in findings:
            print(f"{finding.where}: {finding.level}: {finding.message}", file=sys.stderr)
        warnings = len(findings) - len(errors)
        print(f"{len(loaded)} contracts · {claims} claims · {len(errors)} errors · {warnings} warnings")
    return ExitCode.INVALID_CONTRACT if errors else ExitCode.HELD


def _without_place(text: str, where: str) -> str:
    return text.removeprefix(f"{where}: ")

"""`harness check` and `harness explain`: read contracts, lint them, say what a claim demands. Nothing is run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from harness.contract.claims import AnyClaim, AnyPart, CompositeClaim, parts_of
from harness.contract.lint import Finding, lint, lint_drill
from harness.contract.load import ContractErrors, LoadedContract, load_contracts
from harness.contract.waivers import find_waivers, unmatched
from harness.drill.record import read_record, records_below
from harness.errors import ExitCode, UsageError
from harness.evidence.numbers import dump_json
from harness.system.resolve import describe

REPORTS = Path("reports")  # where published drill records are looked for, in the working directory


def findings_of(
    paths: Sequence[Path], waivers: Path | None = None, drill: Path | None = None
) -> tuple[list[LoadedContract], list[Finding]]:
    """Load contracts and waivers (raises ContractErrors with every error of every file) and lint them.

    Each contract is also held against its last drill record: the one in `drill`, or the newest below `reports/`.
    """
    loaded = load_contracts(paths)
    dead = unmatched(find_waivers(paths, waivers), loaded, all_known=any(path.is_dir() for path in paths))
    stale = [Finding("error", error.where, _without_place(str(error), error.where)) for error in dead]
    records = records_below(REPORTS) if drill is None else [read_record(drill)]
    found = [each for contract in loaded for each in (*lint(contract, describe), *lint_drill(contract, records))]
    return loaded, [*found, *stale]


def check(paths: Sequence[Path], *, waivers: Path | None = None, drill: Path | None = None, as_json: bool) -> int:
    """Print errors and warnings; exit code 11 when there is an error, else 0."""
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


def explain(claim_id: str, contracts: Path) -> str:
    """What a claim demands, in plain lines. Raises UsageError for an unknown id."""
    known: list[str] = []
    for loaded in load_contracts([contracts]):
        for claim in loaded.contract.claims:
            if claim.id == claim_id:
                return _explanation(loaded, claim)
            known.append(claim.id)
    raise UsageError(
        "no contract has this claim", where=str(contracts), got=claim_id, remedy=f"known claims: {', '.join(known)}"
    )


def _explanation(loaded: LoadedContract, claim: AnyClaim) -> str:
    lines = [f"{claim.id}: {claim.title}", f"  contract   {loaded.contract.id} ({loaded.path})"]
    lines += [f"  workload   {name}: {_workload(loaded, name)}" for name in claim.on]
    for part in parts_of(claim):
        label = f"{part.kind}" if isinstance(claim, CompositeClaim) else "demands"
        lines.append(f"  {label:<10} {_demands(part)}")
    if claim.upstream:
        lines.append(f"  upstream   {claim.upstream}")
    lines.append(f"  why        {claim.why}")
    lines.append(f"  if it fails {claim.if_fails}")
    lines.append(f"  faults     {', '.join(claim.falsified_by) or 'none: nothing has shown that this claim can fail'}")
    return "\n".join(lines)


def _workload(loaded: LoadedContract, name: str) -> str:
    workload = loaded.contract.workloads[name]
    return f"{workload.model}, batch {workload.batch_size}, sequence length {workload.seq_len}, {workload.steps} steps"


def _demands(part: AnyPart) -> str:
    text_fields = {"id", "title", "on", "why", "if_fails", "falsified_by", "upstream", "parts"}
    values = part.model_dump(exclude_defaults=True, exclude=text_fields)
    return ", ".join(f"{key}: {value}" for key, value in values.items())

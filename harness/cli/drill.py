"""`harness drill`: plant every fault that should break a claim, and check that the claim then fails."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from harness.api import drill as fire_drill
from harness.api import drill as matrix
from harness.cli.arguments import (
    OWN_REPORTS,
    Claims,
    Gpus,
    Json,
    Name,
    On,
    Paths,
    PlanOnly,
    Redact,
    Reports,
    Resume,
    Tags,
    redact_words,
    refuse_plan_of_resumed,
    shared_out,
)
from harness.cli.interruption import LONG_GRACE_S, interruptible
from harness.cli.printing import print_forecast, print_shard, recorded_in
from harness.contract.load import load_contracts
from harness.contract.waivers import FilesRead
from harness.errors import ExitCode
from harness.extras.fleet import gate as fleet
from harness.extras.fleet.gate import engine
from harness.extras.fleet.job import drill_shards, units_of
from harness.lint import refuse_lint_errors
from harness.platform.standard_streams import print_error, print_json, print_lines
from harness.report.terminal import Progress
from harness.run_directory.costs import busy_times


def drill(
    paths: Paths,
    claim: Claims = None,
    tag: Tags = None,
    fault: Annotated[list[str] | None, typer.Option("--fault", help="Use only this fault; may be repeated.")] = None,
    plan: PlanOnly = False,
    json: Json = False,
    reports: Reports = OWN_REPORTS,
    name: Name = None,
    redact: Redact = None,
    on: On = None,
    gpus: Gpus = None,
    resume: Resume = None,
) -> None:
    """Plant every fault that the claims name, and check that a judge catches each one for the declared reason."""
    given = {"--claim": claim, "--tag": tag, "--fault": fault, "--json": json, "--plan": plan, "--resume": resume}
    if shared_out(on, gpus, given):
        with interruptible(LONG_GRACE_S):
            raise typer.Exit(drill_on(on, gpus, paths, fleet.new_directory(reports, name), redact=redact))
    options = fire_drill.DrillOptions(
        claims=tuple(claim or ()),
        tags=tuple(tag or ()),
        faults=tuple(fault or ()),
        reports=reports,
        name=name,
        redact=redact,
        resume=resume,
        command=("harness", *sys.argv[1:]),
    )
    refuse_plan_of_resumed(resume, plan=plan)
    if plan:
        from harness.cli.forecast import forecast_drill

        with interruptible():
            raise typer.Exit(print_forecast(forecast_drill(paths, options), as_json=json))
    with interruptible(LONG_GRACE_S), Progress(recorded_in(reports)) as watch:
        result = fire_drill.drill(paths, options, watch, refuse_lint_errors)
    if json:
        print_json(matrix.as_json(result.record, result.run_directory))
    else:
        print_lines(matrix.shown(result.record, result.run_directory))
    raise typer.Exit(result.exit_code)


def drill_on(on: str | None, gpus: str | None, paths: Sequence[Path], directory: Path, *, redact: bool | None) -> int:
    """Plant every fault of the contracts, in jobs of the engine of `--on` or `--gpus`. Return the worst exit code."""
    contracts = load_contracts(paths)
    read = FilesRead.of(paths, None, contracts)
    refuse_lint_errors(contracts)
    jobs_of = engine(on, gpus)
    shards = drill_shards(contracts, busy_times(units_of(contracts), [directory.parent, Path("reports")]))
    if not shards:
        print_error("no claim names a fault, so nothing is drilled")
        return ExitCode.UNDECIDED
    codes = fleet.run_shards(shards, jobs_of, directory, print_shard, redact_words(redact))
    read.require_unchanged()
    return fleet.worst(codes.values())

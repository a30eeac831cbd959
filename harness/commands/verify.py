"""`harness verify`: run the planned units, judge them, write a run directory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from harness import session
from harness.commands.arguments import Claims, Data, Gate, Json, Model, Name, Paths, Reports, Waivers, Workloads
from harness.commands.interruption import interruptible
from harness.commands.printing import append_step_summary, print_judgement
from harness.report.terminal import Progress


def verify(
    paths: Paths,
    claim: Claims = None,
    workload: Workloads = None,
    fault: Annotated[str | None, typer.Option("--fault", help="Plant this fault; the report is a drill's.")] = None,
    gate: Gate = False,
    json: Json = False,
    reports: Reports = Path("harness-reports"),
    name: Name = None,
    data: Data = None,
    model: Model = None,
    waivers: Waivers = None,
    wall_limit: Annotated[
        float | None, typer.Option("--wall-limit", min=1.0, metavar="SECONDS", help="End each run's worker after this.")
    ] = None,
) -> None:
    """Run the planned units, judge them, write a run directory with its report."""
    options = session.VerifyOptions(
        claims=tuple(claim or ()),
        workloads=tuple(workload or ()),
        fault=fault,
        gate=gate,
        reports=reports,
        name=name,
        data=data,
        model_directory=model,
        waivers=waivers,
        wall_limit_s=wall_limit,
        command=("harness", *sys.argv[1:]),
    )
    with interruptible():
        judgement = session.verify(paths, options, Progress())
    print_judgement(judgement, as_json=json)
    append_step_summary(judgement)
    raise typer.Exit(judgement.exit_code)

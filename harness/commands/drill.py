"""`harness drill`: every claim against every fault that should break it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.commands.arguments import Claims, Json, Name, Paths, Reports
from harness.commands.interruption import interruptible
from harness.drill import drill as fire_drill
from harness.drill import matrix
from harness.report.terminal import Progress


def drill(
    paths: Paths,
    claim: Claims = None,
    fault: Annotated[list[str] | None, typer.Option("--fault", help="Only this fault; may be repeated.")] = None,
    json: Json = False,
    reports: Reports = Path("harness-reports"),
    name: Name = None,
) -> None:
    """Plant every fault that the claims name, and see that each is caught for the declared reason."""
    options = fire_drill.DrillOptions(
        claims=tuple(claim or ()),
        faults=tuple(fault or ()),
        reports=reports,
        name=name,
        command=("harness", *sys.argv[1:]),
    )
    with interruptible():
        result = fire_drill.drill(paths, options, Progress())
    show = matrix.as_json if json else matrix.text
    typer.echo(show(result.record, result.run_directory))
    raise typer.Exit(result.exit_code)

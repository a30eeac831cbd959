"""The command line: one function a command, each translating to the Python API in `harness.session`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.errors import ExitCode, HarnessError

app = typer.Typer(
    name="harness",
    help="Verify contracts about GPU-training optimizations, with evidence that anybody can re-judge.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Paths = Annotated[list[Path], typer.Argument(help="Contract files, or folders of them.")]
RunDirectories = Annotated[list[Path], typer.Argument(help="Run directories; several are the shards of one gate.")]
Gate = Annotated[bool, typer.Option("--gate", help="Fail unless every planned unit was decided and held.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Reports = Annotated[Path, typer.Option("--reports", help="Where run directories are written.")]
Claims = Annotated[list[str] | None, typer.Option("--claim", help="Only this claim; may be repeated.")]
Workloads = Annotated[list[str] | None, typer.Option("--workload", help="Only this workload; may be repeated.")]
Data = Annotated[Path | None, typer.Option("--data", help="A text file or folder to train on.")]
Model = Annotated[Path | None, typer.Option("--model", help="A checkpoint directory in Hugging Face layout.")]


@app.command()
def verify(
    paths: Paths,
    claim: Claims = None,
    workload: Workloads = None,
    fault: Annotated[str | None, typer.Option("--fault", help="Plant this fault; the report is a drill's.")] = None,
    gate: Gate = False,
    json: Json = False,
    reports: Reports = Path("harness-reports"),
    data: Data = None,
    model: Model = None,
) -> None:
    """Run the planned units, judge them, write a run directory with its report."""
    from harness import console, session
    from harness.report.terminal import Progress

    options = session.Options(
        claims=tuple(claim or ()),
        workloads=tuple(workload or ()),
        fault=fault,
        gate=gate,
        reports=reports,
        data=data,
        model_directory=model,
        command=("harness", *sys.argv[1:]),
    )
    outcome = session.verify(paths, options, Progress())
    console.print_outcome(outcome, as_json=json)
    raise typer.Exit(outcome.exit_code)


@app.command()
def check(paths: Paths, json: Json = False) -> None:
    """Read contracts and lint them; nothing is run."""
    from harness import checking

    raise typer.Exit(checking.check(paths, as_json=json))


@app.command()
def judge(
    run_directories: RunDirectories,
    check: Annotated[bool, typer.Option("--check", help="Exit 0 when the verdicts equal verdicts.json.")] = False,
    write: Annotated[
        bool, typer.Option("--write", help="Replace verdicts.json and the reports, never evidence.")
    ] = False,
    contracts: Annotated[Path | None, typer.Option("--contracts", help="Judge by these contracts instead.")] = None,
    gate: Gate = False,
    json: Json = False,
) -> None:
    """Judge the evidence of run directories again, without a GPU."""
    from harness import rejudge

    if check:
        raise typer.Exit(rejudge.check(run_directories, as_json=json))
    if write:
        raise typer.Exit(rejudge.write(run_directories))
    raise typer.Exit(rejudge.judge(run_directories, contracts=contracts, gate=gate, as_json=json))


@app.command()
def report(run_directory: Annotated[Path, typer.Argument(help="A run directory.")]) -> None:
    """Render report.html, junit.xml and summary.md of a run directory again."""
    from harness import rejudge

    typer.echo(rejudge.render(run_directory))


@app.command()
def explain(
    claim: Annotated[str, typer.Argument(help="A claim's id, for example F-GRAPH-BWD-001.")],
    contracts: Annotated[Path, typer.Option("--contracts", help="Where to look for it.")] = Path("contracts"),
) -> None:
    """Say what a claim demands, where its numbers come from, and what usually breaks it."""
    from harness import checking

    typer.echo(checking.explain(claim, contracts))


@app.command()
def drill(
    paths: Paths,
    claim: Claims = None,
    fault: Annotated[list[str] | None, typer.Option("--fault", help="Only this fault; may be repeated.")] = None,
    json: Json = False,
    reports: Reports = Path("harness-reports"),
) -> None:
    """Plant every fault that the claims name, and see that each is caught for the declared reason."""
    from harness.drill import drill as fire_drill
    from harness.drill import matrix
    from harness.report.terminal import Progress

    options = fire_drill.Options(
        claims=tuple(claim or ()), faults=tuple(fault or ()), reports=reports, command=("harness", *sys.argv[1:])
    )
    outcome = fire_drill.drill(paths, options, Progress())
    show = matrix.as_json if json else matrix.text
    typer.echo(show(outcome.record, outcome.run_directory))
    raise typer.Exit(outcome.exit_code)


@app.command()
def schema() -> None:
    """Print the JSON Schema of contract files."""
    from harness.contract.json_schema import schema_text

    typer.echo(schema_text(), nl=False)


def main() -> None:
    """Entry point; maps errors to exit codes in one place."""
    try:
        app()
    except HarnessError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt as error:
        typer.echo("\n".join(["interrupted", *getattr(error, "__notes__", [])]), err=True)
        sys.exit(ExitCode.INTERRUPTED)


if __name__ == "__main__":
    main()

"""The command line: one function a command, each translating to the Python API in `harness.session`."""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
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
ContractPaths = Annotated[list[Path] | None, typer.Argument(help="Contract files, or folders of them.")]
Gate = Annotated[bool, typer.Option("--gate", help="Fail unless every planned unit was decided and held.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Reports = Annotated[Path, typer.Option("--reports", help="Where run directories are written.")]
Claims = Annotated[list[str] | None, typer.Option("--claim", help="Only this claim; may be repeated.")]
Workloads = Annotated[list[str] | None, typer.Option("--workload", help="Only this workload; may be repeated.")]
Data = Annotated[Path | None, typer.Option("--data", help="A text file or folder to train on.")]
Waivers = Annotated[Path | None, typer.Option("--waivers", help="A waiver file, not `waivers.yaml` beside contracts.")]
Name = Annotated[str | None, typer.Option("--name", help="The run directory's name; by default date and GPU.")]
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
    name: Name = None,
    data: Data = None,
    model: Model = None,
    waivers: Waivers = None,
    wall_limit: Annotated[
        float | None, typer.Option("--wall-limit", min=1.0, metavar="SECONDS", help="End each run's worker after this.")
    ] = None,
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
        name=name,
        data=data,
        model_directory=model,
        waivers=waivers,
        wall_limit_s=wall_limit,
        command=("harness", *sys.argv[1:]),
    )
    with interruptible():
        outcome = session.verify(paths, options, Progress())
    console.print_outcome(outcome, as_json=json)
    console.append_step_summary(outcome)
    raise typer.Exit(outcome.exit_code)


@app.command()
def check(
    paths: Paths,
    waivers: Waivers = None,
    drill: Annotated[Path | None, typer.Option("--drill", help="A drill record; by default those in reports/.")] = None,
    json: Json = False,
) -> None:
    """Read contracts and lint them; nothing is run."""
    from harness import checking

    raise typer.Exit(checking.check(paths, waivers=waivers, drill=drill, as_json=json))


@app.command()
def judge(
    run_directories: RunDirectories,
    check: Annotated[
        bool, typer.Option("--check", help="Exit 0 when verdicts, and a drill's rows, are as recorded.")
    ] = False,
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
    from harness import explanation

    typer.echo(explanation.explain(claim, contracts))


@app.command()
def drill(
    paths: Paths,
    claim: Claims = None,
    fault: Annotated[list[str] | None, typer.Option("--fault", help="Only this fault; may be repeated.")] = None,
    json: Json = False,
    reports: Reports = Path("harness-reports"),
    name: Name = None,
) -> None:
    """Plant every fault that the claims name, and see that each is caught for the declared reason."""
    from harness.drill import drill as fire_drill
    from harness.drill import matrix
    from harness.report.terminal import Progress

    options = fire_drill.Options(
        claims=tuple(claim or ()),
        faults=tuple(fault or ()),
        reports=reports,
        name=name,
        command=("harness", *sys.argv[1:]),
    )
    with interruptible():
        outcome = fire_drill.drill(paths, options, Progress())
    show = matrix.as_json if json else matrix.text
    typer.echo(show(outcome.record, outcome.run_directory))
    raise typer.Exit(outcome.exit_code)


@app.command()
def doctor(paths: ContractPaths = None, json: Json = False) -> None:
    """Say which units this machine can decide, and what is missing for the others; nothing is run."""
    from harness import doctoring

    typer.echo(doctoring.doctor(paths or [Path("contracts")], as_json=json))


@app.command()
def compare(
    before: Annotated[Path, typer.Argument(help="The earlier run directory.")],
    after: Annotated[Path, typer.Argument(help="The later run directory.")],
) -> None:
    """Say what changed between two runs: environment, verdicts, figures beyond noise."""
    from harness import rejudge

    typer.echo(rejudge.compare(before, after), nl=False)


@app.command()
def history(
    reports: Annotated[Path, typer.Argument(help="A folder of run directories.")],
    out: Annotated[Path, typer.Option("--out", help="The page to write.")] = Path("history.html"),
) -> None:
    """Draw every figure over the runs of a folder; only like machines share a line."""
    from harness import rejudge

    typer.echo(rejudge.history(reports, out))


@app.command()
def schema() -> None:
    """Print the JSON Schema of contract files."""
    from harness.contract.json_schema import schema_text

    typer.echo(schema_text(), nl=False)


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGINT and SIGTERM unwind what is being written, say what is kept, and end with the table's codes."""

    def leave(_number: int, _frame: object) -> None:
        raise SystemExit(ExitCode.TERMINATED)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as error:
        word, code = "interrupted", ExitCode.INTERRUPTED
        if isinstance(error, SystemExit):
            word, code = ("terminated", ExitCode.TERMINATED) if error.code == 143 else (f"{error!r}", ExitCode.ERROR)
        typer.echo("\n".join([word, *getattr(error, "__notes__", [])]), err=True)
        raise typer.Exit(code) from error
    finally:
        signal.signal(signal.SIGTERM, previous)


def main() -> None:
    """Entry point; maps errors to exit codes in one place."""
    try:
        app()
    except HarnessError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except Exception:  # Python's own exit code 1 would read as a violated claim
        traceback.print_exc()
        sys.exit(ExitCode.ERROR)


if __name__ == "__main__":
    main()

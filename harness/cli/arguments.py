"""Define arguments and options that several commands share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from harness.errors import UsageError

Paths = Annotated[list[Path], typer.Argument(help="Contract files, or folders of them.")]
RunDirectories = Annotated[
    list[Path], typer.Argument(help="Run directories, or archives of them; several are the shards of one gate.")
]
ContractPaths = Annotated[list[Path] | None, typer.Argument(help="Contract files, or folders of them.")]
Gate = Annotated[bool, typer.Option("--gate", help="Fail unless every planned unit was decided and held.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="FOLDER", help="Write one report.html, junit.xml and summary.md of all runs into a new folder."
    ),
]
PlanOnly = Annotated[
    bool,
    typer.Option("--plan", help="Print units, runs and their earlier durations, then exit; nothing is run or written."),
]
Resume = Annotated[
    Path | None,
    typer.Option(
        "--resume", metavar="DIR", help="Resume this interrupted run directory: runs that had ended are not repeated."
    ),
]
OWN_REPORTS = Path("harness-reports")  # the default folder of run directories
Reports = Annotated[Path, typer.Option("--reports", help="The folder in which run directories are written.")]
Claims = Annotated[list[str] | None, typer.Option("--claim", help="Use only this claim; may be repeated.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="Use only claims with this tag; may be repeated.")]
Workloads = Annotated[list[str] | None, typer.Option("--workload", help="Use only this workload; may be repeated.")]
Data = Annotated[Path | None, typer.Option("--data", help="A text file or folder to train on.")]
Waivers = Annotated[
    Path | None, typer.Option("--waivers", help="A waiver file, instead of `waivers.yaml` next to the contracts.")
]
Baseline = Annotated[
    str | None,
    typer.Option(
        "--baseline",
        metavar="REF",
        help="Train arms that claims name as `baseline` with the code of this branch, tag or commit.",
    ),
]
Name = Annotated[str | None, typer.Option("--name", help="The run directory's name; default: date and GPU.")]
WallLimit = Annotated[
    float | None,
    typer.Option("--wall-limit", min=1.0, metavar="SECONDS", help="End each run's worker after this time."),
]
Heartbeat = Annotated[
    float | None,
    typer.Option(
        "--heartbeat",
        min=1.0,
        metavar="SECONDS",
        help="End a worker that makes no progress for this time and does not compile; default: 120.",
    ),
]
Model = Annotated[Path | None, typer.Option("--model", help="A checkpoint directory in Hugging Face layout.")]
Redact = Annotated[
    bool | None,
    typer.Option(
        "--redact/--no-redact",
        help="Write no names of host, user or folders into evidence; the default in CI.",
    ),
]
On = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="local|slurm[:KEY=VALUE,...]",
        help="Distribute the contracts over this machine, or as jobs of a Slurm cluster with these options of sbatch.",
    ),
]
Gpus = Annotated[
    str | None,
    typer.Option("--gpus", metavar="all|GPU,...", help="Distribute the contracts over these GPUs of this machine."),
]


def refuse_plan_of_resumed(resume: Path | None, *, plan: bool) -> None:
    """Raise UsageError if `--plan` is combined with `--resume`. The plan would also list runs that have ended."""
    if plan and resume is not None:
        raise UsageError(
            "--plan cannot be combined with --resume", got=f"--resume {resume}", remedy="leave out --plan or --resume"
        )


def redact_words(redact: bool | None) -> list[str]:
    """Return `["--redact"]`, `["--no-redact"]`, or [] for None, as words for another harness command line."""
    return [] if redact is None else ["--redact" if redact else "--no-redact"]


def shared_out(on: str | None, gpus: str | None, options: Mapping[str, object]) -> bool:
    """Return True if `--on` or `--gpus` was given. The contracts are then run as several jobs.

    options: the value of each option that cannot be combined with `--on` and `--gpus`, by the option's name. Raises
    UsageError if one of these options was given together with `--on` or `--gpus`.
    """
    job_option = "--on" if on else "--gpus"
    if not on and not gpus:
        return False
    for other_option, value in options.items():
        if value:
            raise UsageError(
                f"{job_option} cannot be combined with {other_option}, because whole contracts are run as jobs",
                remedy=f"leave out {job_option} or {other_option}",
            )
    return True

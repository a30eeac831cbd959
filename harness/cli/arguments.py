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
        "--out", metavar="FOLDER", help="Write one report.html, junit.xml and summary.md of them all into a new folder."
    ),
]
PlanOnly = Annotated[
    bool,
    typer.Option(
        "--plan", help="Print units, runs and the seconds that they took before, then exit; nothing runs or is written."
    ),
]
Resume = Annotated[
    Path | None,
    typer.Option(
        "--resume", metavar="DIR", help="Go on with this interrupted run directory: what had ended is not run again."
    ),
]
Reports = Annotated[Path, typer.Option("--reports", help="Where run directories are written.")]
Claims = Annotated[list[str] | None, typer.Option("--claim", help="Only this claim; may be repeated.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="Only claims with this tag; may be repeated.")]
Workloads = Annotated[list[str] | None, typer.Option("--workload", help="Only this workload; may be repeated.")]
Data = Annotated[Path | None, typer.Option("--data", help="A text file or folder to train on.")]
Waivers = Annotated[Path | None, typer.Option("--waivers", help="A waiver file, not `waivers.yaml` beside contracts.")]
Baseline = Annotated[
    str | None,
    typer.Option(
        "--baseline", metavar="REF", help="Train the arms that claims name as `baseline` as this branch, tag or commit."
    ),
]
Name = Annotated[str | None, typer.Option("--name", help="The run directory's name; by default date and GPU.")]
WallLimit = Annotated[
    float | None, typer.Option("--wall-limit", min=1.0, metavar="SECONDS", help="End each run's worker after this.")
]
Heartbeat = Annotated[
    float | None,
    typer.Option(
        "--heartbeat",
        min=1.0,
        metavar="SECONDS",
        help="End a worker that makes no progress for so long and does not compile; 120 by default.",
    ),
]
Model = Annotated[Path | None, typer.Option("--model", help="A checkpoint directory in Hugging Face layout.")]
Redact = Annotated[
    bool | None,
    typer.Option(
        "--redact/--no-redact",
        help="Write no name of host, user or folders into evidence; the default in CI.",
    ),
]
On = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="local|slurm[:KEY=VALUE,...]",
        help="Share the contracts out: over this machine, or as jobs of a Slurm cluster, with these options of sbatch.",
    ),
]
Gpus = Annotated[
    str | None,
    typer.Option("--gpus", metavar="all|GPU,...", help="Share the contracts out over these GPUs of this machine."),
]


def refuse_plan_of_resumed(resume: Path | None, *, plan: bool) -> None:
    """Raise UsageError for `--plan` with `--resume`, because the plan would also count runs that have already ended."""
    if plan and resume is not None:
        raise UsageError(
            "--plan is of a run that begins anew", got=f"--resume {resume}", remedy="leave out one of them"
        )


def redact_words(redact: bool | None) -> list[str]:
    """Return `--redact` or `--no-redact` as words for another command of the harness; no words if neither was given."""
    return [] if redact is None else ["--redact" if redact else "--no-redact"]


def shared_out(on: str | None, gpus: str | None, options: Mapping[str, object]) -> bool:
    """Return True if `--on` or `--gpus` was given, so that the contracts are run as several jobs.

    options: options that cannot be combined with these two, by name. Raises UsageError if one of `options` was given.
    """
    asked = "--on" if on else "--gpus"
    if not on and not gpus:
        return False
    for name, value in options.items():
        if value:
            raise UsageError(f"{asked} is for whole contracts", got=name, remedy=f"leave out {asked} or {name}")
    return True

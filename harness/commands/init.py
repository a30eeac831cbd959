"""`harness init`: write a first contract and its adapter beside an existing project. Nothing is run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from harness.first_contract.draft import STEPS, Draft
from harness.first_contract.project import arms_here, keep
from harness.first_contract.step_source import find_step_source
from harness.standard_streams import print_line

Step = Annotated[str, typer.Argument(metavar="STEP", help="`module:function` or `path/to/file.py:function`.")]
Compile = Annotated[bool, typer.Option("--compile/--no-compile", help="Try it through torch.compile, too.")]
Steps = Annotated[int, typer.Option("--steps", min=8, help="Training steps of each arm.")]
Force = Annotated[bool, typer.Option("--force", help="Replace files that exist.")]


def init(step: Step, steps: Steps = STEPS, compiled: Compile = True, force: Force = False) -> None:
    """Write a contract and an adapter for the function that makes a training step; nothing is run."""
    draft = Draft(find_step_source(step), steps, arms_here(compiled=compiled))
    print_kept(keep(draft, Path.cwd(), force=force))


def print_kept(paths: Sequence[Path]) -> None:
    """The files that were written, and what comes next."""
    for path in paths:
        print_line(f"wrote {path.relative_to(Path.cwd())}")
    print_line("next: harness check contracts/ && harness verify contracts/")

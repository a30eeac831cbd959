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
    source = find_step_source(step)
    draft = Draft(source, steps, arms_here(compiled=compiled), source.no_gradients)
    seen = f"; `harness try {source.asked} --write-contract` writes the claim where it sees gradients"
    print_kept(draft, keep(draft, Path.cwd(), force=force), seen)


def print_kept(draft: Draft, paths: Sequence[Path], seen: str = "") -> None:
    """Print which files were written, which claim was left out, and what comes next."""
    for path in paths:
        print_line(f"wrote {path.relative_to(Path.cwd())}")
    if draft.no_gradients:
        print_line(f"left out: {draft.claim_id('GRADIENTS')}, since {draft.no_gradients}{seen}")
    print_line("next: harness check contracts/ && harness verify contracts/")

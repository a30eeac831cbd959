"""What the rehearsals of workflows share: a folder to check out, and a rehearsal of it."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rehearse_workflow import Rehearsal, event

ROOT = Path(__file__).parents[2]
STAND_IN = ROOT / "tests" / "support" / "stand_in_harness.py"
Rehearse = Callable[..., Rehearsal]


def write_harness(folder: Path) -> None:
    """The stand-in, as the command where an install step puts it."""
    (folder / ".venv" / "bin").mkdir(parents=True, exist_ok=True)
    command = folder / ".venv" / "bin" / "harness"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{STAND_IN}" "$@"\n')
    command.chmod(0o755)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """What is checked out: a project with the harness in it."""
    folder = tmp_path / "source"
    write_harness(folder)
    return folder


@pytest.fixture
def ends(source: Path) -> Callable[..., None]:
    """Say how the stand-in's commands end."""

    def write(**codes: int) -> None:
        (source / "ends.json").write_text(json.dumps({name.replace("_", "-"): code for name, code in codes.items()}))

    return write


@pytest.fixture
def rehearse(source: Path, tmp_path: Path) -> Rehearse:
    """Rehearse a workflow in a folder of its own; the install steps are left out, since the source has the harness."""

    def run(
        workflow: str,
        given: dict[str, Any] | None = None,
        *,
        github: dict[str, Any] | None = None,
        **options: Any,
    ) -> Rehearsal:
        scratch = tmp_path / "rehearsal"
        shutil.rmtree(scratch, ignore_errors=True)
        options = {"skip": frozenset({".install"}), **options}
        rehearsal = Rehearsal(source, scratch, github or event("push"), **options)
        rehearsal.run(ROOT / ".github" / "workflows" / workflow, given)
        return rehearsal

    return run

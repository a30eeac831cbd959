"""Plan, execute and judge claims of the kinds `resume` and `evaluation` on small systems, within a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import warm_start
from claims_in_process import contract_of, judged, judged_on

from harness.judging.verdict import Verdict
from harness.processes import child

STEPS, SAVE_AT, EVERY = 12, 6, 3
COMMON = {"id": "CLAIM", "title": "t", "why": "w", "if_fails": "f", "judged_on": ["w"], "candidate": "plain"}
RESUME: dict[str, Any] = {
    **COMMON,
    "kind": "resume",
    "save_at": SAVE_AT,
    "steps": STEPS - SAVE_AT,
    "equality": "bitwise",
    "max_abs_difference": 1e-3,
}
EVALUATION: dict[str, Any] = {**COMMON, "kind": "evaluation", "every": EVERY, "evaluations": 4, "steps": STEPS}


def resumed(system: str, directory: Path, *, fault: str | None = None, **claim: Any) -> Verdict:
    return judged(f"checkpoint_systems:{system}", directory, RESUME | claim, fault=fault)


def resumed_by(system: str, directory: Path, *changes: dict[str, Any]) -> list[Verdict]:
    """Return the verdicts on several claims, which share the runs that are alike."""
    first, *beside = [RESUME | each for each in changes]
    return judged_on(contract_of(f"checkpoint_systems:{system}", first, beside=beside), directory)


def evaluated(system: str, directory: Path, *, fault: str | None = None, **claim: Any) -> Verdict:
    return judged(f"checkpoint_systems:{system}", directory, EVALUATION | claim, fault=fault)


def fork_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train parts in forks of an unused process (`warm`), because starting an interpreter takes seconds.

    The forks have one thread, as this process must have: with more threads, sums have another order and other bits.
    """
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(child, "subprocess", warm_start.Subprocess())

"""Claims of the kinds `resume` and `evaluation` on small systems, planned, executed and judged by a test."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest
from claims_in_process import judged

from harness.evidence.run_records import ArmFailed
from harness.judge.verdict import Verdict
from harness.runners import resume
from harness.runners.recorder import Recorder

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


def evaluated(system: str, directory: Path, *, fault: str | None = None, **claim: Any) -> Verdict:
    return judged(f"checkpoint_systems:{system}", directory, EVALUATION | claim, fault=fault)


def _save(folder: str, arm: str) -> None:
    """What the saving process does, in one that was forked from a process that has imported what it needs."""
    import torch

    from harness.evidence.plan_records import Run
    from harness.runners import saving_process
    from harness.runners.line import pair

    torch.set_num_threads(1)
    directory = Path(folder)
    run = Run.model_validate_json((directory / "run.json").read_bytes())
    line, _theirs = pair()
    with Recorder(directory) as recorder:
        saving_process._train_and_save(run, arm, recorder, line)


def fork_what_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Save in a fork of a process that has done nothing yet: starting an interpreter takes seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.optim", "harness.runners.stretch", "harness.runners.opening"])

    def saved_elsewhere(arm: str, recorder: Recorder) -> ArmFailed | None:
        process = context.Process(target=_save, args=(str(recorder.directory), arm))
        process.start()
        process.join()
        assert process.exitcode == 0
        return None

    monkeypatch.setattr(resume, "_saved_elsewhere", saved_elsewhere)

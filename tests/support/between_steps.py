"""Claims of the kinds `resume` and `evaluation` on small systems, planned, executed and judged by a test."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest
from claims_in_process import judged
from forked_part import train_part

from harness.evidence.run_records import ArmFailed
from harness.judge.verdict import Verdict
from harness.runners import resume, resumed_seeds
from harness.runners.recorder import Recorder
from harness.runners.training_part import TrainingPart

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


def fork_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train parts in a fork of a process that has done nothing yet: starting an interpreter takes seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        [
            "torch",
            "torch.optim",
            "torch._dynamo",
            "harness.runners.training_part",
            "harness.system.replay.cpu_checks",
            "harness.system.step_function",
        ]
    )

    def train_elsewhere(part: TrainingPart, recorder: Recorder) -> ArmFailed | None:
        process = context.Process(target=train_part, args=(part.model_dump_json(), str(recorder.directory)))
        process.start()
        process.join()
        assert process.exitcode == 0
        return None

    for probe in (resume, resumed_seeds):
        monkeypatch.setattr(probe, "train_elsewhere", train_elsewhere)

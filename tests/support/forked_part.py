"""What the other process of a resumed training does, in a fork: beside it nothing, each fork imports this file anew."""

from __future__ import annotations

from pathlib import Path


def train_part(part: str, directory: str) -> None:
    """Train the part, in a process that was forked from one that has imported what it needs."""
    import torch

    from harness.evidence.plan_records import Run
    from harness.runners.line import pair
    from harness.runners.recorder import Recorder
    from harness.runners.training_part import TrainingPart, train

    torch.set_num_threads(1)
    folder = Path(directory)
    run = Run.model_validate_json((folder / "run.json").read_bytes())
    line, _theirs = pair()
    with Recorder(folder) as recorder:
        train(run, TrainingPart.model_validate_json(part), recorder, line)

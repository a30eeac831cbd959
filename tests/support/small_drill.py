"""A short contract for the reference trainer, with runs that are executed in the test's process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.evidence import layout
from harness.evidence.plan_records import Run
from harness.execution import schedule, sharing, supervisor
from harness.execution.recorder import Recorder
from harness.kinds import imported, probe_named
from harness.numbers import dump_json

STEPS = 8
CONTRACT = """\
schema: contract/v1
id: short-v1
title: A short traced step
system: reference_impl.system:QLoRASystem
workloads:
  long: {{model: tiny, batch_size: 2, seq_len: 16, steps: 50, needs: {{device: cpu}}}}
  short: {{model: tiny, batch_size: 2, seq_len: 16, steps: 8, needs: {{device: cpu}}}}
arms:
  traced: {{capture: step}}
  plain: {{capture: none}}
claims:
  - id: SHORT-001
    title: The traced replay trains like the plain step
    kind: trajectory_match
    mechanism: traced
    candidate: traced
    baseline: plain
    equality: {equality}
    max_abs_difference: {tolerance}
    guards:
      steps: 8
    on: [long, short]
    why: eight steps are enough for these faults
    if_fails: look at the first differing step
    falsified_by: [{faults}]
"""


def write_contract(
    folder: Path, faults: str, *, equality: str = "bitwise", tolerance: str = "0.1", file: str = "short-v1.yaml"
) -> Path:
    """Write the contract's file into `folder` and return its path."""
    path = folder / file
    path.write_text(CONTRACT.format(faults=faults, equality=equality, tolerance=tolerance), encoding="utf-8")
    return path


def run_here(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Execute runs in this process, one at a time, with only the first layer of the tiny model.

    Recording cannot be split over two threads, and takes a second for each layer. folder: for the remaining weights.
    """
    patch.setattr(supervisor, "execute", execute_here)
    patch.setattr(sharing, "_repetitions", lambda _run: [])  # of one process there is no other
    patch.setattr(schedule, "usable_cores", lambda: 1)
    patch.setattr("reference_impl.trainer.TINY_CHECKPOINT", _first_layer(folder / "first_layer"))


def in_lanes(patch: pytest.MonkeyPatch) -> None:
    """Split short CPU runs into several processes (lanes), as long GPU runs are."""
    patch.setattr(sharing, "SPLIT_FROM_STEP_GIB", 1)
    patch.setattr(sharing, "_on_processors", sharing._on_gpu)


def _first_layer(directory: Path) -> Path:
    from safetensors.torch import load_file, save_file

    from reference_impl.config import TINY_CHECKPOINT

    directory.mkdir()
    tensors = load_file(TINY_CHECKPOINT / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if ".layers." not in name or ".layers.0." in name}
    save_file(kept, directory / "model.safetensors")
    config = json.loads((TINY_CHECKPOINT / "config.json").read_text(encoding="utf-8"))
    (directory / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1}), encoding="utf-8")
    return directory


def execute_here(run: Run, directory: Path, on_progress: object = None, **_: object) -> None:
    """Replace `supervisor.execute` without a process, which saves seconds of imports but does not isolate runs."""
    directory.mkdir(parents=True)
    text = dump_json(run.model_dump(), indent=2, sort_keys=False)
    (directory / layout.RUN).write_text(text + "\n", encoding="utf-8")
    with Recorder(directory) as recorder:
        imported(probe_named(run.probe).execute)(run, recorder)
        recorder.complete()
    (directory / "heartbeat").unlink()

"""A short contract of the reference trainer, and an executor that makes evidence without a worker process."""

from __future__ import annotations

import importlib
from pathlib import Path

from harness.evidence import layout
from harness.evidence.plan_records import Run
from harness.numbers import dump_json
from harness.runners.recorder import Recorder

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
    """The contract's file in `folder`."""
    path = folder / file
    path.write_text(CONTRACT.format(faults=faults, equality=equality, tolerance=tolerance), encoding="utf-8")
    return path


def execute_here(run: Run, directory: Path, on_progress: object = None, **_: object) -> None:
    """`supervisor.execute` without the process: seconds of imports a run are saved, isolation is lost."""
    directory.mkdir(parents=True)
    text = dump_json(run.model_dump(), indent=2, sort_keys=False)
    (directory / layout.RUN).write_text(text + "\n", encoding="utf-8")
    with Recorder(directory) as recorder:
        importlib.import_module(f"harness.runners.{run.probe}").execute(run, recorder)
        recorder.complete()
    (directory / "heartbeat").unlink()

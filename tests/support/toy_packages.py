"""A folder with a contract of `loss_below`, the kind of `tests/plugin_kind`, and commands that run in it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "tests" / "plugin_kind"
SCRIPTED = ROOT / "tests" / "support" / "scripted"
CONTRACT = """\
schema: contract/v2
id: toy-v1
title: A toy
system: scripted_system:ScriptedSystem
workloads:
  five: {model: m, batch_size: 2, seq_len: 4, steps: 5, options: {behaviour: held}}
arms:
  fast: {capture: step}
claims:
  - id: TOY-001
    title: The loss ends below one and a half
    kind: loss_below
    candidate: fast
    below:
      otherwise: 0.5
      cases:
        - {capability_at_least: "1.0", workload: five, value: 1.5}
        - {workload: five, value: 1.5}
    judged_on: [five]
    why: The script ends at 1.0.
    if_fails: The script says so.
    falsified_by: [last_loss_high, missing_run]
"""
Harness = Callable[..., "subprocess.CompletedProcess[str]"]


def harness_with(folder: Path) -> Harness:
    """Return a function that runs a command in a folder with the contract and packages in its folder `packages`."""
    (folder / "contracts").mkdir()
    (folder / "contracts" / "toy-v1.yaml").write_text(CONTRACT)

    def run(*arguments: str, without: bool = False) -> subprocess.CompletedProcess[str]:
        paths = [ROOT, SCRIPTED] if without else [ROOT, SCRIPTED, PACKAGE, folder / "packages"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
        command = [sys.executable, "-m", "harness", *arguments]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)

    return run

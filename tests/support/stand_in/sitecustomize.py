"""Replace the probes `paired` and `throughput` in worker processes; the run's settings name what they do.

Python imports this file at start if its folder is on the path, which a worker inherits from its supervisor.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.evidence.plan_records import Run
    from harness.execution.recorder import Recorder


def execute(run: Run, recorder: Recorder) -> None:
    getattr(importlib.import_module("worker_behaviours"), str(run.settings["behaviour"]))(run, recorder)


for name in ("harness.execution.probes.paired", "harness.execution.probes.throughput"):
    probe = types.ModuleType(name)
    probe.__dict__["execute"] = execute
    sys.modules[name] = probe

"""Make workers with this folder on their path play scripts as the probe `paired`; Python imports this file at start."""

import sys
import types


def _execute(run: object, recorder: object) -> None:
    import scripted_system

    scripted_system.execute(run, recorder)  # type: ignore[arg-type]


_probe = types.ModuleType("harness.execution.probes.paired")
_probe.__dict__["execute"] = _execute
sys.modules["harness.execution.probes.paired"] = _probe

"""In workers that find this directory on their path, the probe `paired` plays scripts; Python imports this at start."""

import sys
import types


def _execute(run: object, recorder: object) -> None:
    import scripted_system

    scripted_system.execute(run, recorder)  # type: ignore[arg-type]


_probe = types.ModuleType("harness.execution.probes.paired")
_probe.__dict__["execute"] = _execute
sys.modules["harness.execution.probes.paired"] = _probe

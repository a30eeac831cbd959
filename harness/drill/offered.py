"""Which faults a contract may name. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterable

from harness.drill.evidence_faults import EVIDENCE_FAULTS
from harness.system.protocol import FaultDescription, SystemDescription
from harness.system.wrappers import HARNESS_FAULTS


def offered_faults(systems: Iterable[SystemDescription]) -> dict[str, FaultDescription]:
    """Faults by name: of the harness's evidence, of its wrappers, of the systems.

    A system's fault hides the harness's of the same name, and the first system's those of the others.
    """
    offered = {**EVIDENCE_FAULTS, **HARNESS_FAULTS}
    for system in reversed(list(systems)):
        offered |= system.faults
    return offered

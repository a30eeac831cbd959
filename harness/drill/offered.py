"""Which faults a contract may name. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from harness.contract.schema import Contract
from harness.drill.evidence_faults import descriptions
from harness.system.protocol import FaultDescription, SystemDescription
from harness.system.wrappers import HARNESS_FAULTS


def offered_faults(systems: Iterable[SystemDescription]) -> dict[str, FaultDescription]:
    """Faults by name: of the harness's evidence, of its wrappers, of the systems.

    A system's fault hides the harness's of the same name, and the first system's those of the others.
    """
    offered = {**descriptions(), **HARNESS_FAULTS}
    for system in reversed(list(systems)):
        offered |= system.faults
    return offered


def offered_by(contract: Contract, describe: Callable[[str], SystemDescription]) -> dict[str, FaultDescription]:
    """The faults that a contract may name, of its system and of its arms' own; raises what `describe` raises."""
    return offered_faults([describe(system) for system in contract.systems()])

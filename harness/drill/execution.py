"""The runs of a drill, and the evidence of its faulted runs.

Every run has a process of its own, as everywhere: a failed capture or a poisoned stream costs its own row. (Sharing
a process between faults would save about a second of imports a run; leaving out unfaulted arms saves more.)
"""

from __future__ import annotations

from harness.drill.evidence_faults import EVIDENCE_CHANGES
from harness.drill.merge import merged
from harness.drill.plan import DrillPlan, FaultedRun
from harness.evidence.bundle import Bundle
from harness.evidence.model import Run, RunEvidence


def runs_of(planned: DrillPlan) -> list[Run]:
    """What to execute: the controls, then the faulted runs."""
    faulted = [each.executed for each in planned.faulted.values() if each.executed is not None]
    return [*planned.controls.runs, *faulted]


def evidence_of(name: str, planned: DrillPlan, bundle: Bundle, fault: str) -> RunEvidence:
    """The evidence of one faulted run, joined with its control's arms or planted with a fault of the evidence."""
    faulted = planned.faulted[name]
    change = EVIDENCE_CHANGES.get(fault)
    if change is not None and faulted.donor is not None:
        return change(bundle.evidence(faulted.donor))
    return _joined(faulted, bundle)


def _joined(faulted: FaultedRun, bundle: Bundle) -> RunEvidence:
    seen = bundle.evidence(faulted.planned.id)
    if faulted.executed is None or faulted.donor is None:
        return seen  # a run that was planned and never executed reads as one that left nothing
    return merged(faulted.planned, seen, bundle.evidence(faulted.donor))

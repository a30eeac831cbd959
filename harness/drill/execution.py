"""The runs of a drill, and the evidence of its faulted runs.

Every run has a process of its own, as everywhere: a failed capture or a poisoned stream costs its own row. (Sharing
a process between faults would save about a second of imports a run; leaving out unfaulted arms saves more.)
"""

from __future__ import annotations

from harness.drill.evidence_faults import evidence_faults
from harness.drill.merge import merged
from harness.drill.plan import DrillPlan
from harness.evidence import layout
from harness.evidence.files import Damaged, read_model
from harness.evidence.plan_records import Run
from harness.evidence.run_evidence import RunEvidence
from harness.run_directory.bundle import Bundle
from harness.run_directory.drill_record import Source


def runs_of(planned: DrillPlan) -> list[Run]:
    """What to execute: the controls, then the faulted runs."""
    faulted = [faulted_run.executed for faulted_run in planned.faulted.values() if faulted_run.executed is not None]
    return [*planned.controls.runs, *faulted]


def evidence_of(name: str, source: Source, bundle: Bundle, fault: str) -> RunEvidence:
    """The evidence of one faulted run, joined with its control's arms or planted with a fault of the evidence."""
    planted = evidence_faults().get(fault)
    if planted is not None and planted.change is not None and source.donor is not None:
        return planted.change(bundle.evidence(source.donor))
    if planted is None and not source.executed_arms and source.donor is not None:
        return bundle.evidence(source.donor)  # the fault is in another run of the unit
    seen = bundle.evidence(name)
    if not source.executed_arms or source.donor is None:
        return seen  # a run that was planned and never executed reads as one that left nothing
    try:
        executed = read_model(bundle.root / layout.EVIDENCE / name / layout.RUN, Run)
    except Damaged:
        return seen  # which reads as a death for the same reason
    return merged(executed, seen, bundle.evidence(source.donor))

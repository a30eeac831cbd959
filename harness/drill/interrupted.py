"""What an interrupted drill can still say: the cases whose runs had all ended; the others are counted as not run."""

from __future__ import annotations

from dataclasses import replace

from harness.drill.execution import runs_of
from harness.drill.plan import Case, DrillPlan, NotRun
from harness.evidence import layout
from harness.evidence.read_run import has_ended
from harness.run_directory.bundle import Bundle
from harness.run_directory.drill_record import INTERRUPTED
from harness.runners.plan import Plan

MESSAGE = "the drill was ended before all runs of this row had"


def ended_part(planned: DrillPlan, bundle: Bundle) -> DrillPlan:
    """The plan's cases and controls of which every run ended, whatever it ended with; the other cases as not run."""
    ended = {run.id for run in runs_of(planned) if has_ended(bundle.root / layout.EVIDENCE / run.id)}
    controls = [unit for unit in planned.controls.units if ended.issuperset(unit.runs)]
    judged = {(unit.contract, unit.claim, unit.workload) for unit in controls}
    cases = [
        case
        for case in planned.cases
        if (case.unit.contract, case.unit.claim, case.unit.workload) in judged and rests_on(case, planned) <= ended
    ]
    left = [case for case in planned.cases if case not in cases]
    not_run = [NotRun(case.unit.contract, case.unit.claim, case.fault, INTERRUPTED, MESSAGE) for case in left]
    read = {run for case in cases for run in case.unit.runs}
    return replace(
        planned,
        controls=Plan(controls, [run for run in planned.controls.runs if run.id in ended]),
        cases=cases,
        faulted={name: faulted for name, faulted in planned.faulted.items() if name in read},
        not_run=[*planned.not_run, *not_run],
    )


def rests_on(case: Case, planned: DrillPlan) -> set[str]:
    """The runs whose evidence the case is judged from."""
    faulted = [planned.faulted[run] for run in case.unit.runs]
    own = {item.executed.id for item in faulted if item.executed is not None}
    return own | {item.donor for item in faulted if item.donor is not None}

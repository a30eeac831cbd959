"""What an interrupted drill can still say: the cases whose runs had all ended; the others are counted as not run."""

from __future__ import annotations

import shutil
from dataclasses import replace

from harness.drill.execution import runs_of
from harness.drill.plan import Case, DrillPlan, NotRun
from harness.evidence import layout
from harness.evidence.read_run import has_ended, host_of
from harness.run_directory.bundle import Bundle, Header
from harness.runners.plan import Plan

REASON = "interrupted"
MESSAGE = "the drill was ended before all runs of this row had"


def ended_part(planned: DrillPlan, bundle: Bundle) -> DrillPlan:
    """The plan's cases and controls of which every run ended, whatever it ended with; the other cases as not run."""
    ended = {run.id for run in runs_of(planned) if has_ended(bundle.root / layout.EVIDENCE / run.id)}
    controls = [unit for unit in planned.controls.units if ended.issuperset(unit.runs)]
    judged = {(unit.contract, unit.claim, unit.workload) for unit in controls}
    cases = [
        case
        for case in planned.cases
        if (case.unit.contract, case.unit.claim, case.unit.workload) in judged and _executed(case, planned) <= ended
    ]
    left = [case for case in planned.cases if case not in cases]
    not_run = [NotRun(case.unit.contract, case.unit.claim, case.fault, REASON, MESSAGE) for case in left]
    read = {run for case in cases for run in case.unit.runs}
    return replace(
        planned,
        controls=Plan(controls, [run for run in planned.controls.runs if run.id in ended]),
        cases=cases,
        faulted={name: faulted for name, faulted in planned.faulted.items() if name in read},
        not_run=[*planned.not_run, *not_run],
    )


def narrowed_to(part: DrillPlan, header: Header) -> Header:
    """The header of a drill of which this part is left."""
    read = {run for unit in part.controls.units for run in unit.runs}
    read |= part.faulted.keys() | {item.donor for item in part.faulted.values() if item.donor is not None}
    return header.model_copy(
        update={
            "units": part.controls.units,
            "runs": {name: probe for name, probe in header.runs.items() if name in read},
        }
    )


def remove_unread(bundle: Bundle, header: Header) -> None:
    """Take away the evidence that no row and no control reads: of a run that was cut off, or whose row was."""
    evidence = bundle.root / layout.EVIDENCE
    hosts = {host.name for name in header.runs if (host := host_of(evidence / name)) is not None}
    for directory in evidence.iterdir():
        if directory.name not in header.runs and directory.name not in hosts:
            shutil.rmtree(directory)


def _executed(case: Case, planned: DrillPlan) -> set[str]:
    """The runs whose evidence the case is judged from."""
    faulted = [planned.faulted[run] for run in case.unit.runs]
    own = {item.executed.id for item in faulted if item.executed is not None}
    return own | {item.donor for item in faulted if item.donor is not None}

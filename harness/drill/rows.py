"""Make controls and rows of a drill's record from the evidence on disk alone, for the drill and its recheck."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.contract.schema import Contract
from harness.drill.evidence_faults import evidence_faults
from harness.drill.expectations import is_killed, seen_figures, upstream_alone_passes
from harness.drill.merge import merged
from harness.drill.plan import Case, DrillPlan
from harness.evidence import layout
from harness.evidence.files import Damaged, read_model
from harness.evidence.plan_records import Run
from harness.evidence.run_evidence import RunEvidence
from harness.judging.registry import judge_unit
from harness.judging.verdict import Status, Verdict
from harness.run_directory.bundle import Bundle
from harness.run_directory.drill_record import Control, NotDrilled, Row, Source, Triple


def controls_of(verdicts: Sequence[Verdict]) -> list[Control]:
    """Return the verdicts of the units without a fault, as the record holds them."""
    return [
        Control(
            contract=verdict.contract,
            claim=verdict.claim,
            workload=verdict.workload,
            status=verdict.status.value,
            reason=verdict.reason,
            message=verdict.message,
        )
        for verdict in verdicts
    ]


def row_of(case: Case, contracts: Sequence[Contract], sources: Mapping[str, Source], bundle: Bundle) -> Row:
    """Return what the judges say of a case. Its contract is among `contracts`, its runs are among `sources`."""
    unit, expected = case.unit, case.expected
    contract = next(contract for contract in contracts if contract.id == unit.contract)
    claim = next(claim for claim in contract.claims if claim.id == unit.claim)
    evidence = [evidence_of(name, sources[name], bundle, case.fault) for name in unit.runs]
    verdict = judge_unit(contract, claim, unit.workload, evidence, unit.obstacle, bundle.header.environment.gpu)
    figures = seen_figures(verdict, expected.figures)
    return Row(
        contract=unit.contract,
        claim=unit.claim,
        workload=unit.workload,
        fault=case.fault,
        expected=Triple(status=expected.status, reason=expected.reason, figures=dict(expected.figures)),
        seen=Triple(status=verdict.status.value, reason=verdict.reason, figures=figures),
        killed=is_killed(expected, verdict),
        upstream_alone_passes=upstream_alone_passes(claim, verdict),
        message=verdict.message,
        runs=unit.runs,
    )


def decidable(rows: Sequence[Row], controls: Sequence[Control]) -> tuple[list[Row], list[NotDrilled]]:
    """Split off the rows of claims that cannot be decided here, neither with the fault nor without it.

    Only a run may show what a system lacks. If a claim is decided without the fault, and the fault makes it
    undecidable, its row stays: nothing found the fault.
    """
    undecided = {(one.contract, one.claim, one.workload) for one in controls if one.status == Status.NOT_RUN}
    open_rows = [
        row
        for row in rows
        if row.seen.status == Status.NOT_RUN and (row.contract, row.claim, row.workload) in undecided
    ]
    left = [
        NotDrilled(contract=row.contract, claim=row.claim, fault=row.fault, reason=row.seen.reason, message=row.message)
        for row in open_rows
    ]
    return [row for row in rows if row not in open_rows], left


def sources_of(planned: DrillPlan) -> dict[str, Source]:
    """Return where the evidence of each faulted run comes from, by the run's name."""
    return {
        name: Source(
            probe=faulted.planned.probe,
            executed_arms=list(faulted.executed.arms) if faulted.executed is not None else [],
            faulted_arms=faulted.planned.fault_arms,
            donor=faulted.donor,
        )
        for name, faulted in planned.faulted.items()
    }


def evidence_of(name: str, source: Source, bundle: Bundle, fault: str) -> RunEvidence:
    """Return the evidence of a faulted run: joined with its control's arms, or with a fault of the evidence planted."""
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

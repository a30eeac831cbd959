"""Judge the directory of a drill again: every control (unit without a fault) and every row (planted fault).

The directory's record provides only two facts: which runs a row reads, and which arms were executed. Verdicts come from
the evidence, contracts from the copies in the directory, and expected verdicts from the faults as they are declared
now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from harness.contract.schema import AnyClaim, Contract
from harness.drill.faults import (
    evidence_faults,
    expectation_for,
    is_killed,
    offered_by,
    seen_figures,
    upstream_alone_passes,
)
from harness.drill.plan import Case, DrillPlan, merged
from harness.errors import SystemResolutionError
from harness.evidence import layout
from harness.evidence.descriptions import Expectation, SystemDescription
from harness.evidence.files import Damaged, read_model
from harness.evidence.plan_records import Run, Unit
from harness.evidence.run_evidence import RunEvidence
from harness.judging.registry import judge_unit
from harness.judging.verdict import Status, Verdict
from harness.numbers import counted, dump_json
from harness.run_directory.bundle import Bundle
from harness.run_directory.verdict_file import FILE, Control, DrillRecord, NotDrilled, Row, Source, Triple, read_record


def controls_of(verdicts: Sequence[Verdict]) -> list[Control]:
    """Return the verdicts of units without a fault, in the form in which the drill's record contains them."""
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
    """Judge a planted fault and return its row in the drill's record. contracts: the contracts of the drill. sources:
    the result of `sources_of`."""
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
    """Return the rows (planted faults) that count, and the other rows in the form of faults that were not run.

    A row does not count if its claim is NOT_RUN both with and without the fault. Planned runs can end so, because some
    obstacles are found only during the run. A row whose claim is decided without the fault but not with it counts,
    because no judge detected the fault.
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
    """Return, for the id of each run with a fault, the runs from which its evidence comes."""
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
    """Return the evidence of a run with a fault, joined from the runs that `source` names.

    If arms were executed with the fault, the evidence of the other arms comes from the run without a fault. For an
    evidence fault, the result is the evidence of the run without a fault, with the fault planted in it.
    """
    planted = evidence_faults().get(fault)
    if planted is not None and planted.change is not None and source.donor is not None:
        return planted.change(bundle.evidence(source.donor))
    if planted is None and not source.executed_arms and source.donor is not None:
        # the fault was planted in another run of the unit, so this run is equal to the run without a fault
        return bundle.evidence(source.donor)
    seen = bundle.evidence(name)
    if not source.executed_arms or source.donor is None:
        return seen  # the run was planned but never executed, so it has no evidence
    try:
        executed = read_model(bundle.root / layout.EVIDENCE / name / layout.RUN, Run)
    except Damaged:
        return seen  # judges treat damaged evidence as if the worker had died
    return merged(executed, seen, bundle.evidence(source.donor))


Describe = Callable[[str], SystemDescription]


@dataclass(frozen=True)
class RowAgain:
    """A row (planted fault) that was judged again. difference: a text with the facts that differ from the recorded row,
    or None.

    not_judged: the reason why the row was not judged again, or only in part. A row without evidence stays as recorded.
    """

    row: Row
    difference: str | None = None
    not_judged: str | None = None

    @property
    def name(self) -> str:
        return f"{self.row.claim} on {self.row.workload}: {self.row.fault}"


@dataclass(frozen=True)
class Recheck:
    """A drill that was judged again. record: the drill's record with the new controls and rows. of_the_whole: problems
    that do not belong to a single row."""

    record: DrillRecord
    of_the_whole: list[str]
    rows: list[RowAgain]

    @property
    def differences(self) -> list[str]:
        """Return one line for each difference from the record."""
        rows = [f"{row.name}: {row.difference}" for row in self.rows if row.difference]
        return [f"{FILE}: {line}" for line in [*self.of_the_whole, *rows]]

    @property
    def not_judged(self) -> list[str]:
        """Return one line for each reason for which rows of the drill could not be judged again: the first such row,
        the number of others, and the reason."""
        by_reason: dict[str, list[str]] = {}
        for row in self.rows:
            if row.not_judged:
                by_reason.setdefault(row.not_judged, []).append(row.name)
        return [
            f"{name}{' and ' + counted(len(others), 'other row') if others else ''}: not judged again: {reason}"
            for reason, (name, *others) in by_reason.items()
        ]

    def count_line(self) -> str:
        """Return the counts as one line, such as `65 rows: 64 same · 0 differ · 1 not judged again`."""
        differ, not_judged = (
            sum(row.difference is not None for row in self.rows),
            sum(bool(row.not_judged) for row in self.rows),
        )
        same = len(self.rows) - differ - not_judged
        return f"{counted(len(self.rows), 'row')}: {same} same · {differ} differ · {not_judged} not judged again"


def recheck(bundle: Bundle, contracts: Sequence[Contract], verdicts: Sequence[Verdict], describe: Describe) -> Recheck:
    """Judge the drill again and compare the result with the record in `drill.json`. verdicts: the verdicts of the units
    without a fault. Raises EvidenceError if there is no readable record."""
    record = read_record(bundle.place.derived / FILE, shown=bundle.path / FILE)
    controls = controls_of(verdicts)
    same = [_facts(each) for each in record.controls] == [_facts(each) for each in controls]
    of_the_whole = [] if same else ["controls (units without a fault) have other verdicts now than in the record"]
    if record.contracts != bundle.header.digests.contracts:
        of_the_whole.append("the record names other contracts than `run.json` does")
    of_the_whole += [
        *_miscounted_rows(record, bundle, contracts),
        *_planted_not_run(record, bundle),
        *_unread_runs(record, bundle),
    ]
    rows = [_again(row, record, bundle, contracts, describe) for row in record.rows]
    today = record.model_copy(update={"controls": controls, "rows": [item.row for item in rows]})
    return Recheck(today, of_the_whole, rows)


def _miscounted_rows(record: DrillRecord, bundle: Bundle, contracts: Sequence[Contract]) -> list[str]:
    """Return a line for each drilled fault that the record does not list exactly once, as a row or as not run. A fault
    may have been left out because no judge detected it."""
    listed = [(row.contract, row.claim, row.fault) for row in record.rows]
    listed += [(item.contract, item.claim, item.fault) for item in record.not_run]
    drilled, narrowed = {fault for _, _, fault in listed}, bundle.header.narrowed.claims
    demanded = [
        (contract.id, claim.id, fault)
        for contract in contracts
        for claim in contract.claims
        for fault in claim.falsified_by
        if fault in drilled and (not narrowed or claim.id in narrowed)
    ]
    return [
        f"{claim}: {fault}: the record has {counted(number, 'row')}, but the contract requires one"
        for contract, claim, fault in demanded
        if (number := listed.count((contract, claim, fault))) != 1
    ]


def _planted_not_run(record: DrillRecord, bundle: Bundle) -> list[str]:
    """Return a line for each fault that is recorded as not run although a run with it was planned. Such a fault may
    have survived.

    The id of a run with a fault consists of contract, workload and fault. If the claim was decided on this workload
    without the fault, the fault must have a row.
    """
    decided = {(one.contract, one.claim, one.workload) for one in record.controls if one.status != Status.NOT_RUN}
    found = []
    for item in record.not_run:
        for run in bundle.header.runs:
            contract, workload, *rest = run.split("+")
            if item.fault in rest and item.contract == contract and (contract, item.claim, workload) in decided:
                found.append(
                    f"{item.claim}: {item.fault}: run {run} was planned, but the record lists the fault as not run"
                )
                break
    return [] if record.interrupted else found


def _unread_runs(record: DrillRecord, bundle: Bundle) -> list[str]:
    if record.interrupted:  # when a drill is interrupted, its record lacks rows whose runs were planned
        return []
    read = {run for unit in bundle.header.units for run in unit.runs} | {run for row in record.rows for run in row.runs}
    # A claim that is NOT_RUN without a fault has no row (see `decidable`), although its runs with faults were planned.
    undecided = {(one.contract, one.claim) for one in record.controls if one.status == Status.NOT_RUN}
    left = {item.fault for item in record.not_run if (item.contract, item.claim) in undecided}
    read |= {run for run in bundle.header.runs if left & set(run.split("+"))}
    return [f"run {run} was planned, but no row reads its evidence" for run in bundle.header.runs if run not in read]


def _again(
    row: Row, record: DrillRecord, bundle: Bundle, contracts: Sequence[Contract], describe: Describe
) -> RowAgain:
    contract = next((contract for contract in contracts if contract.id == row.contract), None)
    claim = next((claim for claim in contract.claims if claim.id == row.claim), None) if contract else None
    if contract is None or claim is None or row.fault not in claim.falsified_by or row.workload not in claim.judged_on:
        return RowAgain(row, difference="the directory's contracts require no such row")
    if not row.runs:
        return RowAgain(row, not_judged="the record does not state which runs the row reads")
    unknown = [run for run in row.runs if run not in record.sources or run not in bundle.header.runs]
    if unknown:
        return RowAgain(row, difference=f"run {unknown[0]} was not planned")
    needed = [needed for run in row.runs for needed in _evidence_needed(run, record)]
    lost = [run for run in needed if not (bundle.root / layout.EVIDENCE / run).is_dir()]
    if any(_was_recorded(run, bundle) for run in lost):
        return RowAgain(row, difference=f"the evidence of {', '.join(lost)} is missing")
    if lost:
        return RowAgain(row, not_judged=f"run {lost[0]} left no evidence in this directory")
    expected, undeclared = _expectation(row, contract, claim, describe)
    unit = Unit(contract=row.contract, claim=row.claim, workload=row.workload, runs=row.runs)
    today = row_of(Case(unit, row.fault, expected), contracts, record.sources, bundle)
    difference = _difference(row, today)
    return RowAgain(today, difference, undeclared if difference is None else None)


def _evidence_needed(run: str, record: DrillRecord) -> list[str]:
    """Return the ids of the runs that contain the evidence of `run`, a run with a fault: `run` itself if arms were
    executed with the fault, and the run without a fault that has the evidence of other arms."""
    source = record.sources[run]
    return [*([run] if source.executed_arms else []), *([source.donor] if source.donor is not None else [])]


def _was_recorded(run: str, bundle: Bundle) -> bool:
    return any(name.startswith(f"{layout.EVIDENCE}/{run}/") for name in bundle.recorded())


def _expectation(row: Row, contract: Contract, claim: AnyClaim, describe: Describe) -> tuple[Expectation, str | None]:
    """Return the verdict that the fault declares now, and None. If this verdict cannot be found, return the recorded
    expected verdict and the reason."""
    status = cast('Literal["FAIL", "INCONCLUSIVE", "ERROR"]', row.expected.status)
    figures = {name: value for name, value in row.expected.figures.items() if value is not None}
    recorded = Expectation(status, row.expected.reason, figures)
    try:
        offered = offered_by(contract, describe)
    except SystemResolutionError as error:
        return recorded, f"the declaration of the fault cannot be read here: {error}"
    declared = expectation_for(claim, offered[row.fault]) if row.fault in offered else None
    return (recorded, "the fault is no longer declared") if declared is None else (declared, None)


def _difference(recorded: Row, today: Row) -> str | None:
    """Return a text with both values of every fact that differs, or None if no fact differs."""
    before, now = _facts(recorded), _facts(today)
    changed = [f"{key} is recorded as {before[key]}, but is now {now[key]}" for key in now if before[key] != now[key]]
    return "; ".join(changed) or None


def _facts(of: Row | Control) -> dict[str, str]:
    """Return all fields except the message, each as text. In text, True differs from 1, and NaN is equal to NaN."""
    return {key: dump_json(value) for key, value in of.model_dump(mode="json", exclude={"message"}).items()}

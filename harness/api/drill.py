"""Plant every fault that the claims name. Check that each fault causes the verdict that it declares for the claim
(`harness drill`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from harness.api import session
from harness.api.execute import work_of
from harness.api.judged import AsTheyEnd
from harness.contract.load import LoadedContract, load_contracts, selected
from harness.contract.waivers import RESUME, FilesRead
from harness.devices import environment
from harness.devices.environment import Machine
from harness.drill.plan import Case, DrillPlan, plan_drill, runs_of
from harness.drill.recheck import controls_of, decidable, row_of, sources_of
from harness.errors import ExitCode
from harness.evidence import layout
from harness.evidence.files import write_text
from harness.evidence.read_run import has_ended
from harness.judging.verdict import Status
from harness.numbers import counted, dump_json
from harness.planning.plan import Plan
from harness.report.headline import Headline, of_drill
from harness.run_directory.bundle import Bundle, Header
from harness.run_directory.interrupted_run import Described, changed_since, made_directory
from harness.run_directory.verdict_file import (
    FILE,
    INTERRUPTED,
    Control,
    DrillMachine,
    DrillRecord,
    NotDrilled,
    Row,
    Triple,
    record_text,
)
from harness.run_directory.writer import BundleWriter, require_place
from harness.system.described import describe, describe_all


def count_line(record: DrillRecord) -> str:
    """Return the counts of a drill as a line, such as `28 faults planted · 28 killed · 0 survived · 4 of 4 controls
    held · 71 not run`."""
    survived, failed = len(record.survivors), len(record.failed_controls)
    held = f"{len(record.controls) - failed} of {counted(len(record.controls), 'control')} held"
    return (
        f"{counted(len(record.rows), 'fault')} planted · {len(record.rows) - survived} killed · {survived} survived · "
        f"{held} · {len(record.not_run)} not run"
    )


def headline_of(record: DrillRecord) -> Headline:
    """Return the headline that the drill's page shows: a word such as HELD, a sentence, and the exit code."""
    return of_drill(record, record.controls)


def shown(record: DrillRecord, directory: Path | None) -> list[str]:
    """Return the lines for the terminal: the counts, the results, the headline, and the path of the report."""
    page = [f"report: {directory / 'report.html'}"] if directory is not None else []
    return [*lines(record), str(headline_of(record)), *page]


def as_json(record: DrillRecord, directory: Path | None) -> str:
    """Return the output of `--json`: the content of `drill.json` and the directory of the drill."""
    return dump_json(
        {**record.model_dump(mode="json"), "run_directory": str(directory) if directory else None}, indent=2
    )


def lines(record: DrillRecord) -> list[str]:
    """Return the results of a drill as lines of text, without headline and path."""
    shown = [count_line(record)]
    for control in record.failed_controls:
        unit = f"{control.claim} on {control.workload}"
        shown.append(f"  CONTROL  {unit}: {control.status} {control.reason}: {control.message}")
    for row in sorted(record.rows, key=lambda row: row.killed):
        shown += _row(row)
    for (reason, message), number in Counter((item.reason, item.message) for item in record.not_run).items():
        shown.append(f"  not run  {counted(number, 'fault')}: {reason}: {message}")
    shown += _upstream(record)
    return shown


def _row(row: Row) -> list[str]:
    word = "killed  " if row.killed else "SURVIVED"
    shown = [f"  {word} {row.claim} on {row.workload}: {row.fault}: {triple(row.seen)}"]
    if not row.killed:
        shown += [f"             expected: {triple(row.expected)}", f"             seen: {row.message}"]
    return shown


def _upstream(record: DrillRecord) -> list[str]:
    """Return a line for each claim whose tolerance alone would not detect some planted faults. The line names these
    faults."""
    passed: dict[str, list[str]] = {}
    for row in record.rows:
        if row.upstream_alone_passes:
            passed.setdefault(row.claim, []).append(row.fault)
    return [f"  the tolerance of {claim} alone would not detect: {', '.join(names)}" for claim, names in passed.items()]


def triple(value: Triple) -> str:
    """Return status, reason code and figures of a verdict as a line, such as `FAIL differs first_differing_step=1`."""
    figures = [f"{name}={figure}" for name, figure in value.figures.items()]
    return " ".join([value.status, value.reason, *figures])


MESSAGE = "the drill ended before all runs of this fault had ended"


@dataclass(frozen=True)
class DrillOptions:
    """Options of a drill. An empty `claims`, `tags` or `faults` selects everything."""

    claims: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    reports: Path = Path("harness-reports")
    name: str | None = None
    resume: Path | None = None  # directory of an interrupted drill that is resumed
    redact: bool | None = None  # True: leave out names of host, user and folders; None: only in CI
    command: tuple[str, ...] = ("harness", "drill")


@dataclass(frozen=True)
class DrillResult:
    """The record of a drill, and the drill's run directory. The directory is None if no fault could be planted."""

    record: DrillRecord
    run_directory: Path | None = None

    @property
    def exit_code(self) -> ExitCode:
        """Return the exit code that belongs to the headline of the drill."""
        return headline_of(self.record).code


def drill(
    paths: Sequence[Path],
    options: DrillOptions,
    watch: session.Watch | None = None,
    refuse: session.Refuse | None = None,
) -> DrillResult:
    """Plan, execute and judge a drill, and write its run directory. Raises ContractError or UsageError.

    refuse: a function that raises ContractError for contracts that must not be run.
    If KeyboardInterrupt, or SystemExit because of SIGTERM, ends the drill, its directory gets the mark INCOMPLETE. The
    results of those faults whose runs have all ended are kept, and the other faults count as not run. A note that is
    added to the exception names the directory.
    """
    contracts, machine, planned, read = plan_drill_here(paths, options, refuse)
    options = replace(options, claims=selected(contracts, options.tags, options.claims))
    started = datetime.now(tz=UTC)
    if not planned.cases:
        return DrillResult(_record(contracts, planned, [], [], machine, started))
    directory = session.directory_name(started, session.VerifyOptions())
    final, named = options.reports / (options.name or f"{directory}-drill"), options.name is not None
    if options.resume is None:
        require_place(final)
    header = _header(contracts, planned, options, started)
    described = Described(header, contracts, work_of(runs_of(planned)), {"--fault": list(options.faults)})
    with made_directory(described, final, named=named, resume=options.resume) as (writer, journal):
        try:
            redacted = session.redaction_of(contracts, options.redact)
            early = None
            if watch is not None:
                early = _rows_as_they_end(planned, contracts, writer.bundle(), watch.drilled)
            session.execute(runs_of(planned), writer, watch, redacted=redacted, journal=journal, early=early)
            read.require_unchanged(RESUME)
            writer.settle(changed_since(writer.path, journal.content))
            record = _judge(contracts, planned, writer.bundle(), machine, started)
            _write(writer, contracts, record)
            return DrillResult(record, writer.finish())
        except BaseException as error:
            ended = isinstance(error, KeyboardInterrupt | SystemExit) and ended_part(planned, writer.bundle())
            if ended and ended.cases:
                error.add_note(_keep_rows(ended, contracts, writer, machine, started))
            else:
                error.add_note(session.abandoned(writer, header, contracts, gate=False))
            raise


def plan_drill_here(
    paths: Sequence[Path], options: DrillOptions, refuse: session.Refuse | None = None
) -> tuple[list[LoadedContract], Machine, DrillPlan, FilesRead]:
    """Return the contracts, the facts about this machine, the plan of the drill, and the files that determine the
    judgement. Raises ContractError or UsageError."""
    contracts = load_contracts(paths)
    read = FilesRead.of(paths, None, contracts)
    machine = environment.machine()
    if refuse is not None:
        refuse(contracts, ())
    # one call, so that one process describes all systems
    describe_all(system for loaded in contracts for system in loaded.contract.systems())
    claims = selected(contracts, options.tags, options.claims)
    planned = plan_drill(contracts, claims=claims, faults=options.faults, machine=machine, describe=describe)
    read.require_unchanged()
    return contracts, machine, planned, read


def _keep_rows(
    ended: DrillPlan, contracts: Sequence[LoadedContract], writer: BundleWriter, machine: Machine, started: datetime
) -> str:
    """Write the results of the faults whose runs have all ended, and a page that counts the other faults as not run.
    The directory keeps the mark INCOMPLETE. Return a line with the name of the directory."""
    writer.abandon()
    writer.settle()
    record = _judge(contracts, ended, writer.bundle(), machine, started)
    _write(writer, contracts, record, incomplete=(writer.path.name,))
    kept = counted(len(record.rows), "fault")
    return f"kept the results of {kept} whose runs had ended, marked {layout.INCOMPLETE}: {writer.path}"


def _header(
    contracts: Sequence[LoadedContract], planned: DrillPlan, options: DrillOptions, started: datetime
) -> Header:
    narrowed = session.VerifyOptions(
        claims=options.claims, tags=options.tags, command=options.command, redact=options.redact
    )
    controls = Plan(planned.controls.units, runs_of(planned))
    header = session.header_of(contracts, controls, narrowed, started)
    probes = {name: faulted.planned.probe for name, faulted in planned.faulted.items()}
    return header.model_copy(update={"purpose": "drill", "runs": {**header.runs, **probes}})


def _judge(
    contracts: Sequence[LoadedContract], planned: DrillPlan, bundle: Bundle, machine: Machine, started: datetime
) -> DrillRecord:
    """Judge the controls and the planted faults from the evidence in the run directory. Return the record of the
    drill."""
    models, sources = [loaded.contract for loaded in contracts], sources_of(planned)
    controls = controls_of(session.judge_bundles([bundle], contracts).verdicts)
    rows, left = decidable([row_of(case, models, sources, bundle) for case in planned.cases], controls)
    return _record(contracts, planned, controls, rows, machine, started, left)


def _rows_as_they_end(
    planned: DrillPlan, contracts: Sequence[LoadedContract], bundle: Bundle, tell: Callable[[Row], None]
) -> AsTheyEnd:
    models, sources = [loaded.contract for loaded in contracts], sources_of(planned)

    def drilled(case: Case) -> None:
        row = row_of(case, models, sources, bundle)
        # Do not show a NOT_RUN row (result of a planted fault) now. If its control (the claim without the fault) is
        # NOT_RUN, too, the drill's record gets no such row. The control may not have ended yet.
        if row.seen.status != Status.NOT_RUN:
            tell(row)

    waiting = [(rests_on(case, planned), partial(drilled, case)) for case in planned.cases]
    return AsTheyEnd(waiting, runs_of(planned))


def _record(
    contracts: Sequence[LoadedContract],
    planned: DrillPlan,
    controls: list[Control],
    rows: list[Row],
    machine: Machine,
    started: datetime,
    left: Sequence[NotDrilled] = (),
) -> DrillRecord:
    not_run = [*planned.not_run, *left]
    gpus = [gpu.name for gpu in machine.gpus]
    return DrillRecord(
        planned=len(rows) + len(not_run),
        recorded_at=started.isoformat(timespec="seconds"),
        machine=DrillMachine(cuda=machine.cuda, gpus=gpus, host_memory_gib=round(machine.host_memory_gib, 1)),
        contracts={loaded.contract.id: loaded.digest for loaded in contracts},
        controls=controls,
        rows=rows,
        not_run=not_run,
        sources=sources_of(planned),
    )


def _write(
    writer: BundleWriter, contracts: Sequence[LoadedContract], record: DrillRecord, incomplete: tuple[str, ...] = ()
) -> None:
    """Write the record of the drill, the verdicts of the controls, and a report with one row for each fault."""
    write_text(writer.path / FILE, record_text(record))
    view = session.judge_bundles([writer.bundle()], contracts).view
    session.write_judgement(writer.path, session.Judgement(replace(view, drill=record, incomplete=incomplete)))


def ended_part(planned: DrillPlan, bundle: Bundle) -> DrillPlan:
    """Return the plan with only those faults and controls whose runs have all ended. The plan lists the other faults as
    not run."""
    ended = {run.id for run in runs_of(planned) if has_ended(bundle.root / layout.EVIDENCE / run.id)}
    controls = [unit for unit in planned.controls.units if ended.issuperset(unit.runs)]
    judged = {(unit.contract, unit.claim, unit.workload) for unit in controls}
    cases = [
        case
        for case in planned.cases
        if (case.unit.contract, case.unit.claim, case.unit.workload) in judged and rests_on(case, planned) <= ended
    ]
    left = [case for case in planned.cases if case not in cases]
    not_run = [
        NotDrilled(
            contract=case.unit.contract, claim=case.unit.claim, fault=case.fault, reason=INTERRUPTED, message=MESSAGE
        )
        for case in left
    ]
    read = {run for case in cases for run in case.unit.runs}
    return replace(
        planned,
        controls=Plan(controls, [run for run in planned.controls.runs if run.id in ended]),
        cases=cases,
        faulted={name: faulted for name, faulted in planned.faulted.items() if name in read},
        not_run=[*planned.not_run, *not_run],
    )


def rests_on(case: Case, planned: DrillPlan) -> set[str]:
    """Return the ids of the runs whose evidence is read to judge the planted fault `case`."""
    faulted = [planned.faulted[run] for run in case.unit.runs]
    own = {item.executed.id for item in faulted if item.executed is not None}
    return own | {item.donor for item in faulted if item.donor is not None}

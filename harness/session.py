"""The Python API that joins plan, runs, judges and report. The command line and the pytest plugin translate to it."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from harness.caches import moved_caches
from harness.commits.checkout import Checkout
from harness.contract.claims import AnyClaim
from harness.contract.load import LoadedContract, load_contracts
from harness.contract.schema import Contract
from harness.contract.waivers import Waiver, find_waivers
from harness.costs.of_directories import costs_of
from harness.errors import ExitCode, UsageError
from harness.evidence import environment, layout, redaction
from harness.evidence.commit_records import TwoCommits
from harness.evidence.files import write_text
from harness.evidence.plan_records import Run, Unit
from harness.evidence.redaction import Redaction
from harness.evidence.run_evidence import RunEvidence
from harness.judge.verdict import Counts, Verdict, count
from harness.numbers import dump_json
from harness.report.view import ReportView
from harness.run_directory.attempts import attempts_before, joined_attempts
from harness.run_directory.bundle import (
    Bundle,
    Digests,
    Header,
    Narrowed,
    WaiverRecord,
    altered,
    contract_digests,
)
from harness.run_directory.seal import UNFINISHED, UNSEALED
from harness.run_directory.shards import Attempt
from harness.run_directory.verdict_file import verdict_file, write_verdicts
from harness.run_directory.writer import BundleWriter
from harness.runners.baseline import baseline_checkout, described_baseline
from harness.runners.demanded import first_difference
from harness.runners.plan import Plan, plan
from harness.system.described import LIMIT_S, describe_all
from harness.system.described import describe as describe  # noqa: PLC0414 - part of this API

if TYPE_CHECKING:
    from harness.report.headline import Headline
    from harness.runners.interpreters import Interpreters
    from harness.runners.watched_worker import Progress

Watch = Callable[[Run, str, float], None]  # a run, its phase ("" when it ended), seconds so far


@dataclass(frozen=True)
class VerifyOptions:
    """What to verify, and how. Empty `claims` and `workloads` mean all."""

    claims: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    fault: str | None = None
    gate: bool = False
    reports: Path = Path("harness-reports")
    name: str | None = None  # of the run directory; by default the date and the machine
    data: Path | None = None
    model_directory: Path | None = None
    waivers: Path | None = None  # by default `waivers.yaml` beside the contracts
    wall_limit_s: float | None = None  # of each run; None: as planned
    redact: bool | None = None  # leave out names of host, user and folders; None: in CI
    command: tuple[str, ...] = ("harness", "verify")
    baseline: str | None = None  # a branch, tag or commit: arms that claims name as `baseline` are of it


@dataclass(frozen=True)
class Judgement:
    """A run directory, or the shards of a gate, judged: verdicts in the plan's order, their count, the exit code.

    `manifest`: the digest of the directory's; None of shards, and where there is none.
    """

    view: ReportView
    run_directory: Path | None = None
    manifest: str | None = None

    @property
    def verdicts(self) -> Sequence[Verdict]:
        return self.view.verdicts

    @property
    def counts(self) -> Counts:
        return count(self.view.verdicts)

    @property
    def headline(self) -> Headline:
        from harness.report.headline import headline

        return headline(self.view)

    @property
    def exit_code(self) -> ExitCode:
        return self.headline.code


def plan_contracts(
    contracts: Sequence[LoadedContract], options: VerifyOptions, checkout: Checkout | None = None
) -> Plan:
    """Which units there are and which runs decide them, on this machine. checkout: of the baselines' commit."""
    from harness.system.wrappers import HARNESS_FAULTS

    systems = [system for loaded in contracts for system in loaded.contract.systems()]
    describe_all(systems, options.wall_limit_s or LIMIT_S)  # all of them in one process
    planned = plan(
        contracts,
        claims=options.claims,
        workloads=options.workloads,
        fault=options.fault,
        machine=environment.machine(),
        describe=describe,
        harness_faults=HARNESS_FAULTS,
        data=_absolute(options.data),
        model_directory=_absolute(options.model_directory),
        baseline=described_baseline(contracts, checkout, options.wall_limit_s or LIMIT_S),
    )
    if options.wall_limit_s is None:
        return planned
    limited = [run.model_copy(update={"wall_limit_s": options.wall_limit_s}) for run in planned.runs]
    return Plan(planned.units, limited)


def _absolute(path: Path | None) -> str | None:
    if path is None:
        return None
    if not path.exists():
        raise UsageError("the path must exist", where=str(path), got="nothing there")
    return str(path.resolve())


def verify(
    paths: Sequence[Path],
    options: VerifyOptions,
    watch: Watch | None = None,
    interpreters: Interpreters | None = None,
) -> Judgement:
    """Execute every planned run, judge every unit, write the run directory. Raises ContractError, UsageError.

    interpreters: those that were started before, for the runs; they are ended with the last run.
    Whatever ends it early (also KeyboardInterrupt, and SystemExit on SIGTERM) leaves the evidence so far, marked
    INCOMPLETE, and carries a note that says where.
    """
    contracts = load_contracts(paths)
    waivers = find_waivers(paths, options.waivers)
    with baselines(contracts, options) as checkout:
        return _verified(contracts, waivers, options, checkout, watch, interpreters)


def baselines(contracts: Sequence[LoadedContract], options: VerifyOptions) -> AbstractContextManager[Checkout | None]:
    """The worktree of the commit that the baselines are of; none where the options name none. Raises UsageError."""
    if options.baseline is not None and options.fault is not None:
        raise UsageError("--baseline compares two commits as they are", got="--fault", remedy="leave out one of them")
    return baseline_checkout(contracts, options.baseline, options.reports)


def plan_something(
    contracts: Sequence[LoadedContract], options: VerifyOptions, checkout: Checkout | None = None
) -> Plan:
    """`plan_contracts`, with at least one unit. Raises UsageError where the options leave none."""
    planned = plan_contracts(contracts, options, checkout)
    if not planned.units:
        raise UsageError("nothing is planned", got="no unit matches", remedy="widen --claim and --workload")
    return planned


def _verified(
    contracts: Sequence[LoadedContract],
    waivers: Sequence[Waiver],
    options: VerifyOptions,
    checkout: Checkout | None,
    watch: Watch | None,
    interpreters: Interpreters | None,
) -> Judgement:
    planned = plan_something(contracts, options, checkout)
    started = datetime.now(tz=UTC)
    commits = None if checkout is None else checkout.commits
    header = with_attempts(header_of(contracts, planned, options, started, waivers, commits), options.reports)
    name = options.name or directory_name(started, options)
    given = waiver_texts(waivers)
    writer = BundleWriter(options.reports / name, header, contracts, given, named=options.name is not None)
    try:
        execute(planned.runs, writer, watch, interpreters, redaction_of(contracts, options.redact), checkout)
        writer.settle()
        judgement = judge_bundles([writer.bundle()], contracts, gate=options.gate)
        write_judgement(writer.path, judgement)
        directory = writer.finish()
    except BaseException as error:
        error.add_note(f"kept what there is, marked {layout.INCOMPLETE}: {writer.abandon()}")
        raise
    return Judgement(judgement.view, directory, writer.digest)


def waiver_texts(waivers: Sequence[Waiver]) -> list[str]:
    """The texts of the files that hold them, each once: copies of them lie in the run directory."""
    return list(dict.fromkeys(waiver.file_text for waiver in waivers))


def redaction_of(contracts: Sequence[LoadedContract], asked: bool | None) -> Redaction | None:
    """What is left out of evidence of these contracts, whose own words stay; None where nothing is."""
    if not redaction.wanted(asked):
        return None
    words = [redaction.texts_in(loaded.contract.model_dump(mode="json")) for loaded in contracts]
    return redaction.of_this_machine(set().union(*words))


def execute(
    runs: Sequence[Run],
    writer: BundleWriter,
    watch: Watch | None = None,
    interpreters: Interpreters | None = None,
    redacted: Redaction | None = None,
    checkout: Checkout | None = None,
) -> None:
    """Execute the runs, side by side where they can be; a worker that dies costs only the units that depend on it.

    What several of them demand alike is executed once.

    interpreters: those that wait already, which this ends. redacted: what is left out of the evidence, also of that of
    runs that are cut off. checkout: of the commit that baselines are of.
    """
    from harness.runners.interpreters import Interpreters
    from harness.runners.lanes import as_one, lane_directories
    from harness.runners.schedule import Schedule, Work, tasks_of
    from harness.runners.sharing import hosted, write_guests

    directories = {run.id: writer.evidence_directory(run.id) for run in runs}
    hosts = hosted(runs)
    ending_with = {host.run.id: [host.run, *(guest.run for guest in host.guests)] for host in hosts}

    def report_progress(progress: Progress) -> None:
        if watch is not None:
            host, *guests = ending_with[progress.run_id]
            for run in [host, *([] if progress.phase else guests)]:
                watch(run, progress.phase, progress.seconds)

    machine = environment.machine()
    threading.Thread(target=_import_for_pages).start()
    work: list[Work] = []
    for host in hosts:
        write_guests(host, directories)
        lanes = lane_directories(host.run, directories[host.run.id])
        tells = as_one(report_progress, len(lanes))
        work += [Work(lane, directory, tell) for (lane, directory), tell in zip(lanes, tells, strict=True)]
    try:
        with interpreters or Interpreters(len(work)) as waiting:
            Schedule(machine, waiting, checkout).execute(tasks_of(work, machine))
    finally:
        if redacted is not None:
            redacted.directory(writer.path / layout.EVIDENCE)


def _import_for_pages() -> None:
    """What the report is drawn with, while runs are under way: it took a second after them."""
    with suppress(Exception):  # the report meets the same failure, and tells of it
        os.environ.update(moved_caches())
        for module in ("harness.report.html", "matplotlib.figure", "matplotlib.backends.backend_svg"):
            importlib.import_module(module)


def header_of(
    contracts: Sequence[LoadedContract],
    planned: Plan,
    options: VerifyOptions,
    started: datetime,
    waivers: Sequence[Waiver] = (),
    commits: TwoCommits | None = None,
) -> Header:
    """`run.json`, but for the digests of evidence. Waivers are judged by the day on which the run starts."""
    systems = sorted({loaded.contract.system for loaded in contracts})
    collected = environment.collect(systems)
    header = Header(
        purpose="verify" if options.fault is None else "fault",
        started_at=started.isoformat(timespec="seconds"),
        command=[_text(word) for word in options.command],
        narrowed=Narrowed(claims=list(options.claims), workloads=list(options.workloads)),
        fault=options.fault,
        commits=commits,
        environment=collected,
        units=planned.units,
        runs={run.id: run.probe for run in planned.runs},
        digests=Digests(
            contracts=contract_digests(contracts),
            source=collected.source_digest,
            packages=environment.package_digests(systems),
        ),
        waivers=[WaiverRecord(**waiver.record(started.date())) for waiver in waivers],
    )
    left_out = redaction_of(contracts, options.redact)
    return header if left_out is None else redacted_header(header, left_out)


def redacted_header(header: Header, left_out: Redaction) -> Header:
    """The header without the names, which it says of itself."""
    noted = header.environment.model_copy(update={"redacted": redaction.NOTE})
    # a waiver's owner has signed it; names of units and runs are the contract's
    changes = {"environment": left_out.model(noted), "waivers": header.waivers}
    return left_out.model(header).model_copy(update=changes)


def _text(word: str) -> str:
    """A word of the command line, where bytes that were no text to Python's locale are one to JSON."""
    return word.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def with_attempts(header: Header, reports: Path) -> Header:
    """The header, with what was tried before it: the run's directory is not among `reports` yet."""
    return header.model_copy(update={"attempts": attempts_before(header, reports, os.environ)})


def directory_name(started: datetime, options: VerifyOptions) -> str:
    gpus = environment.machine().gpus
    device = gpus[0].name.removeprefix("NVIDIA ").lower().replace(" ", "-") if gpus else "cpu"
    drill = f"-drill-{options.fault}" if options.fault else ""
    return f"{started:%Y-%m-%d-%H%M%S}-{device}{drill}"


def judge_bundles(bundles: Sequence[Bundle], contracts: Sequence[LoadedContract], *, gate: bool = False) -> Judgement:
    """Judge one run directory, or the shards of one gate, under these contracts. Pure but for reading evidence."""
    from harness.run_directory.shards import attempts

    models = [loaded.contract for loaded in contracts]
    attempted = attempts(bundles, models)
    verdicts = [_judge(attempt, models) for attempt in attempted]
    evidence: dict[str, RunEvidence] = {}
    units = []
    for attempt in attempted:
        prefix = f"{attempt.bundle.path.name}/" if attempt.bundle is not None and len(bundles) > 1 else ""
        evidence |= {prefix + item.run_id: item for item in attempt.evidence}
        units.append(attempt.unit.model_copy(update={"runs": [prefix + name for name in attempt.unit.runs]}))
    view = ReportView(
        header=_joined_header(bundles, units),
        contracts=models,
        verdicts=verdicts,
        evidence=evidence,
        altered=tuple(f"{bundle.path.name}: {line}" for bundle in bundles for line in altered(bundle)),
        incomplete=tuple(bundle.path.name for bundle in bundles if bundle.seal.missing == UNFINISHED),
        unsealed=tuple(bundle.path.name for bundle in bundles if bundle.seal.missing == UNSEALED),
        gate=gate,
        costs=costs_of(bundles, models),
    )
    if len(bundles) > 1:
        return Judgement(view)
    return Judgement(view, bundles[0].path, bundles[0].seal.digest)


def _joined_header(bundles: Sequence[Bundle], units: Sequence[Unit]) -> Header:
    """The first header, with the units that were judged, and the waivers and attempts of all."""
    headers = [bundle.header for bundle in bundles]
    changes: dict[str, object] = {
        "units": list(units),
        "waivers": [waiver for header in headers for waiver in header.waivers],
    }
    if len(headers) > 1:  # shards together are the whole: what no shard planned has a verdict of its own
        changes["narrowed"] = Narrowed()
        changes["attempts"] = joined_attempts({bundle.path.name: bundle.header for bundle in bundles})
    return headers[0].model_copy(update=changes)


def _judge(attempt: Attempt, contracts: Sequence[Contract]) -> Verdict:
    from harness.judge.registry import not_in_contract

    unit = attempt.unit
    contract = next((contract for contract in contracts if contract.id == unit.contract), None)
    claim = next((claim for claim in contract.claims if claim.id == unit.claim), None) if contract else None
    if contract is None or claim is None or unit.workload not in claim.on:
        return not_in_contract(unit.contract, unit.claim, unit.workload)
    header = attempt.bundle.header if attempt.bundle is not None else None
    fault = header.fault if header is not None else None  # none in a drill's controls
    baseline = header.commits.baseline.commit if header is not None and header.commits is not None else None
    return judge_runs(contract, claim, unit, attempt.made(), attempt.evidence, fault=fault, baseline=baseline)


def judge_runs(
    contract: Contract,
    claim: AnyClaim,
    unit: Unit,
    made: Sequence[Run | None],
    evidence: Sequence[RunEvidence],
    *,
    fault: str | None = None,
    baseline: str | None = None,
) -> Verdict:
    """The verdict of a unit by the evidence of its runs, if those are the runs that the contract demands.

    `made`: what was executed, None where nothing says it; `fault`: the one that was planted on purpose; `baseline`: the
    commit of arms that claims name so.
    """
    from harness.judge.registry import judge_unit, of_another_contract

    known = [run for run in made if run is not None]
    if unit.obstacle is None:
        unread = len(made) - len(known)
        difference = first_difference(
            contract, claim, unit.workload, known, unread=unread, fault=fault, baseline=baseline
        )
        if difference is not None:
            return of_another_contract(contract, claim, unit.workload, str(difference))
    return judge_unit(contract, claim, unit.workload, evidence, unit.obstacle)


def judgement_json(judgement: Judgement) -> str:
    """What `--json` prints: the content of `verdicts.json`, with costs, run directory and the waivers that apply."""
    from harness.report.headline import HELD

    directory = str(judgement.run_directory) if judgement.run_directory else None
    published = verdict_file(judgement.verdicts).model_dump(mode="json")
    published["gate"]["open"] = judgement.headline.word == HELD  # altered or unfinished evidence opens nothing
    waivers = [waiver for verdict in judgement.verdicts if (waiver := judgement.view.waiver(verdict)) is not None]
    waived = [waiver.model_dump(mode="json") for waiver in waivers]
    costs = judgement.view.costs.model_dump(mode="json")
    attempts = judgement.view.header.attempts.model_dump(mode="json")
    beside = {"costs": costs, "run_directory": directory, "manifest": judgement.manifest, "waived": waived}
    beside["attempts"] = attempts
    commits = judgement.view.header.commits
    beside["commits"] = commits.model_dump(mode="json") if commits is not None else None
    return dump_json({**published, **beside}, indent=2)


def write_judgement(directory: Path, judgement: Judgement) -> None:
    """Write verdicts, then reports, into a run directory."""
    write_verdicts(directory, judgement.verdicts)
    write_reports(directory, judgement.view)


def write_reports(directory: Path, view: ReportView, *, junit: bool = True) -> None:
    """`report.html`, `summary.md` and, but in a published folder, `junit.xml`."""
    from harness.report.html import render
    from harness.report.junit import render_junit
    from harness.report.markdown import render_markdown

    drawn = {layout.SUMMARY: render_markdown, layout.JUNIT: render_junit, layout.PAGE: render}
    for name, draw in drawn.items():
        if junit or name != layout.JUNIT:
            write_text(directory / name, draw(view))

"""Verify contracts: plan runs, execute them, judge the evidence, write the report. The command line and the pytest
plugin call these functions.

The header of a run directory (`run.json`) is created from the options of the verification.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness.api.execute import Watch as Watch  # noqa: PLC0414 - what follows with `as` is part of this API, too
from harness.api.execute import execute as execute  # noqa: PLC0414
from harness.api.execute import work_of
from harness.api.first_difference import locate_all
from harness.api.judged import Judged, units_as_they_end
from harness.api.judged import Judgement as Judgement  # noqa: PLC0414
from harness.api.judged import judge_bundles as judge_bundles  # noqa: PLC0414
from harness.api.judged import judge_runs as judge_runs  # noqa: PLC0414
from harness.api.judged import judgement_json as judgement_json  # noqa: PLC0414
from harness.commits.checkout import Checkout
from harness.contract.accepted_baselines import AcceptedBaseline, find_signed
from harness.contract.load import LoadedContract, load_contracts, selected
from harness.contract.signed_entries import Signed, unmatched
from harness.contract.waivers import RESUME, FilesRead, Waiver
from harness.devices import environment
from harness.errors import ContractErrors, UsageError
from harness.evidence import layout, redaction, sources
from harness.evidence.environment_records import TwoCommits
from harness.evidence.files import remove, write_text
from harness.evidence.redaction import Redaction
from harness.evidence.sources import trainers
from harness.judging.verdict import Verdict
from harness.planning.obstacles import Baseline, baseline_checkout, baseline_systems
from harness.planning.plan import Plan, plan
from harness.platform.paths import require_existing
from harness.report.view import ReportView
from harness.run_directory.bundle import Digests, Header, Narrowed, WaiverRecord, contract_digests, shared_digests
from harness.run_directory.interrupted_run import Described, changed_since, made_directory
from harness.run_directory.shards import attempts_before
from harness.run_directory.verdict_file import drilled_claims, records_below, write_verdicts
from harness.run_directory.writer import KEPT, BundleWriter, require_place, write_problems
from harness.system.described import LIMIT_S, describe_all, known_name
from harness.system.described import describe as describe  # noqa: PLC0414

if TYPE_CHECKING:
    from harness.execution.supervisor import Interpreters


@dataclass(frozen=True)
class VerifyOptions:
    """Options of a verification. An empty `claims`, `workloads` or `tags` selects everything."""

    claims: tuple[str, ...] = ()
    workloads: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    fault: str | None = None
    gate: bool = False
    reports: Path = Path("harness-reports")
    name: str | None = None  # name of the run directory; None: made from date and machine
    data: Path | None = None
    model_directory: Path | None = None
    waivers: Path | None = None  # path of the waiver file; None: `waivers.yaml` next to the contracts
    wall_limit_s: float | None = None  # limit of each run in seconds; None: the planned limit
    heartbeat_s: float | None = None  # seconds that a run may be without progress; None: the planned limit
    redact: bool | None = None  # True: leave out names of host, user and folders; None: only in CI
    command: tuple[str, ...] = ("harness", "verify")
    resume: Path | None = None  # an interrupted run directory that is resumed
    baseline: str | None = None  # branch, tag or commit with the code of the arms that claims call `baseline`
    where: bool = False  # True: locate the first difference of each claim that failed
    pages: bool = True  # False: draw no pages, because the run directory is not kept


def signed_texts(signed: Sequence[Signed]) -> list[str]:
    """Return the texts of the files that contain these waivers and accepted baselines, each file once. The texts are
    copied into the run directory."""
    return list(dict.fromkeys(entry.file_text for entry in signed))


def redaction_of(contracts: Sequence[LoadedContract], asked: bool | None) -> Redaction | None:
    """Return an object that removes names of host, user and folders from evidence, but keeps words of these contracts.
    Return None if names are kept. asked: True removes names, False keeps them, None removes them only in CI."""
    if not redaction.wanted(asked):
        return None
    words = [redaction.texts_in(loaded.contract.model_dump(mode="json")) for loaded in contracts]
    return redaction.of_this_machine(set().union(*words))


def header_of(
    contracts: Sequence[LoadedContract],
    planned: Plan,
    options: VerifyOptions,
    started: datetime,
    signed: Sequence[Signed] = (),
    commits: TwoCommits | None = None,
) -> Header:
    """Return the content of `run.json`. Whether a waiver has expired is decided for the day on which the run starts."""
    systems = sorted({system for loaded in contracts for system in loaded.contract.systems()})
    listed = sources.listed_sources(systems)
    trained = {
        system: facts.model_copy(update={"name": known_name(system)}) for system, facts in trainers(systems).items()
    }
    collected = environment.collect(systems, listed).model_copy(update={"trainers": trained})
    header = Header(
        purpose="verify" if options.fault is None else "fault",
        started_at=started.isoformat(timespec="seconds"),
        command=[_text(word) for word in options.command],
        narrowed=Narrowed(claims=list(options.claims), workloads=list(options.workloads), tags=list(options.tags)),
        fault=options.fault,
        commits=commits,
        environment=collected,
        units=planned.units,
        runs={run.id: run.probe for run in planned.runs},
        digests=Digests(
            contracts=contract_digests(contracts),
            shared=shared_digests(contracts),
            source=collected.source_digest,
            packages=sources.package_digests(listed),
        ),
        contract_files=_files_of(contracts, Path.cwd()),
        waivers=[WaiverRecord(**entry.record(started.date())) for entry in signed if isinstance(entry, Waiver)],
    )
    left_out = redaction_of(contracts, options.redact)
    return header if left_out is None else redacted_header(header, left_out)


def _files_of(contracts: Sequence[LoadedContract], folder: Path) -> dict[str, str]:
    """Return the paths of the contract files below `folder`, relative to `folder`. The keys are contract ids."""
    found = {loaded.contract.id: (folder / loaded.path).resolve() for loaded in contracts}
    below = folder.resolve()
    return {name: path.relative_to(below).as_posix() for name, path in found.items() if path.is_relative_to(below)}


def beside_the_header(options: VerifyOptions) -> dict[str, object]:
    """Return, by name, the values of the options that change what is executed, but are not in the header (`run.json`).
    The value of an option that names files is the path, size and modification time of each file."""
    return {
        "--data": _files(options.data),
        "--model": _files(options.model_directory),
        "--wall-limit": options.wall_limit_s,
        "--heartbeat": options.heartbeat_s,
    }


def _files(path: Path | None) -> list[list[object]]:
    if path is None:
        return []
    found = sorted(below for below in path.rglob("*") if below.is_file()) if path.is_dir() else [path]
    states = [(file, file.stat()) for file in found]
    return [[str(file.resolve()), state.st_size, state.st_mtime_ns] for file, state in states]


def redacted_header(header: Header, left_out: Redaction) -> Header:
    """Return the header (`run.json`) without names of host, user and folders. The new header notes that names were
    removed."""
    noted = header.environment.model_copy(update={"redacted": redaction.NOTE})
    # a waiver or an accepted baseline contains the name of a person on purpose, so both stay unchanged
    changes: dict[str, object] = {"environment": left_out.model(noted), "waivers": header.waivers}
    if header.commits is not None:
        kept = {"accepted": header.commits.accepted}
        changes["commits"] = left_out.model(header.commits).model_copy(update=kept)
    return left_out.model(header).model_copy(update=changes)


def _text(word: str) -> str:
    """Return a word of the command line as text for JSON. Bytes that are not valid UTF-8 are written as escapes."""
    return word.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def with_earlier_runs(header: Header, contracts: Sequence[LoadedContract], reports: Path) -> Header:
    """Return the header (`run.json`) with a list of the earlier attempts and drills in the folder `reports`. Call this
    function before the run's own directory exists, because the list would otherwise contain the run itself."""
    drilled = drilled_claims(records_below(reports, contracts), header.digests.contracts)
    return header.model_copy(update={"attempts": attempts_before(header, reports, os.environ), "drilled": drilled})


def directory_name(started: datetime, options: VerifyOptions) -> str:
    gpus = environment.machine().gpus
    device = gpus[0].name.removeprefix("NVIDIA ").lower().replace(" ", "-") if gpus else "cpu"
    drill = f"-drill-{options.fault}" if options.fault else ""
    return f"{started:%Y-%m-%d-%H%M%S}-{device}{drill}"


Refuse = Callable[[Sequence[LoadedContract], Sequence[Signed]], None]


def plan_contracts(
    contracts: Sequence[LoadedContract], options: VerifyOptions, checkout: Checkout | None = None
) -> Plan:
    """Return the planned units, and the runs that decide them on this machine. checkout: a checkout of the baseline's
    commit; None without `--baseline`."""
    from harness.system.wrappers import HARNESS_FAULTS

    systems = [system for loaded in contracts for system in loaded.contract.systems()]
    describe_all(systems, options.wall_limit_s or LIMIT_S)  # one process describes all systems
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
        baseline=_described_baseline(contracts, checkout, options.wall_limit_s or LIMIT_S),
    )
    asked = {"wall_limit_s": options.wall_limit_s, "heartbeat_s": options.heartbeat_s}
    limits = {name: seconds for name, seconds in asked.items() if seconds is not None}
    limited = [run.model_copy(update=limits) for run in planned.runs]
    return Plan(planned.units, limited)


def _described_baseline(contracts: Sequence[LoadedContract], checkout: Checkout | None, limit_s: float) -> Baseline:
    """Return the baselines' commits, and the descriptions that the systems at these commits give of themselves.
    limit_s: seconds that each system may take to describe itself."""
    if checkout is None:
        return Baseline()
    systems = baseline_systems([loaded.contract for loaded in contracts])
    described = {
        commit: Baseline(commit, describe_all(systems, limit_s, at=there), there.tree)
        for commit, there in checkout.import_paths.items()
    }
    accepted = {claim: described[facts.commit] for claim, facts in checkout.commits.in_force().items()}
    return replace(described[checkout.commit], accepted=accepted)


def _absolute(path: Path | None) -> str | None:
    if path is None:
        return None
    require_existing([path])
    return str(path.resolve())


def verify(
    paths: Sequence[Path],
    options: VerifyOptions,
    watch: Watch | None = None,
    interpreters: Interpreters | None = None,
    refuse: Refuse | None = None,
    judged: Judged | None = None,
    checkout: Checkout | None = None,
) -> Judgement:
    """Execute every planned run, judge every unit, and write the run directory. Raises ContractError or UsageError.

    interpreters: processes that were started in advance for the runs. They end with the last run.
    refuse: a function that raises ContractError for contracts that are readable but must not be run (`harness.lint`).
    judged: a function that is called when all arms of a unit have ended. It receives the unit's verdict and a view,
    from which a report can be rendered.
    checkout: a checkout of the baseline's commit. By default, this function checks out the commit `options.baseline`,
    and removes the checkout at the end. After any exception (also KeyboardInterrupt, and SystemExit because of
    SIGTERM), the evidence so far is kept in a directory with the mark INCOMPLETE. A note of the exception names this
    directory. To resume the run, give this directory as `options.resume`.
    """
    refuse_fault_of_gate(options)
    contracts = load_contracts(paths)
    options = of_tags(contracts, options)
    signed = find_signed(paths, options.waivers)
    read = FilesRead.of(paths, options.waivers, contracts)
    if refuse is not None:
        refuse(contracts, signed)
    started = datetime.now(tz=UTC)
    checked = baselines(contracts, options, signed, started.date()) if checkout is None else nullcontext(checkout)
    with checked as made:
        return _verified(contracts, signed, read, options, started, made, watch, interpreters, judged)


def refuse_fault_of_gate(options: VerifyOptions) -> None:
    """Raise UsageError for a gate with a planted fault. Such a gate would open if no judge detected the fault."""
    if options.gate and options.fault is not None:
        raise UsageError(
            "a gate must not plant a fault",
            got=f"--fault {options.fault}",
            remedy="leave out --gate or --fault",
        )


def of_tags(contracts: Sequence[LoadedContract], options: VerifyOptions) -> VerifyOptions:
    """Return the options with each tag replaced by its claims. Raises UsageError for an unknown tag."""
    return replace(options, claims=selected(contracts, options.tags, options.claims))


def baselines(
    contracts: Sequence[LoadedContract], options: VerifyOptions, signed: Sequence[Signed], day: date
) -> AbstractContextManager[Checkout | None]:
    """Check out the commits of the baselines for the duration of a `with` block, and yield the checkout.

    Yield None without `--baseline`. signed: waivers and accepted baselines. An accepted baseline is used if it is valid
    on `day`. Raises UsageError, for example if `--baseline` is combined with a planted fault. Raises ContractErrors if
    an accepted baseline names a claim that compares no numbers with a baseline.
    """
    if options.baseline is not None and options.fault is not None:
        no_fault_with_baseline = "--baseline cannot be combined with a planted fault"
        raise UsageError(no_fault_with_baseline, got="--fault", remedy="leave out --baseline or --fault")
    known = {loaded.contract.id for loaded in contracts}
    accepted = [each for each in signed if isinstance(each, AcceptedBaseline) and each.contract in known]
    if options.baseline is not None and (errors := unmatched(accepted, contracts, all_known=True)):
        raise ContractErrors(errors)
    return baseline_checkout(contracts, options.baseline, options.reports, accepted, day)


def plan_something(
    contracts: Sequence[LoadedContract], options: VerifyOptions, checkout: Checkout | None = None
) -> Plan:
    """Return the same plan as `plan_contracts`. Raises UsageError if the options select no unit."""
    planned = plan_contracts(contracts, options, checkout)
    if not planned.units:
        raise UsageError(
            "the options must select at least one unit",
            got="none",
            remedy="leave out --claim, --tag or --workload",
        )
    return planned


def _verified(
    contracts: Sequence[LoadedContract],
    signed: Sequence[Signed],
    read: FilesRead,
    options: VerifyOptions,
    started: datetime,
    checkout: Checkout | None,
    watch: Watch | None,
    interpreters: Interpreters | None,
    judged: Judged | None,
) -> Judgement:
    def tell(verdict: Verdict, view: ReportView) -> None:
        if watch is not None:
            watch.judged(verdict)
        if judged is not None:
            judged(verdict, view)

    planned = plan_something(contracts, options, checkout)
    read.require_unchanged()  # to describe the systems, user code was executed, which may have changed contract files
    final = options.reports / (options.name or directory_name(started, options))
    if options.resume is None:
        require_place(final)
    commits = None if checkout is None else checkout.commits
    begun = header_of(contracts, planned, options, started, signed, commits)
    header = with_earlier_runs(begun, contracts, options.reports)
    texts = signed_texts(signed)
    described = Described(header, contracts, work_of(planned.runs), beside_the_header(options), texts)
    redacted = redaction_of(contracts, options.redact)
    with made_directory(described, final, named=options.name is not None, resume=options.resume) as (writer, journal):
        try:
            early = None
            if watch is not None or judged is not None:
                early = units_as_they_end(writer.bundle(), contracts, planned.runs, tell)
            execute(planned.runs, writer, watch, interpreters, redacted, checkout, journal, early, pages=options.pages)
            read.require_unchanged(RESUME)
            writer.settle(changed_since(writer.path, journal.content))
            judgement = judge_bundles([writer.bundle()], contracts, gate=options.gate)
            if options.pages:
                write_judgement(writer.path, judgement)
            directory = writer.finish()
        except BaseException as error:
            error.add_note(abandoned(writer, header, contracts, gate=options.gate))
            raise
    if options.where:
        locates = partial(locate_all, checkout=checkout, redacted=redacted, tell=watch.moves if watch else None)
        judgement = _located(writer, contracts, judgement, locates)
    return Judgement(judgement.view, directory, writer.digest)


def abandoned(writer: BundleWriter, header: Header, contracts: Sequence[LoadedContract], *, gate: bool) -> str:
    """Keep the directory of an unfinished run, and write a `junit.xml` that reports the run as unfinished. Return a
    note that names the directory."""
    from harness.report.junit import render_junit

    kept = writer.abandon()
    models = [loaded.contract for loaded in contracts]
    unfinished = ReportView(header, models, (), {}, incomplete=(kept.name,), gate=gate)
    with suppress(OSError):  # perhaps a full disk ended the run, and this file cannot be written either
        write_text(kept / layout.JUNIT, render_junit(unfinished))
    return f"{KEPT}: {kept}"


def _located(
    writer: BundleWriter, contracts: Sequence[LoadedContract], judgement: Judgement, locates: Callable[..., bool]
) -> Judgement:
    """Add the first differences of failed claims to a complete run directory, and write its reports and manifest again.
    After an error, remove the first differences again and restore the earlier reports and manifest."""
    kept = writer.path / layout.WHERE
    try:
        with tempfile.TemporaryDirectory(prefix="harness-where-", ignore_cleanup_errors=True) as folder:
            if not locates(writer.bundle(), contracts, judgement.verdicts, Path(folder)):
                return judgement
            try:
                shutil.move(Path(folder) / layout.WHERE, kept)
                located = judge_bundles([writer.bundle()], contracts, gate=judgement.view.gate)
                write_judgement(writer.path, located)
                writer.seal_again()
            except BaseException:
                # If restoring fails too, the directory differs from its manifest, and a later check of the manifest
                # reports this.
                with suppress(Exception):
                    remove(kept)
                    write_judgement(writer.path, judgement)
                    writer.seal_again()
                raise
            return located
    except Exception:
        return judgement
    except BaseException as error:
        error.add_note(f"all verdicts are in {writer.path}, but the first differences were not located")
        raise


def write_judgement(directory: Path, judgement: Judgement) -> None:
    """Write the verdicts, and then the reports, into a run directory."""
    write_verdicts(directory, judgement.verdicts)
    write_reports(directory, judgement.view)


def write_reports(directory: Path, view: ReportView, *, junit: bool = True) -> None:
    """Write `report.html` and `summary.md`. With `junit`, also write `junit.xml` and a file for each unit that did not
    hold. All files are rendered before the first one is written. Old files of units that now hold are removed."""
    from harness.report.html import render
    from harness.report.junit import render_junit
    from harness.report.markdown import problem_files, render_markdown

    drawn = {layout.SUMMARY: render_markdown(view), layout.JUNIT: render_junit(view), layout.PAGE: render(view)}
    for name, text in drawn.items():
        if junit or name != layout.JUNIT:
            write_text(directory / name, text)
    if junit:
        write_problems(directory, problem_files(view))

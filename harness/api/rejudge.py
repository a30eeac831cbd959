"""Judge finished run directories again. Nothing is executed."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from harness.api import session
from harness.contract.accepted_baselines import AcceptedBaseline, find_accepted
from harness.contract.load import LoadedContract, load_contracts, selected
from harness.contract.schema import Contract
from harness.contract.signed_entries import Signed, load
from harness.contract.waivers import Waiver, find_waivers
from harness.errors import ContractError, ContractErrors, EvidenceError, UsageError
from harness.evidence import layout
from harness.evidence.environment_records import CHANGES
from harness.evidence.files import readable
from harness.evidence.layout import shown
from harness.evidence.read_run import ProcessTimes
from harness.planning.plan import refuse_unknown
from harness.report.together import side_by_side
from harness.report.view import ReportView, RunPart
from harness.run_directory.bundle import Bundle, Header, Narrowed, WaiverRecord, altered, read_bundle, recorded_bytes
from harness.run_directory.seal import seal_anew
from harness.run_directory.shards import differences, part_names, refuse_mixed, refuse_unfit, speeds_apart
from harness.run_directory.verdict_file import other_than, read_record

if TYPE_CHECKING:
    from harness.drill.recheck import Recheck


def contradictions(bundle: Bundle, contracts: Sequence[Contract] | None) -> list[str]:
    """Return one line for each statement in the header (`run.json`) that other files of the run directory contradict.

    contracts: the directory's copies of its contracts. None means that the copies cannot be read. Names of claims,
    workloads and tags are then not checked.
    """
    unknown = _unknown_names(bundle, contracts) if contracts is not None else ()
    found = [*unknown, *_narrowing(bundle), *_runs(bundle), *_machine(bundle), *_signed(bundle)]
    return [f"{layout.HEADER}: {line}" for line in dict.fromkeys(found)]


def _unknown_names(bundle: Bundle, contracts: Sequence[Contract]) -> Iterator[str]:
    """Yield a line for each selected claim, workload or tag in the header (`run.json`) that no contract contains."""
    narrowed = bundle.header.narrowed
    claims = [claim for contract in contracts for claim in contract.claims]
    workloads = {name for claim in claims for name in claim.judged_on}
    tags = {tag for contract in contracts for claim in contract.claims for tag in contract.tags_of(claim)}
    known = (
        ("claim", narrowed.claims, {claim.id for claim in claims}),
        ("workload", narrowed.workloads, workloads),
        ("tag", narrowed.tags, tags),
    )
    for kind, names, there in known:
        for name in names:
            if name not in there:
                yield f"the run was narrowed to {kind} {shown(name)}, which none of these contracts has"


def _narrowing(bundle: Bundle) -> Iterator[str]:
    """Yield a line for each planned unit that the selection `narrowed` in the header (`run.json`) leaves out."""
    narrowed = bundle.header.narrowed
    for unit in bundle.header.units:
        if not narrowed.asks_for(unit):
            yield (
                f"{shown(unit.claim)} on {shown(unit.workload)} is planned, but `narrowed` in the run's header leaves "
                "this unit out"
            )


def _runs(bundle: Bundle) -> Iterator[str]:
    """Yield a line for each of three errors: a unit reads a run that was not planned, no unit reads a planned run, or
    an evidence folder belongs to no planned run."""
    header = bundle.header
    read = {run for unit in header.units for run in unit.runs}
    yield from (f"run {shown(run)} is read by a unit, but was not planned" for run in sorted(read - set(header.runs)))
    # a drill also plans runs with faults, which no unit of the header reads; the drill's record lists them
    if header.purpose != "drill":
        yield from (f"run {shown(run)} was planned, but no unit reads it" for run in sorted(set(header.runs) - read))
    left: list[str] = []
    with suppress(OSError):  # a missing or unreadable folder is reported by the comparison with the manifest
        left = sorted(path.name for path in (bundle.root / layout.EVIDENCE).iterdir())
    stray = [name for name in left if name not in header.runs]
    yield from (f"{layout.EVIDENCE}/{shown(name)} belongs to no planned run" for name in stray)


def _machine(bundle: Bundle) -> Iterator[str]:
    """Yield a line for each GPU or commit in the header (`run.json`) that records of workers contradict, and a line if
    the header has two different digests of the source code."""
    header = bundle.header
    collected = header.environment
    if collected.source_digest and collected.source_digest != header.digests.source:
        yield "`digests.source` differs from `environment.source_digest`"
    for path in sorted((bundle.root / layout.EVIDENCE).rglob(layout.PROCESS)):
        if (process := readable(path, ProcessTimes)) is None:
            continue  # if the file was changed, the comparison with the manifest reports this
        used, commit = process.gpu, (collected.git.commit or "none").removesuffix(CHANGES)
        if process.commit not in {None, commit}:
            run = shown(path.parent.name)
            yield f"the recorded commit is {shown(commit)}, but run {run} was executed at {shown(process.commit)}"
        tested = header.commits
        known = tested.trained() if tested is not None else set()
        for trained in sorted({*process.trained} - known):
            which = " and ".join(shown(one) for one in sorted(known)) or "none"
            yield f"the tested commits are {which}, but run {shown(path.parent.name)} trained {shown(trained)}"
        if used is not None and used != collected.gpu.uuid:
            gpu = shown(collected.gpu.uuid or "none")
            yield f"the recorded GPU is {gpu}, but run {shown(path.parent.name)} used {shown(used)}"
    for run in header.runs:
        for arm, kernels in bundle.evidence(run).kernels.items():
            if kernels.device is not None and kernels.device != collected.gpu.architecture:
                gpu = shown(collected.gpu.architecture or "none")
                yield (
                    f"the recorded GPU has architecture {gpu}, but arm {shown(arm)} of run {shown(run)} saw "
                    f"{shown(kernels.device)}"
                )


def _signed(bundle: Bundle) -> Iterator[str]:
    """Yield a line for each waiver and accepted baseline in the header that no file in the run directory's folder
    `waivers` contains. Whether an entry has expired is decided for the day on which the run started."""
    header = bundle.header
    accepted = header.commits.accepted if header.commits is not None else []
    recorded = [(f"waiver of {shown(one.claim)} on {shown(one.workload)}", one.model_dump()) for one in header.waivers]
    recorded += [(f"accepted baseline of {shown(one.claim)}", one.signed()) for one in accepted]
    if not recorded:
        return
    try:
        day = datetime.fromisoformat(header.started_at).date()
    except ValueError:
        yield "`started_at` is not a valid time"
        return
    try:
        files = sorted((bundle.root / layout.WAIVERS).glob("*.yaml"))
        signed = [entry.record(day) for path in files for entry in load(path, *_KINDS)]
    except (ContractErrors, ContractError):
        yield f"the files in {layout.WAIVERS}/ are not valid waiver files"
        return
    for name, fields in recorded:
        if fields not in signed:
            yield f"the recorded {name} is in no file of {layout.WAIVERS}/"


_KINDS: tuple[type[Signed], ...] = (Waiver, AcceptedBaseline)


@dataclass(frozen=True)
class Rejudged:
    """One run that was judged again, with the drill record if the run is a drill. problems: one line for each changed
    or contradictory file, and for each difference between the new and the recorded verdicts."""

    bundle: Bundle
    judgement: session.Judgement
    drill: Recheck | None
    problems: list[str]


@dataclass(frozen=True)
class Known:
    """Facts that the caller knows from another source than the run directories, whose content could be forged.

    contracts: files and folders of contracts by which runs are judged. waivers: the waiver file for these contracts; by
    default the waiver files next to the contracts. commit: the commit of the tested code. not_before: the earliest time
    at which a run may have started.
    asked: the claims, workloads and tags that a gate over a single run must cover, whatever the run directory states.
    """

    contracts: Sequence[Path] = ()
    commit: str | None = None
    not_before: datetime | None = None
    waivers: Path | None = None
    asked: Narrowed = field(default_factory=Narrowed)

    def require(self, bundles: Sequence[Bundle]) -> None:
        """Raise EvidenceError for a run of another commit than `commit`, or a run that started before `not_before`.

        A tested system outside of a repository, such as an installed package, has no commit, so its commit is not
        compared. At least one tested system must be from `commit`.
        """
        for bundle in bundles:
            where, header = str(bundle.path), bundle.header
            trained = {facts.commit for facts in header.environment.trainers.values() if facts.commit}
            if self.commit is not None and trained != {self.commit}:
                rule, remedy = (
                    "the run must be of the requested commit, without uncommitted changes",
                    f"verify {self.commit} again",
                )
                got = ", ".join(sorted(trained))
                if not got:
                    got = "no commit, because each system is part of an installed package, or is in no repository"
                    remedy = (
                        "run the trainer from a checkout, for example after `pip install -e .` there, and verify again"
                    )
                raise EvidenceError(rule, where=where, got=got, remedy=remedy)
            if self.not_before is not None and started(header) < self.not_before:
                started_too_early = f"the run must have started at {self.not_before.isoformat()} or later"
                raise EvidenceError(
                    started_too_early, where=where, got=header.started_at, remedy="run `harness verify` again"
                )

    def with_signed(self, header: Header) -> Header:
        """Return the header (`run.json`) with the waivers of these contracts in place of the recorded waivers.

        Whether a waiver has expired is decided for the day of the run's start or of `not_before`, whichever is later.
        Accepted baselines that no file next to the contracts contains are removed from the header. A run that used such
        a baseline is then not what its claim requires.
        """
        day = max(started(header), self.not_before or started(header)).date()
        waivers = [WaiverRecord(**waiver.record(day)) for waiver in find_waivers(self.contracts, self.waivers)]
        changes: dict[str, object] = {"waivers": waivers}
        if header.commits is not None:
            accepted = [entry.record(day) for entry in find_accepted(self.contracts)]
            kept = [one for one in header.commits.accepted if one.signed() in accepted]
            changes["commits"] = header.commits.model_copy(update={"accepted": kept})
        return header.model_copy(update=changes)


def started(header: Header) -> datetime:
    """Return the time at which a run started. Raises EvidenceError if the header has no valid time."""
    try:
        return datetime.fromisoformat(header.started_at).astimezone(UTC)
    except ValueError:
        raise EvidenceError(
            "`started_at` in the header of the run must be a time in ISO 8601", got=header.started_at
        ) from None


NOTHING_KNOWN = Known()


def judged(
    runs: Sequence[Path], known: Known = NOTHING_KNOWN, *, gate: bool = False
) -> tuple[list[Bundle], session.Judgement]:
    """Read and judge runs (run directories, archives, published folders).

    The runs are judged by the facts in `known`; by default, by the contracts that the runs contain. Raises
    EvidenceError for runs that are damaged, contradict `known`, or do not belong together.
    """
    bundles = [read_bundle(run) for run in runs]
    known.require(bundles)
    if gate:
        refuse_mixed(bundles)
    return bundles, _judged(bundles, known, gate=gate)


def shown_together(runs: Sequence[Path]) -> tuple[Sequence[Bundle], session.Judgement]:
    """Read and judge runs for one page: one run, the shards (parts) of a gate, or several unrelated runs.

    Unrelated runs are judged separately. One of the runs may be a complete drill; the page then also shows its planted
    faults. Raises EvidenceError for a path that is not a run, for a second drill, for a drill of other contracts, and
    for a run that is named twice.
    """
    bundles = [read_bundle(run) for run in runs]
    drill = next((bundle for bundle in bundles if bundle.header.purpose == "drill"), None)
    if drill is None or len(bundles) == 1:
        return _together(bundles)
    shown, judgement = _together([bundle for bundle in bundles if bundle is not drill])
    return shown, replace(judgement, view=_with_drill(judgement.view, drill))


def later_drill(run: Path) -> Path | None:
    """Return the newest drill in the run's parent folder that began after the run and planted faults into the run's
    contracts.

    Return None if there is no such drill. The run's page was written before the drill and does not mention the drill.
    """
    header, found = read_bundle(run).header, list[tuple[str, Path]]()
    for path in run.resolve().parent.glob(f"*/{layout.DRILL}"):
        with suppress(EvidenceError):
            record = read_record(path)
            # times have whole seconds: a drill can be recorded in the second in which the run began
            if record.recorded_at >= header.started_at and record.contracts.items() & header.digests.contracts.items():
                found.append((record.recorded_at, run.parent / path.parent.name))
    return max(found)[1] if found and header.purpose == "verify" else None


def _with_drill(view: ReportView, drill: Bundle) -> ReportView:
    """Return the view (the content of a report about runs) with the record of this drill added. Raises EvidenceError if
    the drill was of other contracts."""
    judged, planted = view.header.digests.contracts, drill.header.digests.contracts
    if not judged.items() & planted.items():
        raise EvidenceError(
            "a page can show a drill next to runs only if the drill planted faults into contracts of these runs",
            where=str(drill.path),
            got=f"faults in other contracts, or in another version of these contracts: {', '.join(sorted(planted))}",
            remedy="drill the contracts of the runs again, or write a separate page for the drill",
        )
    own = _judged([drill]).view
    return replace(
        view,
        drill=own.drill,
        drill_named=True,
        altered=(*view.altered, *own.altered),
        incomplete=(*view.incomplete, *own.incomplete),
        unsealed=(*view.unsealed, *own.unsealed),
    )


def _together(bundles: Sequence[Bundle]) -> tuple[Sequence[Bundle], session.Judgement]:
    """Judge the runs for one page. Only a single run may be a drill."""
    if len(bundles) > 1:
        refuse_unfit(bundles)
    apart = list(dict.fromkeys(error.rule for error in differences(bundles)))
    if not apart:
        contracts = [loaded.contract for loaded in copies(bundles)]
        apart = list(dict.fromkeys(error.rule for error in speeds_apart(bundles, contracts)))
    if not apart:
        return bundles, _judged(bundles)
    names = part_names(bundles)
    parts = [RunPart(name, _judged([bundle]).view) for name, bundle in zip(names, bundles, strict=True)]
    return bundles, session.Judgement(side_by_side(parts, apart))


def _judged(bundles: Sequence[Bundle], known: Known = NOTHING_KNOWN, *, gate: bool = False) -> session.Judgement:
    contracts = known.contracts
    loaded = load_contracts(contracts) if contracts else copies(bundles)
    waived = [replace(one, header=known.with_signed(one.header)) for one in bundles] if contracts else bundles
    if contracts and gate and len(bundles) == 1:
        narrowed = _asked(known.asked, loaded)
        waived = [replace(one, header=one.header.model_copy(update={"narrowed": narrowed})) for one in waived]
    judgement = session.judge_bundles(waived, loaded, gate=gate)
    own = _readable_copies(bundles) if contracts else loaded
    view = _with_contradictions(judgement.view, bundles, None if own is None else [one.contract for one in own])
    first, drill = bundles[0], None
    if first.header.purpose == "drill":
        drill = read_record(first.place.derived / layout.DRILL, shown=first.path / layout.DRILL)
    return replace(judgement, view=replace(view, drill=drill))


def _asked(part: Narrowed, contracts: Sequence[LoadedContract]) -> Narrowed:
    """Return the claims and workloads that the command line selected (`--claim`, `--tag`, `--workload`). Each tag is
    replaced by the claims that have this tag.

    Raises UsageError for unknown names. Also raises UsageError if no unit is selected, because the gate would then
    accept any run directory.
    """
    units = [(claim.id, workload) for one in contracts for claim in one.contract.claims for workload in claim.judged_on]
    refuse_unknown("no contract has this claim", part.claims, {claim for claim, _ in units})
    refuse_unknown("no claim is judged on this workload", part.workloads, {workload for _, workload in units})
    claims = selected(contracts, part.tags, part.claims)
    there = [(claim, name) for claim, name in units if not claims or claim in claims]
    refuse_unknown("the requested claim must be judged on this workload", part.workloads, {name for _, name in there})
    return part.model_copy(update={"claims": list(claims)})


def _readable_copies(bundles: Sequence[Bundle]) -> list[LoadedContract] | None:
    """Return the copies of contracts in the run directories, or None if a copy cannot be read."""
    with suppress(EvidenceError, ContractError, UsageError):  # the report lists a changed copy as altered
        return copies(bundles)
    return None


def _with_contradictions(view: ReportView, bundles: Sequence[Bundle], own: Sequence[Contract] | None) -> ReportView:
    """Return the view (the content of a report) with the contradictions of each run added to its list `altered`. own:
    the copies of contracts that the runs contain."""
    names = part_names(bundles) if view.parts else [bundle.path.name for bundle in bundles]
    against = {
        name: tuple(f"{name}: {line}" for line in contradictions(bundle, own))
        for name, bundle in zip(names, bundles, strict=True)
    }
    parts = [
        replace(part, view=replace(part.view, altered=(*part.view.altered, *against[part.name]))) for part in view.parts
    ]
    altered = (*view.altered, *(line for lines in against.values() for line in lines))
    return replace(view, altered=altered, parts=tuple(parts))


def whole_commit(given: str) -> str:
    """Return a full commit hash in lower case. Raises UsageError for any other text, such as `HEAD`."""
    if re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", given.lower()) is None:
        commit_must_be_whole, hash_of_head = (
            "--commit must be a whole commit hash of 40 or 64 hexadecimal digits",
            '`"$(git rev-parse HEAD)"`',
        )
        raise UsageError(commit_must_be_whole, got=repr(given), remedy=f"give the whole hash, such as {hash_of_head}")
    return given.lower()


def refuse_others(runs: Sequence[Path], digests: Sequence[str]) -> None:
    """Raise EvidenceError unless each run's manifest has one of these digests, and each digest belongs to a run.

    Anyone who changes a directory can also write a manifest that matches the change. This manifest has another digest,
    so a digest that was stored elsewhere reveals the change. Raises UsageError for a digest that is not a SHA-256 in
    hexadecimal.
    """
    wanted = {digest.removeprefix("sha256:") for digest in digests}
    for digest in wanted:
        if re.fullmatch(r"[0-9a-f]{64}", digest) is None:
            raise UsageError("--digest must be the SHA-256 of a manifest: 64 hexadecimal digits", got=repr(digest))
    found = {run: read_bundle(run).seal.digest for run in runs}
    for run, its_own in found.items():
        if its_own not in wanted:
            manifest_digest = its_own or "no manifest"
            raise EvidenceError(
                "the digest of the run's manifest must be one of the digests given with --digest",
                where=str(run),
                got=manifest_digest,
            )
    if unmatched := wanted - set(found.values()):
        raise EvidenceError(
            "each digest given with --digest must be the digest of a run's manifest",
            got=f"no run whose manifest has the digest {min(unmatched)}",
        )


def replaced(bundle: Bundle, *more: str) -> set[str]:
    """Return the names of the files that a new judgement of a run directory replaces: its pages, and `more`."""
    pages = {layout.PAGE, layout.SUMMARY} | (set() if bundle.place.published else {layout.JUNIT, layout.PROBLEMS})
    return pages | set(more)


def unfit(bundle: Bundle, judgement: session.Judgement, names: Collection[str]) -> list[str]:
    """Return a line for each difference between the directory's files and its manifest, except in files named in
    `names`."""
    prefix = f"{bundle.path.name}: "
    altered = {line: line.removeprefix(prefix).partition(": ")[0] for line in judgement.view.altered}
    return [line for line, name in altered.items() if name.partition("/")[0] not in names]


@contextmanager
def rewritten(
    bundle: Bundle, judgement: session.Judgement, names: Collection[str]
) -> Iterator[tuple[Path, ReportView]]:
    """Yield the run's folder and the view from which its reports are rendered. In the `with` block, the caller may
    write the files `names` to the folder. After the block, the manifest is written again. Raises UsageError for an
    archive. Raises EvidenceError if another file differs from the manifest.
    """
    folder, view = bundle.place.writable(), judgement.view
    changed_files = unfit(bundle, judgement, names)
    if changed_files or view.incomplete:
        raise EvidenceError(
            "the verdicts and pages of a run can be written again only if its other files are unchanged",
            where=str(bundle.path),
            got="; ".join(changed_files[:5]) or bundle.seal.missing,
            remedy="see all differences with `harness judge --check`",
        )
    yield folder, replace(view, altered=(), unsealed=())
    seal_anew(bundle.place, bundle.seal)


def rejudged(run: Path) -> Rejudged:
    """Judge one run by the contracts that it contains, and compare the verdicts with the recorded verdicts. Raises
    EvidenceError."""
    [bundle], judgement = judged([run])
    problems = [*judgement.view.altered, *([bundle.seal.missing] if bundle.seal.missing else [])]
    recorded = recorded_bytes(bundle.place.derived / layout.VERDICTS)
    if (what := other_than(recorded, judgement.verdicts)) is not None:
        problems.append(f"{run / layout.VERDICTS}: {what}")
    drill = None
    if bundle.header.purpose == "drill":
        from harness.drill.recheck import recheck

        drill = recheck(bundle, judgement.view.contracts, judgement.verdicts, session.describe)
        problems += drill.differences
    return Rejudged(bundle, judgement, drill, problems)


def copies(bundles: Sequence[Bundle]) -> list[LoadedContract]:
    """Return the copies of contracts in the run directories, each contract once.

    All copies of a contract must be equal, which is checked when shards (parts of a gate) are joined. Raises
    EvidenceError for a copy that was changed after it was recorded. Raises ContractErrors for an unchanged copy that is
    invalid.
    """
    paths: dict[str, Path] = {}
    for bundle in bundles:
        for path in bundle.contract_paths():
            paths.setdefault(path.name, path)
    try:
        return load_contracts([paths[name] for name in sorted(paths)], partial(_copy_of_shared, bundles))
    except (ContractErrors, UsageError) as problem:
        # A changed copy may be an invalid contract. Report that the evidence was changed, and not that the contract is
        # invalid.
        for bundle in bundles:
            if changed_contracts := [line for line in altered(bundle) if line.startswith(f"{layout.CONTRACTS}/")]:
                contracts_must_be_unchanged = "the contracts in a run directory must not be changed"
                raise EvidenceError(
                    contracts_must_be_unchanged, where=str(bundle.path), got="; ".join(changed_contracts[:5])
                ) from problem
        if isinstance(problem, UsageError):
            raise
        raise ContractErrors([_as_named(error, bundles) for error in problem.errors]) from problem


def _copy_of_shared(bundles: Sequence[Bundle], contract: Path, number: int, name: str) -> Path:
    """Return the path of a shared file in the run directory that contains the contract's copy. number, name: index and
    name of the shared file under the contract's `uses`."""
    for bundle in bundles:
        used = bundle.header.digests.shared.get(contract.stem, [])
        if contract.parent == bundle.root / layout.CONTRACTS and number < len(used):
            return bundle.shared_path(used[number])
    raise ContractError(
        "the run's header must list each shared file that a contract of the run uses", got=f"no entry for {name!r}"
    )


def _as_named(error: ContractError, bundles: Sequence[Bundle]) -> ContractError:
    """Return the error with the path of the run as the caller named it, instead of the path of the temporary folder
    into which an archive was unpacked."""
    where, remedy = error.where, error.remedy
    for bundle in bundles:
        where, remedy = bundle.place.shown(where), bundle.place.shown(remedy)
    return ContractError(error.rule, where=where, got=error.got, remedy=remedy)

"""Create a run directory: start a new one, or resume an interrupted one.

A command can resume only with the same contracts, sources, packages, machine and options. A run that ended keeps its
evidence, even if its worker died: if such a run were executed again, a gate could be repeated until it passes. A run
that was interrupted is executed again from the start, and the header lists it.
"""

from __future__ import annotations

import glob
import os
import shutil
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from dataclasses import field as dataclasses_field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from harness.devices import environment
from harness.errors import EvidenceError, UsageError
from harness.evidence import layout
from harness.evidence.base import Record
from harness.evidence.environment_records import Environment, quoted
from harness.evidence.files import Damaged, parse, read_bytes, write_text
from harness.evidence.plan_records import Run
from harness.evidence.redaction import of_this_machine
from harness.numbers import dump_json
from harness.platform.paths import require_existing
from harness.run_directory.bundle import Bundle, Header, Narrowed, Resumption, altered, read_bundle
from harness.run_directory.seal import Digest, digest_of, listed_file, listing
from harness.run_directory.writer import CHANGED, UNFINISHED_NAME, BundleWriter, header_text

if TYPE_CHECKING:
    from harness.contract.load import LoadedContract

# A run directory contains `journal.json` only while the directory is written. The file records how the run was started,
# and the digest of the evidence of each completed run.
#
# After an interruption, only this file shows which runs are complete. Therefore the file is rewritten after each run.
# When the directory is sealed, the file is removed, because the manifest then contains the digests.


class JournalFile(Record):
    """The journal's content without its checksum. All values are SHA-256 digests, so the journal contains no folder
    names.

    headers: digests of `run.json` before and after its last change. A process that is killed leaves one of these two
    versions. options: digests of options of the command line, by name. plan: digest of each run to execute, by run id.
    ended: digest of the evidence of each run that has ended, by run id.
    """

    format_version: Literal[1] = 1
    headers: list[Digest]
    options: dict[str, Digest]
    plan: dict[str, Digest]
    ended: dict[str, Digest] = Field(default_factory=dict)


class _Written(JournalFile):
    checksum: Digest  # digest of all other fields; a changed file does not match it


def journal_text(content: JournalFile) -> str:
    values = content.model_dump(mode="json")
    return dump_json({**values, "checksum": digest_of(dump_json(values))}, indent=1) + "\n"


def read_journal(directory: Path) -> JournalFile:
    """Return the journal of a directory. Raises `Damaged` if it is missing or damaged."""
    data = read_bytes(directory / layout.JOURNAL)
    content = JournalFile(**parse(data, _Written, layout.JOURNAL).model_dump(exclude={"checksum"}))
    if journal_text(content).encode() != data:
        raise Damaged(f"{layout.JOURNAL} was changed, or was not written by the harness")
    return content


def evidence_digest(evidence: Path, run: str) -> str:
    """Return one SHA-256 of the names and contents of all files below `evidence/RUN`. A folder that is missing or
    cannot be read has a digest, too."""
    folder = evidence / run
    found = listing(folder)
    files = [listed_file(folder, name) for name in sorted(found.files)]
    lines = [f"{file.sha256} {file.size} {file.path}" for file in files]
    lines += [f"{name}/" for name in sorted(found.folders)] + [f"{name}: unfit" for name in sorted(found.unfit)]
    return digest_of("\n".join(lines))


@dataclass
class Journal:
    """The journal of one directory. Only the process that creates the directory writes the journal."""

    directory: Path
    content: JournalFile
    _lock: threading.Lock = dataclasses_field(default_factory=threading.Lock, repr=False)

    def write(self) -> None:
        write_text(self.directory / layout.JOURNAL, journal_text(self.content))

    def note_ends(self, runs: Iterable[str]) -> None:
        """Record that these runs have ended. If the command is resumed later, their evidence is kept.

        If the directory has disappeared, record nothing. A resumed command then executes the runs again.
        """
        with self._lock, suppress(OSError):
            digests = {run: evidence_digest(self.directory / layout.EVIDENCE, run) for run in runs}
            self.content = self.content.model_copy(update={"ended": {**self.content.ended, **digests}})
            self.write()


def changed_since(directory: Path, journal: JournalFile) -> list[str]:
    """Return the ids of ended runs whose evidence differs from its digest in the journal."""
    evidence = directory / layout.EVIDENCE
    return [run for run, digest in sorted(journal.ended.items()) if evidence_digest(evidence, run) != digest]


@contextmanager
def alone_in(directory: Path) -> Iterator[None]:
    """Lock the run directory within the `with` block, so that no other process writes or resumes it.

    Raises UsageError if another process holds the lock.
    """
    # Import late. This package is installed only with the extra `run`, because only commands that execute runs need it.
    from filelock import FileLock, Timeout

    lock = FileLock(directory / layout.LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise UsageError(
            "only one process at a time may write a run directory",
            where=str(directory),
            got="another process that is writing it",
        ) from None
    try:
        yield
    finally:
        lock.release()


def is_free(lock: Path) -> bool:
    """Return True if no process holds the lock `lock`, which `alone_in` uses. A missing file counts as free and is not
    created."""
    import fcntl

    try:
        descriptor = os.open(lock, os.O_RDWR)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def digest_of_each(values: Mapping[str, object]) -> dict[str, str]:
    """Return the SHA-256 of each value as JSON, by the value's key."""
    return {name: digest_of(dump_json(value, sort_keys=False)) for name, value in values.items()}


_MACHINE = ("gpu", "cpu", "host_memory_gib", "platform", "variables", "redacted")


def another_header(begun: Header, now: Header) -> str | None:
    """Return as text the first difference between the headers of the interrupted and the new run, or None if there is
    no difference."""
    return next(_differences(begun, now), None)


def another_machine(begun: Environment, now: Environment) -> str | None:
    """Return as text the first difference in machine, packages or commit since the run was started, or None if there is
    no difference."""
    return next(_environment(begun, now), None)


def another_plan(begun: JournalFile, now: JournalFile) -> str | None:
    """Return as text the first difference in the planned runs, or in options that are not in the header. Return None if
    there is no difference."""
    for name, digest in now.options.items():
        if begun.options.get(name) != digest:
            return f"another {name}" + (", or changed files in it" if name in ("--data", "--model") else "")
    runs = [run for run in {**begun.plan, **now.plan} if begun.plan.get(run) != now.plan.get(run)]
    return f"another plan: run {runs[0]} is planned differently" if runs else None


def other_commits(begun: Environment, now: Environment) -> Iterator[tuple[str, str, str]]:
    """Yield each system whose commit or uncommitted changes differ between two runs, with its commit in each run.

    A system is left out if one of its two commits is unknown. A commit is unknown if a run does not have the system, or
    if the system is in no repository.
    """
    for system in sorted({*begun.trainers} & {*now.trainers}):
        there, here = begun.trainers[system].commit, now.trainers[system].commit
        if there is not None and here is not None and there != here:
            yield system, there, here


def _differences(begun: Header, now: Header) -> Iterator[str]:
    if (begun.purpose, begun.fault) != (now.purpose, now.fault):
        yield f"{_purpose(now)}, but the run was started as {_purpose(begun)}"
    if begun.narrowed != now.narrowed:
        yield f"{_narrowed(now.narrowed)}, but the run was started with {_narrowed(begun.narrowed)}"
    yield from _digests("contract", begun.digests.contracts, now.digests.contracts)
    if begun.commits != now.commits:
        yield "commits of candidate or baseline that differ from those of the interrupted run"
    yield from _digests("sources of the package", begun.digests.packages, now.digests.packages)
    if begun.digests.source != now.digests.source:
        yield "sources that differ from those of the interrupted run"
    for system, there, here in other_commits(begun.environment, now.environment):
        yield f"the trainer {system} at the commit {quoted(here)}, but the run was started at {quoted(there)}"
    yield from _environment(begun.environment, now.environment)
    waivers = [[waiver.model_dump(exclude={"expired"}) for waiver in header.waivers] for header in (begun, now)]
    if waivers[0] != waivers[1]:
        yield "waivers that differ from those of the interrupted run"
    if begun.units != now.units or begun.runs != now.runs:
        yield "another plan: its units or runs differ"


def _purpose(header: Header) -> str:
    return f"the fault {header.fault}" if header.fault is not None else f"a {header.purpose} without --fault"


def _narrowed(narrowed: Narrowed) -> str:
    named = [*(f"--claim {name}" for name in narrowed.claims), *(f"--workload {name}" for name in narrowed.workloads)]
    return " ".join(named) or "all claims and workloads"


def _digests(what: str, begun: Mapping[str, str], now: Mapping[str, str]) -> Iterator[str]:
    for name in {**begun, **now}:
        if begun.get(name) != now.get(name):
            yield (
                f"{what} {name} with digest {_short(now.get(name))}, but the run was started with "
                f"{_short(begun.get(name))}"
            )


def _short(digest: str | None) -> str:
    return "none" if digest is None else digest[:12]


def _environment(begun: Environment, now: Environment) -> Iterator[str]:
    for field in _MACHINE:
        if (there := getattr(begun, field)) != (here := getattr(now, field)):
            yield f"another machine: {field} {_shown(here)}, but the run was started with {_shown(there)}"
    if (there := begun.job.node) != (here := now.job.node):
        yield f"another node: {_shown(here)}, but the run was started on {_shown(there)}"
    for package in sorted({*begun.versions, *now.versions}):
        if (there := begun.versions.get(package)) != (here := now.versions.get(package)):
            yield f"{package} {here or 'none'}, but the run was started with {package} {there or 'none'}"
    if begun.git != now.git:
        here, there = (quoted(each.commit) if each.commit else "none" for each in (now.git, begun.git))
        yield f"the commit {here}, but the run was started at {there}"


def _shown(facts: object) -> str:
    return f"({facts})"[:200]


ANEW = "start a new run, without --resume"


@dataclass(frozen=True)
class Described:
    """The contracts, runs and options of a command. To resume an interrupted directory, they must be those of the
    interrupted command.

    work: by run id, a list of runs. The first run is executed, and the following runs share its evidence.
    options: by name, the options of the command line that are neither in the header nor in contracts.
    """

    header: Header
    contracts: Sequence[LoadedContract]
    work: Mapping[str, Sequence[Run]]
    options: Mapping[str, object]
    waivers: Sequence[str] = ()

    def journal(self) -> JournalFile:
        plan = {name: runs[0].model_dump(mode="json") for name, runs in self.work.items()}
        header = digest_of(header_text(self.header))
        return JournalFile(headers=[header], options=digest_of_each(self.options), plan=digest_of_each(plan))


def made_directory(
    described: Described, final: Path, *, named: bool, resume: Path | None
) -> AbstractContextManager[tuple[BundleWriter, Journal]]:
    """Return a context manager for a run directory and its journal. The directory is locked inside the context.

    The directory is a new one that is later renamed to `final`, or the interrupted directory `resume`. named: True if
    the user chose the name. Raises UsageError or EvidenceError if the directory cannot be resumed.
    """
    if resume is not None and named:
        raise UsageError("--name cannot be combined with --resume", got="--name", remedy="leave out --name")
    return _new(described, final, named=named) if resume is None else _interrupted(described, resume)


@contextmanager
def _new(described: Described, final: Path, *, named: bool) -> Iterator[tuple[BundleWriter, Journal]]:
    writer = BundleWriter(final, described.header, described.contracts, described.waivers, named=named)
    # Without runs to execute, nothing can be resumed, so no lock is needed. The package for locks may not be installed.
    with alone_in(writer.path) if described.work else nullcontext():
        if named and described.work:
            _refuse_one_under_way(writer)
        journal = Journal(writer.path, described.journal())
        try:
            journal.write()
        except BaseException:
            shutil.rmtree(writer.path, ignore_errors=True)  # the directory has no evidence yet, so remove it
            raise
        yield writer, journal


def _refuse_one_under_way(writer: BundleWriter) -> None:
    """Raise UsageError if another process is creating a directory with the same final name.

    Call this function only after this process has created its directory. If two processes start at the same time, at
    least one of these processes then sees the directory of the other process.
    """
    for other in sorted(_unfinished_of(writer.final)):
        if other != writer.path and not is_free(other / layout.LOCK):
            shutil.rmtree(writer.path, ignore_errors=True)  # the directory is still empty, so remove it
            raise UsageError(
                "a run directory can be written only once",
                where=str(writer.final),
                got=f"another process that is writing it, in {other}",
                remedy="name another directory, or wait for that process",
            )


@contextmanager
def _interrupted(described: Described, directory: Path) -> Iterator[tuple[BundleWriter, Journal]]:
    _unfinished(directory)
    with alone_in(directory):
        bundle, journal = as_left(directory)
        _refuse_another(bundle, journal, described)
        again = {name: runs for name, runs in described.work.items() if not journal.ended.keys() >= _ids(runs)}
        cut_off = [name for name in again if any((directory / layout.EVIDENCE / name).rglob(layout.RECORDS))]
        for runs in again.values():
            for run in runs:
                shutil.rmtree(directory / layout.EVIDENCE / run.id, ignore_errors=True)
        executed = [name for name in bundle.header.runs if any(name in _ids(runs) for runs in again.values())]
        resumption = Resumption(
            at=datetime.now(tz=UTC).isoformat(timespec="seconds"),
            command=described.header.command,
            executed=executed,
            cut_off=cut_off,
        )
        header = bundle.header.model_copy(update={"resumed": [*bundle.header.resumed, resumption]})
        kept = {name: digest for name, digest in journal.ended.items() if name not in executed}
        # The journal is written before the header. If the process is killed between the two, the earlier header must
        # still count as valid.
        headers = [digest_of(header_text(bundle.header)), digest_of(header_text(header))]
        noted = Journal(directory, journal.model_copy(update={"headers": headers, "ended": kept}))
        noted.write()
        final = directory.with_name(directory.name.partition(UNFINISHED_NAME)[0])
        yield (
            BundleWriter(final, header, described.contracts, described.waivers, named=False, interrupted=directory),
            noted,
        )


def _unfinished(directory: Path) -> Bundle:
    require_existing([directory])
    must_be_an_interrupted_run = "only an interrupted run directory can be resumed"
    if not (directory / layout.HEADER).is_file():
        raise UsageError(must_be_an_interrupted_run, where=str(directory), got="a folder that is not a run directory")
    if os.path.lexists(directory / layout.MANIFEST):
        raise UsageError(
            must_be_an_interrupted_run,
            where=str(directory),
            got="a complete run directory",
            remedy="read it with `harness judge`",
        )
    if not os.path.lexists(directory / layout.JOURNAL):
        got = f"no {layout.JOURNAL} in the directory, so nothing shows which of its runs had ended"
        raise UsageError(must_be_an_interrupted_run, where=str(directory), got=got, remedy=ANEW)
    return read_bundle(directory)


def _unfinished_of(final: Path) -> Iterator[Path]:
    return final.parent.glob(f"{glob.escape(final.name)}{UNFINISHED_NAME}*")


def left_unfinished(final: Path) -> Path | None:
    """Return the newest interrupted run directory for the name `final` that can be resumed, or None."""
    unfinished = [final] if (final / layout.INCOMPLETE).exists() else []
    unfinished += _unfinished_of(final)
    journals = [path / layout.JOURNAL for path in unfinished if (path / layout.JOURNAL).exists()]
    return max(journals, key=lambda path: path.stat().st_mtime).parent if journals else None


def is_made_elsewhere(directory: Path) -> bool:
    """Return True if the interrupted directory was started on another machine, with other packages, or at other
    commits."""
    begun = _unfinished(directory).header.environment
    now = environment.collect()
    if begun.redacted is not None:
        now = of_this_machine().model(now.model_copy(update={"redacted": begun.redacted}))
    return another_machine(begun, now) is not None


def as_left(directory: Path) -> tuple[Bundle, JournalFile]:
    """Return an interrupted directory and its journal.

    Raises EvidenceError if a file changed after the interruption.
    """
    bundle = _unfinished(directory)
    try:
        journal = read_journal(bundle.path)
    except Damaged as damage:
        raise _changed(bundle.path, [str(damage)]) from damage
    if digest_of((bundle.path / layout.HEADER).read_text(encoding="utf-8")) not in journal.headers:
        raise _changed(bundle.path, [f"{layout.HEADER}: changed"])
    if lines := altered(bundle):
        raise _changed(bundle.path, lines)
    if runs := changed_since(directory, journal):
        raise _changed(directory, [f"{layout.EVIDENCE}/{run}: {CHANGED}" for run in runs])
    return bundle, journal


def _refuse_another(bundle: Bundle, journal: JournalFile, described: Described) -> None:
    difference = another_header(bundle.header, described.header) or another_plan(journal, described.journal())
    if difference is not None:
        raise EvidenceError(
            "an interrupted run can be resumed only with its original settings",
            where=str(bundle.path),
            got=difference,
            remedy=ANEW,
        )


def _changed(directory: Path, lines: Sequence[str]) -> EvidenceError:
    rule = "an interrupted run can be resumed only if its files are unchanged"
    return EvidenceError(rule, where=str(directory), got="; ".join(lines[:5]), remedy=ANEW)


def _ids(runs: Sequence[Run]) -> set[str]:
    return {run.id for run in runs}

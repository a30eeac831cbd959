"""Make a run directory: start a new one, or resume an interrupted one.

A run resumes only as it was begun: with the same contracts, sources, packages, machine and options. A run that came to
its end keeps its evidence, also one whose worker died: a gate must not be retried until it passes. A run that the
interruption cut off is executed again, whole, and the header names it.
"""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from harness.devices import environment
from harness.errors import EvidenceError, UsageError
from harness.evidence import layout
from harness.evidence.files import Damaged
from harness.evidence.plan_records import Run
from harness.evidence.redaction import of_this_machine
from harness.platform.paths import require_existing
from harness.run_directory.bundle import Bundle, Header, Resumption, altered, read_bundle
from harness.run_directory.journal import (
    Journal,
    JournalFile,
    alone_in,
    changed_since,
    digest_of_each,
    is_free,
    read_journal,
)
from harness.run_directory.manifest import digest_of
from harness.run_directory.same_run import another_header, another_machine, another_plan
from harness.run_directory.writer import CHANGED, UNFINISHED_NAME, BundleWriter, header_text

if TYPE_CHECKING:
    from harness.contract.load import LoadedContract

ANEW = "run it anew, without --resume"


@dataclass(frozen=True)
class Described:
    """What a directory is made from. work: of each run that is executed itself and those that read its evidence;
    options: of the command line, by name, as far as neither header nor contracts have them.
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
    """Return the run directory, which only this process makes, and which is named `final` at its end (see
    `BundleWriter`); or the one to `resume`, which keeps its name.

    Raises UsageError or EvidenceError where that one cannot be resumed.
    """
    if resume is not None and named:
        raise UsageError("a run directory that is gone on with has its name", got="--name", remedy="leave out --name")
    return _new(described, final, named=named) if resume is None else _interrupted(described, resume)


@contextmanager
def _new(described: Described, final: Path, *, named: bool) -> Iterator[tuple[BundleWriter, Journal]]:
    writer = BundleWriter(final, described.header, described.contracts, described.waivers, named=named)
    # where nothing can be executed, there is no library for locks, and nothing to resume
    with alone_in(writer.path) if described.work else nullcontext():
        if named and described.work:
            _refuse_one_under_way(writer)
        journal = Journal(writer.path, described.journal())
        try:
            journal.write()
        except BaseException:
            shutil.rmtree(writer.path, ignore_errors=True)  # there is nothing in it yet
            raise
        yield writer, journal


def _refuse_one_under_way(writer: BundleWriter) -> None:
    """Raise UsageError where another process makes a directory for the same name, before both are at their end.

    This is asked once this directory is visible, so that of two processes at least one finds the other.
    """
    for other in sorted(_unfinished_of(writer.final)):
        if other != writer.path and not is_free(other / layout.LOCK):
            shutil.rmtree(writer.path, ignore_errors=True)  # there is nothing in it yet
            raise UsageError(
                "a run directory is written once",
                where=str(writer.final),
                got=f"another process that makes it, in {other}",
                remedy="name another directory, or wait for that one",
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
        # the header changes next; who is killed before that leaves the earlier one
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
    rule = "only a run directory that was interrupted is gone on with"
    if not (directory / layout.HEADER).is_file():
        raise UsageError(rule, where=str(directory), got="no run directory")
    if os.path.lexists(directory / layout.MANIFEST):
        raise UsageError(rule, where=str(directory), got="one that is complete", remedy="`harness judge` reads it")
    if not os.path.lexists(directory / layout.JOURNAL):
        got = f"no {layout.JOURNAL} in it, so that nothing says which of its runs came to their end"
        raise UsageError(rule, where=str(directory), got=got, remedy=ANEW)
    return read_bundle(directory)


def _unfinished_of(final: Path) -> Iterator[Path]:
    return final.parent.glob(f"{glob.escape(final.name)}{UNFINISHED_NAME}*")


def left_unfinished(final: Path) -> Path | None:
    """Return the interrupted run directory that was to become `final` and can be resumed; None where there is none."""
    unfinished = [final] if (final / layout.INCOMPLETE).exists() else []
    unfinished += _unfinished_of(final)
    journals = [path / layout.JOURNAL for path in unfinished if (path / layout.JOURNAL).exists()]
    return max(journals, key=lambda path: path.stat().st_mtime).parent if journals else None


def is_made_elsewhere(directory: Path) -> bool:
    """Return True if this machine is not the one on which the interrupted directory was begun."""
    begun = _unfinished(directory).header.environment
    now = environment.collect()
    if begun.redacted is not None:
        now = of_this_machine().model(now.model_copy(update={"redacted": begun.redacted}))
    return another_machine(begun, now) is not None


def as_left(directory: Path) -> tuple[Bundle, JournalFile]:
    """Return an interrupted directory and its journal. Raises EvidenceError where it is not as it was left."""
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
            "an interrupted run is gone on with as it was begun", where=str(bundle.path), got=difference, remedy=ANEW
        )


def _changed(directory: Path, lines: Sequence[str]) -> EvidenceError:
    rule = "an interrupted run is gone on with only as it was left"
    return EvidenceError(rule, where=str(directory), got="; ".join(lines[:5]), remedy=ANEW)


def _ids(runs: Sequence[Run]) -> set[str]:
    return {run.id for run in runs}

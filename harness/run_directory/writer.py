"""Write a run directory: under a temporary name, marked `INCOMPLETE`. It is whole only with its manifest, which is put
in place last and all at once.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from harness.errors import EvidenceError, UsageError
from harness.evidence import layout
from harness.evidence.files import half_written, make_way, own_folder, parse, remove, write_text
from harness.evidence.layout import shown
from harness.evidence.run_evidence import Death
from harness.evidence.serving import lane_folders
from harness.numbers import dump_json
from harness.platform.signals_noted import raise_if_noted
from harness.run_directory.bundle import Bundle, Header, unused
from harness.run_directory.places import Place, temporary_folder
from harness.run_directory.seal import (
    BEING_WRITTEN,
    digest_of,
    is_seen,
    listing,
    manifest_of,
    manifest_text,
    read_manifest,
    write_manifest,
)

if TYPE_CHECKING:
    from harness.contract.load import LoadedContract

UNFINISHED_NAME = ".incomplete-"  # and something at random, behind the final name
KEPT = f"kept what there is, marked {layout.INCOMPLETE}"  # as a note begins that says where
PAGES = (layout.PAGE, layout.SUMMARY, layout.JUNIT)
OWN_FILES = (layout.HEADER, layout.INCOMPLETE, layout.MANIFEST, layout.JOURNAL, layout.VERDICTS, layout.DRILL, *PAGES)
OWN_FOLDERS = (layout.CONTRACTS, f"{layout.CONTRACTS}/{layout.SHARED_FILES}", layout.WAIVERS)  # of copies
CHANGED = "changed since the run ended"
ALL_OR_NONE = nullcontext[None]()


class BundleWriter:
    """A run directory being written. `path` is where its files are now; `final` where `finish` puts it; `digest` that
    of its manifest, once there is one.
    """

    def __init__(
        self,
        final: Path,
        header: Header,
        contracts: Sequence[LoadedContract],
        waivers: Iterable[str] = (),
        *,
        named: bool = True,
        interrupted: Path | None = None,
    ) -> None:
        """Create the directory; `waivers` are the texts of waiver files.

        interrupted: an unfinished directory that is resumed instead of a new one; its pages and verdicts go away.
        Raises UsageError when `final` exists and the user `named` it; a name that the user did not choose gives way to
        an unused one.
        """
        if named and final.exists():
            raise UsageError("a run directory is written once", where=str(final), remedy="name another directory")
        self._named, final = named, final if named or final == interrupted else unused(final)
        self.final, self._header = final, header
        self._copies = {f"{layout.CONTRACTS}/{loaded.contract.id}.yaml": loaded.text for loaded in contracts}
        self._copies |= {
            f"{layout.CONTRACTS}/{layout.SHARED_FILES}/{file.digest}.yaml": file.text
            for loaded in contracts
            for file in loaded.shared
        }
        self._copies |= {f"{layout.WAIVERS}/{number}.yaml": text for number, text in enumerate(waivers, start=1)}
        self.digest: str | None = None
        if interrupted is None:
            self.path = temporary_folder(final, UNFINISHED_NAME)
            self.path.chmod(0o755)  # a report is for others to read
        else:
            self.path = interrupted
            self._remove_what_was_made_of_it()
        try:
            self.put_back()
        except BaseException:
            if interrupted is None:  # there is nothing in it yet
                shutil.rmtree(self.path, ignore_errors=True)
            raise

    def put_back(self, each: AbstractContextManager[None] = ALL_OR_NONE) -> None:
        """Write everything except evidence: at first, and again where a system may have removed or replaced it.

        each: entered for each file and folder, for a caller that wants the others written even if one fails.
        """
        above = {folder.as_posix() for name in self._copies for folder in PurePosixPath(name).parents}
        for folder in (".", *sorted({layout.CONTRACTS, layout.EVIDENCE, *above})):
            with each:
                own_folder(self.path / folder)
        for name in (layout.JOURNAL, layout.LOCK):
            with each:
                make_way(self.path / name)
        mark = "This run did not finish: what is missing from its evidence is an error.\n"
        for name, text in {layout.INCOMPLETE: mark, **self._copies, layout.HEADER: header_text(self._header)}.items():
            with each:
                make_way(self.path / name)
                write_text(self.path / name, text)

    def evidence_directory(self, run_id: str) -> Path:
        """Return the folder into which the supervisor puts the evidence of a run."""
        return self.path / layout.EVIDENCE / run_id

    def bundle(self) -> Bundle:
        """Return what there is so far, for the judges, with the header as readers get it, in the order of the file."""
        header = parse(header_text(self._header).encode("utf-8"), Header, layout.HEADER)
        return Bundle(Place(self.path, self.path, self.path), header, BEING_WRITTEN)

    def settle(self, changed: Iterable[str] = ()) -> None:
        """Remove what no run directory holds (links, devices, files without end), once no worker runs any more.

        The run that left such a file is dead; the others keep their verdicts. Anything that only has the name of one of
        the directory's own files is removed, too. changed: runs whose evidence was changed since they ended; they are
        dead, too.
        """
        self.put_back()
        self._remove_what_was_made_of_it()
        for entry in sorted((self.path / layout.EVIDENCE).iterdir()):
            settle_run(entry)
        for run in changed:
            folder = self.evidence_directory(run)
            for one in (lane_folders(folder) or [folder]) if folder.is_dir() else ():  # one that is gone is incomplete
                _write_death(one, f"its evidence was {CHANGED}")

    def finish(self) -> Path:
        """Take the final name, seal the directory, and return the final path.

        Raises EvidenceError when the name is taken, and for files that no run directory holds. Raises SystemExit where
        other code swallowed a signal: what was judged since may lack what was being imported.
        """
        raise_if_noted()
        if not self._named and self.final != self.path:  # a run that began in the same second may have ended before
            self.final = unused(self.final)
        manifest = manifest_of(self.path)
        try:
            self.path.rename(self.final)
        except OSError as error:
            raise EvidenceError(
                "a run directory is written once", where=str(self.final), got=f"it exists; this run is in {self.path}"
            ) from error
        self.path = self.final
        (self.path / layout.INCOMPLETE).unlink()
        for name in (layout.JOURNAL, layout.LOCK):
            remove(self.path / name)
        self.digest = digest_of(manifest_text(manifest))
        write_manifest(self.path, manifest)
        return self.path

    def seal_again(self) -> None:
        """Seal the finished directory with what was added to it. Raises EvidenceError if what was seen has changed."""
        sealed, _ = read_manifest(self.path)
        today = manifest_of(self.path, before=sealed)
        listed, added = today.by_path(), f"{layout.WHERE}/"
        seen = (file for file in sealed.files if is_seen(file.path) and not file.path.startswith(added))
        if any(listed.get(file.path) != file for file in seen):
            rule, got = "evidence is never rewritten", "other evidence than was sealed"
            raise EvidenceError(rule, where=str(self.path), got=got)
        self.digest = write_manifest(self.path, today)

    def abandon(self) -> Path:
        """Keep what there is, marked INCOMPLETE, under the final name if that is free; return its path.

        Verdicts and pages that were written as those of a finished run go away. It raises no OSError: a full disk has
        ended the run, and takes no mark either. Without a manifest the run counts as unfinished all the same.
        """
        each = suppress(OSError)
        if not self.path.exists():  # `finish` was cut off behind its renaming
            self.path = self.final
        with each:
            own_folder(self.path)
        self._remove_what_was_made_of_it(each)  # before anything is written: it makes room
        self.put_back(each)
        with each:
            if not self.final.exists():
                self.path.rename(self.final)
                self.path = self.final
        return self.path

    def _remove_what_was_made_of_it(self, each: AbstractContextManager[None] = ALL_OR_NONE) -> None:
        """Remove manifest, verdicts and pages, and what was being written when a process was killed."""
        of_verdicts = (layout.MANIFEST, layout.VERDICTS, layout.DRILL, layout.PROBLEMS, layout.WHERE, *PAGES)
        made = [self.path / name for name in of_verdicts]
        begun = [path for name in OWN_FILES for path in half_written(self.path, name)]
        begun += [path for folder in OWN_FOLDERS for path in half_written(self.path / folder, "*.yaml")]
        for path in (*made, *begun):
            with each:
                remove(path)


def write_problems(folder: Path, files: Mapping[str, str]) -> None:
    """Write these files, by their names, as all that the folder of problems holds; without any there is no folder."""
    place = folder / layout.PROBLEMS
    remove(place)
    if files:
        place.mkdir()
    for name, text in files.items():
        write_text(place / name, text)


def header_text(header: Header) -> str:
    """Return `run.json` as it is written."""
    return dump_json(header.model_dump(), indent=2) + "\n"


def settle_run(entry: Path) -> None:
    """Make one run's `entry` below `evidence/` fit for the seal: remove unfit files, and record each as a death."""
    only = listing(entry).unfit if entry.is_dir() and not entry.is_symlink() else {".": "no folder of its own"}
    for name, what in sorted(only.items()):
        with suppress(OSError):  # what stays is an error when the directory is sealed
            remove(entry if name == "." else entry / name)
        lane = name.partition("/")[0]
        _record_death(entry / lane if lane.startswith(layout.LANE) else entry, name, what)


def _record_death(folder: Path, name: str, what: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if not os.path.lexists(folder / layout.DEATH):
        _write_death(folder, f"it left {shown(name)}: {what}")


def _write_death(folder: Path, detail: str) -> None:
    death = Death(cause="garbage", detail=detail, phase=None, stack="")
    write_text(folder / layout.DEATH, dump_json(death.model_dump(), indent=2) + "\n")


def require_place(final: Path) -> None:
    """Make the folder that the run directory `final` comes into.

    Raises UsageError where that cannot be or lies in another run, and where the name cannot be given there.
    """
    temporary_folder(final, UNFINISHED_NAME).rmdir()

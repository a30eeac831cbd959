"""Write a run directory under a temporary name, with the mark `INCOMPLETE`.

The directory is complete only with its manifest. The manifest is the last file, written completely or not at all.
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

# The part of an unfinished directory's name that stands between the final name and random characters.
UNFINISHED_NAME = ".incomplete-"
# First words of a note that names the unfinished directory.
KEPT = f"kept the evidence so far, marked {layout.INCOMPLETE}"
PAGES = (layout.PAGE, layout.SUMMARY, layout.JUNIT)
OWN_FILES = (layout.HEADER, layout.INCOMPLETE, layout.MANIFEST, layout.JOURNAL, layout.VERDICTS, layout.DRILL, *PAGES)
# the folders that contain copies of contracts and waivers
OWN_FOLDERS = (layout.CONTRACTS, f"{layout.CONTRACTS}/{layout.SHARED_FILES}", layout.WAIVERS)
CHANGED = "changed since the run ended"
ALL_OR_NONE = nullcontext[None]()


class BundleWriter:
    """A run directory that is being written. path: its current path; final: its path after `finish`.

    digest: the digest of its manifest, or None if it has no manifest yet.
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
        """Create the directory. waivers: the texts of waiver files.

        interrupted: an unfinished directory to use instead of a new one. Its pages and verdicts are removed.
        named: True if the user chose the name `final`. An existing `final` then raises UsageError. Otherwise a free
        name is chosen.
        """
        if named and final.exists():
            raise UsageError(
                "a run directory can be written only once", where=str(final), remedy="name another directory"
            )
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
            self.path.chmod(0o755)  # other users must be able to read a report
        else:
            self.path = interrupted
            self._remove_what_was_made_of_it()
        try:
            self.put_back()
        except BaseException:
            if interrupted is None:  # a new directory has no evidence yet, so remove it
                shutil.rmtree(self.path, ignore_errors=True)
            raise

    def put_back(self, each: AbstractContextManager[None] = ALL_OR_NONE) -> None:
        """Write everything except the evidence. Call this method again if a trainer may have removed or replaced files.

        each: a context manager that is entered for each file or folder, for example to suppress errors.
        """
        above = {folder.as_posix() for name in self._copies for folder in PurePosixPath(name).parents}
        for folder in (".", *sorted({layout.CONTRACTS, layout.EVIDENCE, *above})):
            with each:
                own_folder(self.path / folder)
        for name in (layout.JOURNAL, layout.LOCK):
            with each:
                make_way(self.path / name)
        mark = "This run did not finish: everything missing from its evidence is an error.\n"
        for name, text in {layout.INCOMPLETE: mark, **self._copies, layout.HEADER: header_text(self._header)}.items():
            with each:
                make_way(self.path / name)
                write_text(self.path / name, text)

    def evidence_directory(self, run_id: str) -> Path:
        """Return the folder in which the supervisor stores the evidence of a run."""
        return self.path / layout.EVIDENCE / run_id

    def bundle(self) -> Bundle:
        """Return the current content of the directory for the judges.

        The header is parsed from its text, so that judges see the same header as later readers of the directory.
        """
        header = parse(header_text(self._header).encode("utf-8"), Header, layout.HEADER)
        return Bundle(Place(self.path, self.path, self.path), header, BEING_WRITTEN)

    def settle(self, changed: Iterable[str] = ()) -> None:
        """Remove what a run directory must not contain (links, devices, large files). Call this while no worker runs.

        A run that left such a file gets a death record, so that it proves nothing. Other runs keep their verdicts. A
        file or folder that occupies the name of one of the directory's own files is removed, too. changed: runs whose
        evidence was changed after they ended. They also get a death record.
        """
        self.put_back()
        self._remove_what_was_made_of_it()
        for entry in sorted((self.path / layout.EVIDENCE).iterdir()):
            settle_run(entry)
        for run in changed:
            folder = self.evidence_directory(run)
            # A run without a folder counts as dead with the cause `incomplete`, so it needs no death record.
            for one in (lane_folders(folder) or [folder]) if folder.is_dir() else ():
                _write_death(one, f"its evidence was {CHANGED}")

    def finish(self) -> Path:
        """Rename the directory to its final name, seal it, and return the final path.

        Raises EvidenceError if the name is taken, or for files that a run directory must not contain. Raises SystemExit
        if other code suppressed a signal that asked the process to end, because modules may then be only partly
        imported.
        """
        raise_if_noted()
        # Another run that started in the same second may have taken the name.
        if not self._named and self.final != self.path:
            self.final = unused(self.final)
        manifest = manifest_of(self.path)
        try:
            self.path.rename(self.final)
        except OSError as error:
            raise EvidenceError(
                "a run directory can be written only once",
                where=str(self.final),
                got=f"the directory already exists; this run is in {self.path}",
            ) from error
        self.path = self.final
        (self.path / layout.INCOMPLETE).unlink()
        for name in (layout.JOURNAL, layout.LOCK):
            remove(self.path / name)
        self.digest = digest_of(manifest_text(manifest))
        write_manifest(self.path, manifest)
        return self.path

    def seal_again(self) -> None:
        """Seal the finished directory again after files were added. Raises EvidenceError if sealed evidence changed."""
        sealed, _ = read_manifest(self.path)
        today = manifest_of(self.path, before=sealed)
        listed, added = today.by_path(), f"{layout.WHERE}/"
        seen = (file for file in sealed.files if is_seen(file.path) and not file.path.startswith(added))
        if any(listed.get(file.path) != file for file in seen):
            rule, got = "evidence must not be rewritten", "evidence that differs from the sealed evidence"
            raise EvidenceError(rule, where=str(self.path), got=got)
        self.digest = write_manifest(self.path, today)

    def abandon(self) -> Path:
        """Keep the unfinished directory with the mark INCOMPLETE, under the final name if this name is free. Return its
        path.

        Verdicts and pages of a finished run are removed. The method never raises OSError. If the run ended because the
        disk is full, the mark may not be written either. A run without a manifest counts as unfinished even without the
        mark.
        """
        each = suppress(OSError)
        if not self.path.exists():  # `finish` was interrupted after it had renamed the directory
            self.path = self.final
        with each:
            own_folder(self.path)
        # Remove these files before anything is written, because that frees disk space.
        self._remove_what_was_made_of_it(each)
        self.put_back(each)
        with each:
            if not self.final.exists():
                self.path.rename(self.final)
                self.path = self.final
        return self.path

    def _remove_what_was_made_of_it(self, each: AbstractContextManager[None] = ALL_OR_NONE) -> None:
        """Remove everything that was computed from the evidence (manifest, verdicts, pages), and partial files that
        killed processes left."""
        of_verdicts = (layout.MANIFEST, layout.VERDICTS, layout.DRILL, layout.PROBLEMS, layout.WHERE, *PAGES)
        made = [self.path / name for name in of_verdicts]
        begun = [path for name in OWN_FILES for path in half_written(self.path, name)]
        begun += [path for folder in OWN_FOLDERS for path in half_written(self.path / folder, "*.yaml")]
        for path in (*made, *begun):
            with each:
                remove(path)


def write_problems(folder: Path, files: Mapping[str, str]) -> None:
    """Replace the content of the folder of problems by these files. If there are no files, remove the folder.

    files: texts by file name.
    """
    place = folder / layout.PROBLEMS
    remove(place)
    if files:
        place.mkdir()
    for name, text in files.items():
        write_text(place / name, text)


def header_text(header: Header) -> str:
    """Return the text of `run.json`."""
    return dump_json(header.model_dump(), indent=2) + "\n"


def settle_run(entry: Path) -> None:
    """Prepare `entry`, a run's folder in `evidence/`, for the seal.

    Remove files that a run directory must not contain. A worker that left such a file gets a death record.
    """
    only = listing(entry).unfit if entry.is_dir() and not entry.is_symlink() else {".": "an entry that is not a folder"}
    for name, what in sorted(only.items()):
        with suppress(OSError):  # A file that cannot be removed here is reported when the directory is sealed.
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
    """Create the parent folder of the run directory `final`.

    Raises UsageError if this fails, if the folder is inside another run, or if the name cannot be used there.
    """
    temporary_folder(final, UNFINISHED_NAME).rmdir()

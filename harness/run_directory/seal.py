"""Check that a run directory is whole: it has its manifest, and everything in it is as the manifest lists it."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from harness.errors import EvidenceError
from harness.evidence import layout
from harness.evidence.files import Damaged, write_text
from harness.evidence.layout import shown
from harness.run_directory.manifest import (
    ListedFile,
    Listing,
    Manifest,
    digest_of,
    is_seen,
    listed_file,
    listing,
    manifest_text,
    read_manifest,
    seen_digest,
)
from harness.run_directory.places import Place

UNFINISHED = "the run did not finish, or its manifest.json was taken away"
UNSEALED = "the run has no manifest.json; `harness judge --write` seals what is of before there were any"


@dataclass(frozen=True)
class Seal:
    """What was found of a directory's manifest.

    manifest, digest: None where there is none to go by; within: the one that lists header and evidence, in a published
    folder that in its archive; missing: why there is none, in words; differences: what is not as listed, by its name.
    """

    manifest: Manifest | None = None
    digest: str | None = None
    within: Manifest | None = None
    missing: str = ""
    differences: tuple[tuple[str, str], ...] = ()

    @property
    def whole(self) -> bool:
        return not self.missing and not self.differences

    def lines(self) -> list[str]:
        """Return one line for each difference."""
        return [f"{name}: {what}" for name, what in self.differences]


BEING_WRITTEN = Seal()  # in the hands of its writer: nothing is listed yet, and nothing can differ


def seal_of(place: Place, *, before_manifests: bool) -> Seal:
    """Compare a directory with its manifest, and a published one also with the manifest in its archive.

    before_manifests: True if its header's version had no manifests, so that nothing shows whether the run finished.
    """
    if any(os.path.lexists(folder / layout.INCOMPLETE) for folder in (place.root, place.derived)):
        return Seal(missing=UNFINISHED)
    if not os.path.lexists(place.derived / layout.MANIFEST):
        return Seal(missing=UNSEALED if before_manifests else UNFINISHED)
    try:
        manifest, digest = read_manifest(place.derived)
    except Damaged as damage:
        return Seal(differences=((layout.MANIFEST, str(damage)),))
    found = list(differences(place.derived, manifest))
    within = manifest
    if place.published and (before_manifests is False or os.path.lexists(place.root / layout.MANIFEST)):
        try:
            within, _ = read_manifest(place.root)
        except Damaged as damage:
            found.append((f"{layout.ARCHIVE}/{layout.MANIFEST}", str(damage)))
        else:
            found += differences(place.root, within)
    elif place.published:
        within = manifest_of(place.root)
    if not found and manifest.seen != seen_digest(within.files, within.folders):
        found.append((layout.MANIFEST, "is of other evidence than lies here"))
    return Seal(manifest, digest, within, differences=tuple(found))


def differences(folder: Path, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yield everything in a folder that is not as its manifest lists it, by name. Only files of listed size are hashed.

    A listed folder without a file may be missing: it holds no facts, and artifacts of CI systems do not keep it.
    """
    found = listing(folder, leave_out=(layout.MANIFEST,))
    yield from ((shown(name), what) for name, what in sorted(found.unfit.items()))
    listed, folders = manifest.by_path(), set(manifest.folders)
    for name in sorted({*listed, *folders} - (empty_folders(manifest) - set(found.files))):
        if not _is_below(name, found.unfit) and (what := _difference(folder, name, listed.get(name), found)):
            yield shown(name), what
    for name in sorted({*found.files, *found.folders} - {*listed, *folders}):
        yield shown(name), "not recorded with the run"


def _is_below(name: str, unfit: Collection[str]) -> bool:
    """Return True if a name, or a folder that it lies in, is reported already."""
    parts = name.split("/")
    return any("/".join(parts[:length]) in unfit for length in range(1, len(parts) + 1))


def _difference(folder: Path, name: str, listed: ListedFile | None, found: Listing) -> str | None:
    """Return how a file, or a folder (`listed` None), differs from what it should be; None where it does not."""
    if listed is None:
        return None if name in found.folders else "a file in place of a folder" if name in found.files else "missing"
    if name not in found.files:
        return "a folder in place of a file" if name in found.folders else "missing"
    if found.files[name] != listed.size:
        return f"changed: {found.files[name]} bytes, {listed.size} were recorded"
    try:
        return None if listed_file(folder, name) == listed else "changed"
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def empty_folders(manifest: Manifest) -> set[str]:
    """Return the folders that a manifest lists without any file in them."""
    above = {str(folder) for file in manifest.files for folder in PurePosixPath(file.path).parents}
    return set(manifest.folders) - above


def manifest_of(
    folder: Path, only: Callable[[str], bool] = lambda _name: True, before: Manifest | None = None
) -> Manifest:
    """Return the manifest of a folder as it is now, with the paths that `only` accepts.

    before: the folder's earlier manifest; its empty folders stay listed, even where they are missing now.

    Raises EvidenceError for files that no run directory holds.
    """
    found = listing(folder, leave_out=(layout.MANIFEST, layout.INCOMPLETE, layout.JOURNAL, layout.LOCK))
    if found.unfit:
        name, what = min(found.unfit.items())
        got = f"{shown(name)}: {what}"
        raise EvidenceError("a run directory holds plain files and folders", where=str(folder), got=got)
    files = [listed_file(folder, name) for name in sorted(found.files) if only(name)]
    still_listed = empty_folders(before) - set(files) if before is not None else set()
    folders = sorted(name for name in found.folders | still_listed if only(name))
    return Manifest(files=files, folders=folders, seen=seen_digest(files, folders))


def write_manifest(folder: Path, manifest: Manifest) -> str:
    """Put the manifest in place, all at once, and return its digest."""
    text = manifest_text(manifest)
    write_text(folder / layout.MANIFEST, text)
    return digest_of(text)


def seal_anew(place: Place, seal: Seal) -> None:
    """Seal a directory whose pages and verdicts were written anew; where nothing changed the manifest stays.

    Raises EvidenceError where the evidence is not what was sealed.
    """
    folder = place.writable()
    before = seal.manifest
    today = manifest_of(folder, before=before)
    if place.published:
        today = today.model_copy(update={"seen": manifest_of(place.root, only=is_seen, before=seal.within).seen})
    if before is not None and before.seen != today.seen:
        raise EvidenceError("evidence is never rewritten", where=str(place.named), got="other evidence than was sealed")
    if before is None or today != before.model_copy(update={"replaces": None}):
        write_manifest(folder, today.model_copy(update={"replaces": seal.digest}))

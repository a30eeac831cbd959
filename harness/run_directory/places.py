"""Find where a run can be read: a folder, an archive of one, or a published folder with its archive next to its pages.

    report.html  summary.md  verdicts.json  (drill.json)  run.tar.xz  manifest.json

The archive holds what was seen (`run.json`, `contracts/`, `waivers/`, `evidence/`) with a manifest of its own. The
files next to it hold what follows from that.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from harness.errors import EvidenceError, UsageError
from harness.evidence import layout
from harness.evidence.layout import shown
from harness.platform.paths import require_existing
from harness.run_directory.archive import SUFFIXES, is_archive, unpack

_RULE = "evidence is read from a run directory or an archive of one"


@dataclass(frozen=True)
class Place:
    """Where the parts of a run lie. `temporary` is the folder to remove once nothing reads it any more."""

    named: Path  # as the caller named it: what messages and pages show
    root: Path  # holds `run.json`, `contracts/`, `waivers/`, `evidence/`
    derived: Path  # holds `verdicts.json`, `drill.json`, the pages, and the manifest that is the run's
    temporary: Path | None = None

    @property
    def published(self) -> bool:
        """Return True for a folder with its evidence in an archive."""
        return self.derived == self.named and self.temporary is not None

    def shown(self, text: str) -> str:
        """Return a message with the path that the caller named instead of the temporary folder."""
        return text.replace(str(self.root), str(self.named))

    def writable(self) -> Path:
        """Return the folder in which verdicts and pages are replaced. Raises UsageError for an archive alone."""
        if self.derived != self.named:
            raise UsageError(
                "verdicts and pages are written into a folder, never into an archive",
                where=str(self.named),
                got="an archive",
                remedy="unpack it and name the folder",
            )
        return self.derived


def place_of(path: Path) -> Place:
    """Find a run, unpacking it where it is archived. Raises UsageError where there is nothing, EvidenceError where the
    run is refused."""
    archive = path / layout.ARCHIVE
    if path.is_dir() and not (archive.exists() or archive.is_symlink()):
        return Place(path, path, path)
    if path.is_dir():
        _refuse_ambiguous(path)
        return _unpacked(path, archive, derived=path)
    require_existing([path])
    if not is_archive(path):
        raise EvidenceError(
            _RULE,
            where=str(path),
            got="a file",
            remedy=f"name a folder, or a file that ends in {', '.join(SUFFIXES)}",
        )
    return _unpacked(path, path, derived=None)


def runs_in(folder: Path) -> list[Path]:
    """Return the runs directly in a folder, by name: folders, published folders, archives."""
    found = [path.parent for name in (layout.HEADER, layout.ARCHIVE) for path in folder.glob(f"*/{name}")]
    archives = [path for path in folder.glob("*") if path.is_file() and is_archive(path)]
    return sorted({*found, *archives})


def runs_below(folder: Path) -> list[Path]:
    """Return the runs in a folder or in folders within, by name. A run is not searched for other runs."""
    found = runs_in(folder)
    for inside in sorted(folder.iterdir()):
        if inside.is_dir() and not inside.is_symlink() and inside not in found:
            found += runs_below(inside)
    return sorted(found)


def recorded_before(folder: Path) -> list[Path]:
    """Return the runs below a folder, the newest name first; none if it is missing or cannot be read."""
    try:
        found = runs_below(folder) if folder.is_dir() else []
    except OSError:
        return []
    return sorted(found, key=lambda run: run.name, reverse=True)


def _refuse_ambiguous(path: Path) -> None:
    both = [name for name in layout.SEEN if os.path.lexists(path / name)]
    if both or (path / layout.ARCHIVE).is_symlink():
        got = f"{both[0]} beside it" if both else "a link"
        raise EvidenceError(
            f"a published run has its evidence in {layout.ARCHIVE} alone",
            where=str(path),
            got=got,
            remedy=f"take away one of them, or name {path / layout.ARCHIVE}",
        )


def _unpacked(named: Path, archive: Path, derived: Path | None) -> Place:
    temporary = Path(tempfile.mkdtemp(prefix="harness-run-"))
    try:
        unpack(archive, temporary)
        root = _root(temporary, archive)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return Place(named, root, derived or root, temporary)


def _root(folder: Path, archive: Path) -> Path:
    """Return the run directory among unpacked files: the folder itself, or the only folder in it."""
    inside = sorted(folder.iterdir())
    runs = [path for path in inside if path.is_dir() and (path / layout.HEADER).exists()]
    if (folder / layout.HEADER).exists() or not runs:
        return folder
    if len(inside) > 1:
        other = next(path.name for path in inside if path != runs[0])
        raise EvidenceError(
            "an archive of a run holds that run alone",
            where=str(archive),
            got=f"{shown(other)} beside {shown(runs[0].name)}",
        )
    return runs[0]

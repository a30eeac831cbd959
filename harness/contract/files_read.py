"""Remember the files of contracts and waivers as they were before user code ran, and refuse a later change."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.contract.load import LoadedContract
from harness.contract.shared import files_of_folder, real
from harness.contract.waivers import files_beside
from harness.errors import EvidenceError

ANEW = "put it back as it was, see what wrote it, and run again"
# behind the last run of a directory that is kept
RESUME = "nothing is lost: put it back as it was, see what wrote it, and resume with `--resume RUN_DIR`"
# behind the last shard
JUDGE = "the shards are kept: put it back as it was, see what wrote it, and `harness judge --contracts PATH` them"


@dataclass(frozen=True)
class FilesRead:
    """Every file that decides what is demanded, with the SHA-256 of its bytes."""

    paths: Sequence[Path]
    waivers: Path | None
    shared: frozenset[Path]
    digests: dict[Path, str]

    @classmethod
    def of(cls, paths: Sequence[Path], waivers: Path | None, contracts: Sequence[LoadedContract]) -> FilesRead:
        """Return the files as they are now, before any code of the project runs."""
        shared = frozenset(Path(file.document.where) for one in contracts for file in one.shared)
        return cls(paths, waivers, shared, _digests(paths, waivers, shared))

    def require_unchanged(self, remedy: str = ANEW) -> None:
        """Raise EvidenceError that names a file which was changed, added or removed since, with this remedy."""
        now = _digests(self.paths, self.waivers, self.shared)
        changed = sorted(path for path in self.digests.keys() | now.keys() if self.digests.get(path) != now.get(path))
        if changed:
            first = changed[0]
            how = "added" if first not in self.digests else "changed" if first in now else "removed"
            raise EvidenceError(
                "contracts and waivers stay as they were read until the command ends",
                where=str(first),
                got=f"{how} while code of the project ran",
                remedy=remedy,
            )


def _digests(paths: Sequence[Path], waivers: Path | None, shared: frozenset[Path]) -> dict[Path, str]:
    files = {*paths, *shared, *([waivers] if waivers is not None else ())}
    for path in paths:
        if path.is_dir():
            found = files_of_folder(path)
            files |= {*found.contracts, *found.waivers, *found.shared}
        else:
            files.update(files_beside(path))
    return {file: hashlib.sha256(file.read_bytes()).hexdigest() for file in map(real, files) if file.is_file()}

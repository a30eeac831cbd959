"""Read waivers. With a waiver, an owner accepts until a date that a unit is violated, or that its ratio of speeds is
undecided.

    schema: waivers/v1
    waivers:
      - contract: my-step-v1
        claim: MY-003
        workload: smoke
        owner: kim@example.org
        reason: The ratio is 1.08 since the driver update; issue 17.
        expires: 2026-12-31            # the last day on which the waiver is valid, UTC

A waived unit is still run and judged. The digests of contract files and waiver files are recorded before user code
runs. If such a file changes later, the command ends with an error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from harness.contract.load import LoadedContract
from harness.contract.schema import AnyClaim
from harness.contract.shared import WAIVERS_FILE, files_of_folder, real
from harness.contract.signed_entries import Signed, files_beside, find, load
from harness.contract.strict_yaml import nearest
from harness.errors import EvidenceError
from harness.platform.paths import require_existing


@dataclass(frozen=True, kw_only=True)
class Waiver(Signed):
    """A person's acceptance, until a date, that one unit is violated or that its ratio of speeds is undecided."""

    FILE: ClassVar = WAIVERS_FILE
    SCHEMA: ClassVar = "waivers/v1"
    KEY: ClassVar = "waivers"
    A: ClassVar = "a waiver"
    SUBJECT: ClassVar = "unit"
    RULE: ClassVar = "a waiver must name a unit that a contract plans"
    ABOUT: ClassVar = ("contract", "claim", "workload")
    FIELDS: ClassVar = (*ABOUT, "owner", "reason", "expires")

    workload: str
    owner: str

    def misfit(self, claim: AnyClaim) -> tuple[str, str] | None:
        if self.workload in claim.judged_on:
            return None
        return f"workload '{self.workload}'", nearest(self.workload, claim.judged_on)


def find_waivers(paths: Sequence[Path], file: Path | None = None) -> list[Waiver]:
    """Return the waivers in `file`. Without `file`, return the waivers below the folders in `paths`, and those next to
    the contract files in `paths`.

    Raises ContractErrors. Raises UsageError if `file` does not exist.
    """
    if file is not None:
        require_existing([file])
        return load_waivers(file)
    return find(Waiver, paths)


def load_waivers(path: Path) -> list[Waiver]:
    """Return the waivers of one file. Raises ContractErrors with every error and its place."""
    return load(path, Waiver)


ANEW = "undo the change, find what made it, and run again"
# the remedy if a contract or waiver file changed during a command whose run directory is kept
RESUME = "nothing is lost: undo the change, find what made it, and resume with `--resume RUN_DIR`"
# the remedy if such a file changed while several jobs ran shards (parts of a gate)
JUDGE = (
    "the shards are kept: undo the change, find what made it, and judge the shards with `harness judge "
    "--contracts PATH`"
)


@dataclass(frozen=True)
class FilesRead:
    """Every file that determines how a run must be judged, with the SHA-256 of the file's bytes."""

    paths: Sequence[Path]
    waivers: Path | None
    shared: frozenset[Path]
    digests: dict[Path, str]

    @classmethod
    def of(cls, paths: Sequence[Path], waivers: Path | None, contracts: Sequence[LoadedContract]) -> FilesRead:
        """Record the current content of the files. Call this function before any code of the project runs."""
        shared = frozenset(Path(file.document.where) for one in contracts for file in one.shared)
        return cls(paths, waivers, shared, _digests(paths, waivers, shared))

    def require_unchanged(self, remedy: str = ANEW) -> None:
        """Raise EvidenceError with this remedy if a file was changed, added or removed since `of` recorded them."""
        now = _digests(self.paths, self.waivers, self.shared)
        changed = sorted(path for path in self.digests.keys() | now.keys() if self.digests.get(path) != now.get(path))
        if changed:
            first = changed[0]
            how = "added" if first not in self.digests else "changed" if first in now else "removed"
            raise EvidenceError(
                "contracts, waivers and accepted baselines must not change until the command ends",
                where=str(first),
                got=f"a file that was {how} while code of the project ran",
                remedy=remedy,
            )


def _digests(paths: Sequence[Path], waivers: Path | None, shared: frozenset[Path]) -> dict[Path, str]:
    files = {*paths, *shared, *([waivers] if waivers is not None else ())}
    for path in paths:
        if path.is_dir():
            found = files_of_folder(path)
            files |= {*found.contracts, *found.signed, *found.shared}
        else:
            files.update(files_beside(path))
    return {file: hashlib.sha256(file.read_bytes()).hexdigest() for file in map(real, files) if file.is_file()}

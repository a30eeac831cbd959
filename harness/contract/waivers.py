"""Read waivers. An owner accepts a unit's known violation or undecided ratio until a date. The unit still runs.

schema: waivers/v1
waivers:
  - contract: my-step-v1
    claim: MY-003
    workload: smoke
    owner: kim@example.org
    reason: The ratio is 1.08 since the driver update; issue 17.
    expires: 2026-12-31            # the last day on which it holds, UTC

Digests of contract and waiver files are recorded before user code runs. A later change is an error.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from harness.contract import strict_yaml
from harness.contract.base import says_something
from harness.contract.load import LoadedContract
from harness.contract.shared import files_of_folder, is_waiver_file, real
from harness.contract.strict_yaml import Document, nearest
from harness.errors import ContractError, ContractErrors, EvidenceError
from harness.platform.paths import require_existing

SCHEMA = "waivers/v1"
UNIT = ("contract", "claim", "workload")
FIELDS = (*UNIT, "owner", "reason", "expires")
_LONGEST = 1000  # largest number of characters of a field
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


@dataclass(frozen=True)
class Waiver:
    """One waiver. where: its `file:line:column`. file_text: the text of the whole file that contains the waiver."""

    contract: str
    claim: str
    workload: str
    owner: str
    reason: str
    expires: date
    where: str
    file_text: str = field(repr=False)

    def expired(self, day: date) -> bool:
        """Return True if `day` is after the waiver's last day. day: the day on which a run starts (UTC)."""
        return day > self.expires

    def record(self, day: date) -> dict[str, Any]:
        """Return the waiver's entry in `run.json` for a run that starts on `day`."""
        said = {name: str(getattr(self, name)) for name in FIELDS}
        return {**said, "expired": self.expired(day)}


def find_waivers(paths: Sequence[Path], file: Path | None = None) -> list[Waiver]:
    """Return the waivers of `file`. Without `file`, return those of the waiver files in and next to `paths`.

    Waiver files are searched for below each folder of `paths`, and next to each file. Raises ContractErrors, and
    UsageError for a `file` that does not exist.
    """
    if file is not None:
        require_existing([file])
        return load_waivers(file)
    found: dict[Path, Path] = {}
    for path in paths:
        files = files_of_folder(path).waivers if path.is_dir() else files_beside(path)
        for waivers in files:
            found.setdefault(real(waivers), waivers)
    signed = [waiver for each in found.values() for waiver in load_waivers(each)]
    if errors := list(_second(signed)):
        raise ContractErrors(errors)
    return signed


def files_beside(contract: Path) -> list[Path]:
    """Return the waiver files in the folder of a contract's file."""
    if not contract.parent.is_dir():
        return []
    return sorted(path for path in contract.parent.iterdir() if path.is_file() and is_waiver_file(path))


def load_waivers(path: Path) -> list[Waiver]:
    """Return the waivers of one file. Raises ContractErrors with every error and its place."""
    document = strict_yaml.read(path, "a waiver file")
    errors: list[ContractError] = []
    waivers = [waiver for index in _entries(document, errors) if (waiver := _waiver(document, index, errors))]
    errors += _second(waivers)
    if errors:
        raise ContractErrors(document.cut(errors, len(errors)))
    return waivers


def _second(waivers: Sequence[Waiver]) -> Iterator[ContractError]:
    """Yield an error for each second waiver of the same unit, because it would be unclear which expiry date holds."""
    first: dict[tuple[str, ...], Waiver] = {}
    for waiver in waivers:
        known = first.setdefault((waiver.contract, waiver.claim, waiver.workload), waiver)
        if known is not waiver:
            remedy = f"keep one: {known.where} already waives this unit"
            yield ContractError("a unit must have only one waiver", where=waiver.where, got="a second", remedy=remedy)


def _entries(document: Document, errors: list[ContractError]) -> range:
    value = document.value
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        errors.append(document.error((), f"a waiver file must begin with `schema: {SCHEMA}`", remedy="add it"))
        return range(0)
    errors += [
        document.error((key,), "unknown key", got=f"'{key}'", remedy=nearest(key, ("waivers",)), of_key=True)
        for key in value
        if key not in {"schema", "waivers"}
    ]
    if not isinstance(value.get("waivers"), list):
        errors.append(document.error(("waivers",), "'waivers' must be a list", remedy="write one entry for each unit"))
        return range(0)
    return range(len(value["waivers"]))


def _waiver(document: Document, index: int, errors: list[ContractError]) -> Waiver | None:
    """Return one entry of the file as a waiver. If the entry is invalid, add its errors to `errors` and return None."""
    place = ("waivers", index)
    entry = document.value["waivers"][index]
    if not isinstance(entry, dict):
        errors.append(document.error(place, "a waiver must be a mapping", remedy=f"write the keys {', '.join(FIELDS)}"))
        return None
    found = list(_problems(document, place, entry))
    errors += found
    if found:
        return None
    line, column = document.position(place)
    texts = {name: entry[name] for name in FIELDS if name != "expires"}
    where = f"{document.where}:{line}:{column}"
    return Waiver(**texts, expires=date.fromisoformat(entry["expires"]), where=where, file_text=document.text)


def _problems(document: Document, place: tuple[str, int], entry: Mapping[str, Any]) -> Iterator[ContractError]:
    for number, key in enumerate(entry):
        if key not in FIELDS:
            # later errors are not shown, so they need no suggestion
            remedy = nearest(key, FIELDS) if number < strict_yaml.MOST_ERRORS else ""
            yield document.error((*place, key), "unknown key", got=f"'{key}'", remedy=remedy, of_key=True)
    for name in FIELDS:
        text = entry.get(name)
        if name not in entry:
            yield document.error(place, f"a waiver must have the key '{name}'", got="none", remedy="add it")
        elif not isinstance(text, str) or not says_something(text) or len(text) > _LONGEST:
            rule = f"'{name}' must be a text of 1 to {_LONGEST} characters that has a letter or a digit"
            yield document.error((*place, name), rule)
        elif name == "expires" and not _is_date(text):
            yield document.error((*place, name), "'expires' must be a day, YYYY-MM-DD", got=f"'{text}'")


def _is_date(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return _DATE.fullmatch(text) is not None


def expired_on(day: date, waivers: Sequence[Waiver]) -> list[tuple[str, str]]:
    """Return, for each waiver that expired before `day` (UTC), its place and a message with the remedy."""
    return [
        (
            waiver.where,
            f"the waiver of {waiver.claim} on {waiver.workload} was valid until {waiver.expires}: renew or remove it",
        )
        for waiver in waivers
        if waiver.expired(day)
    ]


def unmatched(
    waivers: Sequence[Waiver], contracts: Sequence[LoadedContract], *, all_known: bool
) -> list[ContractError]:
    """Return an error for each waiver that names no unit. all_known: True if an unknown contract is an error too."""
    errors = []
    for waiver in waivers:
        problem = _missing(waiver, contracts, all_known=all_known)
        if problem:
            got, remedy = problem
            rule = "a waiver must name a unit that a contract plans"
            errors.append(ContractError(rule, where=waiver.where, got=got, remedy=f"{remedy}; or remove the waiver"))
    return errors


def _missing(waiver: Waiver, contracts: Sequence[LoadedContract], *, all_known: bool) -> tuple[str, str] | None:
    """Return the part of the waived unit that does not exist, with a hint of near names; None if the unit exists."""
    known = {loaded.contract.id: loaded.contract for loaded in contracts}
    contract = known.get(waiver.contract)
    if contract is None:
        return (f"contract '{waiver.contract}'", nearest(waiver.contract, known)) if all_known else None
    claim = next((claim for claim in contract.claims if claim.id == waiver.claim), None)
    if claim is None:
        return f"claim '{waiver.claim}'", nearest(waiver.claim, [claim.id for claim in contract.claims])
    if waiver.workload not in claim.judged_on:
        return f"workload '{waiver.workload}'", nearest(waiver.workload, claim.judged_on)
    return None


ANEW = "restore the file, find what wrote it, and run again"
# the remedy after the last run, in a directory that is kept
RESUME = "nothing is lost: restore the file, find what wrote it, and resume with `--resume RUN_DIR`"
# the remedy after the last shard
JUDGE = (
    "the shards are kept: restore the file, find what wrote it, and judge the shards with `harness judge "
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
        """Record the files' present content. Call this before any code of the project runs."""
        shared = frozenset(Path(file.document.where) for one in contracts for file in one.shared)
        return cls(paths, waivers, shared, _digests(paths, waivers, shared))

    def require_unchanged(self, remedy: str = ANEW) -> None:
        """Raise EvidenceError, with this remedy, if a file was changed, added or removed after it was recorded."""
        now = _digests(self.paths, self.waivers, self.shared)
        changed = sorted(path for path in self.digests.keys() | now.keys() if self.digests.get(path) != now.get(path))
        if changed:
            first = changed[0]
            how = "added" if first not in self.digests else "changed" if first in now else "removed"
            raise EvidenceError(
                "contracts and waivers must not change until the command ends",
                where=str(first),
                got=f"a file that was {how} while code of the project ran",
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

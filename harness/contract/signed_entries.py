"""Read files of signed entries, which lie next to contracts: waivers and accepted baselines.

A signed entry is the statement of a named person about a claim, with the last day on which the statement is valid. A
file has a `schema` and one list of entries. Every entry has all fields of its class, and all fields are texts. Two
entries about the same claim or unit are an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from harness.contract import strict_yaml
from harness.contract.base import says_something
from harness.contract.load import LoadedContract
from harness.contract.schema import AnyClaim
from harness.contract.shared import files_of_folder, is_signed_file, real
from harness.contract.strict_yaml import Document, nearest
from harness.errors import ContractError, ContractErrors

_LONGEST = 1000  # largest number of characters of a field


@dataclass(frozen=True, kw_only=True)
class Signed:
    """A statement of a named person (a waiver or an accepted baseline). where: `file:line:column` of the entry.
    file_text: the text of the whole file."""

    FILE: ClassVar[str]  # the name of files with entries of this class
    SCHEMA: ClassVar[str]
    KEY: ClassVar[str]  # the key of the list in the file
    A: ClassVar[str]  # the name of an entry in messages, with its article: "a waiver"
    SUBJECT: ClassVar[str]  # one word for what an entry is about, such as "unit"
    RULE: ClassVar[str]  # what an entry must name, as a sentence for messages
    ABOUT: ClassVar[tuple[str, ...]]  # the fields that name the subject; there may be only one entry about each subject
    FIELDS: ClassVar[tuple[str, ...]]

    contract: str
    claim: str
    reason: str
    expires: date
    where: str
    file_text: str = field(repr=False)

    def expired(self, day: date) -> bool:
        """Return True if `day`, the day (UTC) on which a run starts, is after the entry's last valid day."""
        return day > self.expires

    def record(self, day: date) -> dict[str, Any]:
        """Return the entry's fields, as `run.json` records them for a run that starts on `day`."""
        return {**{name: str(getattr(self, name)) for name in self.FIELDS}, "expired": self.expired(day)}

    def misfit(self, claim: AnyClaim) -> tuple[str, str] | None:
        """Return why the entry is wrong for this claim, and a remedy. Return None if the entry fits the claim."""
        raise NotImplementedError


S = TypeVar("S", bound=Signed)


def find(kind: type[S], paths: Sequence[Path]) -> list[S]:
    """Return the entries of all files below the folders in `paths`, and of all files next to the contract files in
    `paths`. Raises ContractErrors."""
    found: dict[Path, Path] = {}
    for path in paths:
        for file in files_of_folder(path).signed if path.is_dir() else files_beside(path):
            if is_signed_file(file, kind.FILE):
                found.setdefault(real(file), file)
    signed = [entry for file in found.values() for entry in load(file, kind)]
    if errors := list(_second(signed)):
        raise ContractErrors(errors)
    return signed


def files_beside(contract: Path) -> list[Path]:
    """Return the files with waivers or accepted baselines that are next to a contract's file."""
    if not contract.parent.is_dir():
        return []
    return sorted(path for path in contract.parent.iterdir() if path.is_file() and is_signed_file(path))


def load(path: Path, *kinds: type[S]) -> list[S]:
    """Return the entries of one file, whose `schema` determines the class of its entries. kinds: the classes that are
    allowed. Raises ContractErrors with every error."""
    document = strict_yaml.read(path, f"{kinds[0].A} file")
    value = document.value
    schema = value.get("schema") if isinstance(value, dict) else None
    kind = next((each for each in kinds if schema == each.SCHEMA), kinds[0])
    errors: list[ContractError] = []
    indices = _indices(kind, document, errors)
    signed = [entry for index in indices if (entry := _entry(kind, document, index, errors))]
    errors += _second(signed)
    if errors:
        raise ContractErrors(document.cut(errors, len(errors)))
    return signed


def _second(signed: Sequence[Signed]) -> Iterator[ContractError]:
    """Yield an error for each second entry about the same claim or unit. With two entries, it is unclear which last day
    is valid."""
    first: dict[tuple[str, ...], Signed] = {}
    for entry in signed:
        known = first.setdefault(tuple(getattr(entry, name) for name in entry.ABOUT), entry)
        if known is not entry:
            rule = f"a {entry.SUBJECT} must have only one {_name(entry)}"
            remedy = f"keep one: {known.where} is the first"
            yield ContractError(rule, where=entry.where, got="a second", remedy=remedy)


def _name(entry: Signed) -> str:
    return entry.A.partition(" ")[2]


def _indices(kind: type[Signed], document: Document, errors: list[ContractError]) -> range:
    value = document.value
    if not isinstance(value, dict) or value.get("schema") != kind.SCHEMA:
        errors.append(document.error((), f"{kind.A} file must begin with `schema: {kind.SCHEMA}`", remedy="add it"))
        return range(0)
    errors += [
        document.error((key,), "unknown key", got=f"'{key}'", remedy=nearest(key, (kind.KEY,)), of_key=True)
        for key in value
        if key not in {"schema", kind.KEY}
    ]
    if not isinstance(value.get(kind.KEY), list):
        remedy = f"write one entry for each {kind.SUBJECT}"
        errors.append(document.error((kind.KEY,), f"'{kind.KEY}' must be a list", remedy=remedy))
        return range(0)
    return range(len(value[kind.KEY]))


def _entry(kind: type[S], document: Document, index: int, errors: list[ContractError]) -> S | None:
    """Return one entry. If the entry is wrong, add its errors to `errors` and return None."""
    place = (kind.KEY, index)
    entry = document.value[kind.KEY][index]
    if not isinstance(entry, dict):
        remedy = f"write the keys {', '.join(kind.FIELDS)}"
        errors.append(document.error(place, f"{kind.A} must be a mapping", remedy=remedy))
        return None
    found = list(_problems(kind, document, place, entry))
    errors += found
    if found:
        return None
    line, column = document.position(place)
    texts = {name: entry[name] for name in kind.FIELDS if name != "expires"}
    where = f"{document.where}:{line}:{column}"
    return kind(**texts, expires=date.fromisoformat(entry["expires"]), where=where, file_text=document.text)


def _problems(
    kind: type[Signed], document: Document, place: tuple[str, int], entry: Mapping[str, Any]
) -> Iterator[ContractError]:
    for number, key in enumerate(entry):
        if key not in kind.FIELDS:
            # only the first errors are shown, so later errors need no remedy
            remedy = nearest(key, kind.FIELDS) if number < strict_yaml.MOST_ERRORS else ""
            yield document.error((*place, key), "unknown key", got=f"'{key}'", remedy=remedy, of_key=True)
    for name in kind.FIELDS:
        text = entry.get(name)
        if name not in entry:
            yield document.error(place, f"{kind.A} must have the key '{name}'", got="none", remedy="add it")
        elif not isinstance(text, str) or not says_something(text) or len(text) > _LONGEST:
            rule = f"'{name}' must be a text of 1 to {_LONGEST} characters that has a letter or a digit"
            yield document.error((*place, name), rule)
        elif name in _FORMS and not _FORMS[name][0](text):
            yield document.error((*place, name), f"'{name}' must be {_FORMS[name][1]}", got=f"'{text}'")


def _is_date(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return re.fullmatch(r"\d{4}-\d{2}-\d{2}", text) is not None


# Only a whole hash is accepted, and no name of a branch, because a branch can move to another commit.
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_FORMS: Mapping[str, tuple[Callable[[str], object], str]] = {
    "expires": (_is_date, "a day, YYYY-MM-DD"),
    "commit": (_COMMIT.fullmatch, "a whole commit, 40 or 64 digits, as `git rev-parse` prints it"),
}


def expired_on(day: date, signed: Sequence[Signed]) -> list[tuple[str, str]]:
    """Return the place of each entry that expired before `day` (UTC), with a sentence about what to do."""
    late = [entry for entry in signed if entry.expired(day)]
    named = [" on ".join(getattr(entry, name) for name in entry.ABOUT[1:]) for entry in late]
    return [
        (entry.where, f"the {_name(entry)} of {name} was valid until {entry.expires}: renew or remove it")
        for entry, name in zip(late, named, strict=True)
    ]


def unmatched(signed: Sequence[Signed], contracts: Sequence[LoadedContract], *, all_known: bool) -> list[ContractError]:
    """Return an error for each entry about a claim that does not exist, and for each entry that does not fit its claim.
    all_known: True if `contracts` has every contract. An entry about an unknown contract is then an error, too."""
    errors = []
    for entry in signed:
        if problem := _missing(entry, contracts, all_known=all_known):
            got, remedy = problem
            remedy = f"{remedy}; or remove the {_name(entry)}"
            errors.append(ContractError(entry.RULE, where=entry.where, got=got, remedy=remedy))
    return errors


def _missing(entry: Signed, contracts: Sequence[LoadedContract], *, all_known: bool) -> tuple[str, str] | None:
    """Return what is wrong with the entry, and a remedy. Either the entry has an unknown name, or it does not fit its
    claim. Return None if the entry is right."""
    known = {loaded.contract.id: loaded.contract for loaded in contracts}
    contract = known.get(entry.contract)
    if contract is None:
        return (f"contract '{entry.contract}'", nearest(entry.contract, known)) if all_known else None
    claim = next((claim for claim in contract.claims if claim.id == entry.claim), None)
    if claim is None:
        return f"claim '{entry.claim}'", nearest(entry.claim, [claim.id for claim in contract.claims])
    return entry.misfit(claim)

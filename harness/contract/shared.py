"""Read shared files, which define workloads and arms for several contracts, and sort a folder's YAML files by type.

A contract names its shared files under `uses`. A folder can contain contracts, shared files, waiver files and files of
accepted baselines. Hidden files are ignored.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError

from harness.contract import strict_yaml
from harness.contract.base import Name, Strict
from harness.contract.schema import SCHEMA_VERSION as CONTRACT_VERSION
from harness.contract.schema import Arm, Contract, Workload
from harness.contract.strict_yaml import Document
from harness.contract.validation_errors import explain
from harness.errors import ContractError, ContractErrors
from harness.numbers import counted

# ruff: noqa: RUF012 - pydantic copies mutable defaults; ruff recognizes a model only in the file of its base class


SCHEMA_VERSION = "shared/v2"
SECTIONS = ("workloads", "arms")
MOST_FILES = 20  # largest number of shared files that one contract may use
WHAT = "a shared file"
PLACE = "a shared file must be in the contract's folder, or in the folder above it"
_PREFIX = "shared/"
_SCHEMA_LINE = re.compile(r"""^schema:[ \t]*["']?shared/""", re.MULTILINE)

# A function that returns the path of a shared file. Arguments: the contract's path, the file's index under `uses`, and
# the file's name there.
Locate = Callable[[Path, int, str], Path]


class Shared(Strict):
    """A file that defines workloads and arms for several contracts."""

    schema_version: Literal["shared/v2"] = Field(alias="schema")
    """Version of the language."""
    workloads: dict[Name, Workload] = {}
    """Workloads by name."""
    arms: dict[Name, Arm] = {}
    """Arms by name."""


_OF_CONTRACTS = {field.alias or name for name, field in Contract.model_fields.items()} - {"schema", *SECTIONS}


@dataclass(frozen=True)
class SharedFile:
    """A valid shared file. digest: the SHA-256 of the file's bytes, in hexadecimal."""

    document: Document
    digest: str

    @property
    def text(self) -> str:
        return self.document.text


def is_shared_file(path: Path) -> bool:
    """Return True if a file's `schema` is the schema of shared files.

    Return False if it is not, or if the file is unreadable.
    """
    try:
        return path.is_file() and _says_shared(strict_yaml.read_text(path))
    except (ContractError, OSError):
        return False


def _says_shared(text: str) -> bool:
    """Return True if the text's key `schema` has the schema of shared files. To save time, the text is parsed only up
    to this key."""
    if _PREFIX not in text:
        return False
    try:
        return (_schema(strict_yaml.events(text)) or "").startswith(_PREFIX)
    except yaml.YAMLError:
        # The text is not valid YAML, which is reported when the file is read. The result only decides whether messages
        # call the file a contract or a shared file.
        return _SCHEMA_LINE.search(text) is not None


def _schema(next_event: Callable[[], Any]) -> str | None:
    """Return the value of the key `schema` in the YAML document's mapping, or None if the document has no such key.
    Raises yaml.YAMLError."""
    depth, key = 0, None  # the key whose value comes next in the YAML events; None if a key comes next
    while True:
        event = next_event()
        if isinstance(event, yaml.StreamEndEvent):
            return None
        if isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth == 1 and isinstance(event, yaml.NodeEvent):
            value = event.value if isinstance(event, yaml.ScalarEvent) else None
            if key == "schema":
                return value
            key = (value or "") if key is None else None
        if isinstance(event, yaml.CollectionStartEvent):
            if depth == 0 and not isinstance(event, yaml.MappingStartEvent):
                return None
            depth += 1


def beside(folder: Path, name: str) -> Path:
    """Return the path of a shared file.

    name: the path relative to the contract's folder, as written under `uses`. The path may start with `../` once.
    Raises ContractError for a path that leads outside the contract's folder and its parent, directly or through a link.
    """
    parts = PurePosixPath(name).parts
    if PurePosixPath(name).is_absolute() or "\\" in name or ":" in name or ".." in parts[1:]:
        raise ContractError(
            PLACE, got=repr(name), remedy="write the path of the shared file relative to the contract's folder"
        )
    path = Path(os.path.normpath(folder / name))
    top = os.path.realpath(folder / ".." if parts[:1] == ("..",) else folder)
    end = os.path.realpath(path)
    if not Path(end).is_relative_to(top):
        link = f"'{name}', a link that leads outside, to {end}"
        raise ContractError(
            PLACE, got=link, remedy="move the linked file into the contract's folder, or into the folder above it"
        )
    return path


class SharedFiles:
    """A reader of shared files for several contracts, which reads each file once. locate: a function that returns the
    path of a shared file. By default, the path is relative to the contract's folder."""

    def __init__(self, locate: Locate | None = None) -> None:
        self._locate = locate
        # Keep the cache in this object, and not for the whole process. Otherwise later readers would not notice that
        # files changed.
        self._beside = cache(beside)
        self._read: dict[Path, SharedFile] = {}

    def used_by(self, document: Document, path: Path) -> list[SharedFile]:
        """Return the shared files that a contract uses. Raises ContractError. If `uses` is not a list of texts, return
        an empty list. The validation of the contract then reports the error."""
        names = document.value.get("uses", [])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            return []  # the validation of the contract reports that `uses` is wrong
        if len(names) > MOST_FILES:
            too_many_shared_files = f"a contract must use at most {MOST_FILES} shared files"
            raise document.error(
                ("uses",), too_many_shared_files, got=str(len(names)), remedy="merge some of the shared files"
            )
        found = [self._place(document, path, number, name) for number, name in enumerate(names)]
        # In a run directory, a shared file is named after the digest of its content. Two files with equal contents then
        # have the same path, which is not an error.
        if self._locate is None:
            self._refuse_twice(document, names, found)
        return [self.read(each) for each in found]

    def read(self, path: Path) -> SharedFile:
        """Return one shared file, which is read only at the first call. Raises ContractError, or ContractErrors if
        there are several errors."""
        if path not in self._read:
            self._read[path] = read_shared(path)
        return self._read[path]

    def _refuse_twice(self, document: Document, names: Sequence[str], found: Sequence[Path]) -> None:
        first: dict[str, str] = {}
        for number, (name, each) in enumerate(zip(names, found, strict=True)):
            end = os.path.realpath(each)
            if end in first:
                repeated_name = f"'{name}', which is the same file as '{first[end]}'"
                raise document.error(
                    ("uses", number),
                    "`uses` must name each file once",
                    got=repeated_name,
                    remedy="remove one of the two names",
                )
            first[end] = name

    def _place(self, document: Document, path: Path, number: int, name: str) -> Path:
        try:
            found = self._locate(path, number, name) if self._locate else self._beside(path.parent, name)
        except ContractError as error:
            raise document.error(("uses", number), error.rule, got=error.got, remedy=error.remedy) from error
        if found not in self._read and not found.is_file():
            what = "a directory" if found.is_dir() else "nothing"
            found_there, check_path = f"{what} at {found}", "check the path, which is relative to the contract's folder"
            raise document.error(("uses", number), "the shared file must exist", got=found_there, remedy=check_path)
        return found


def read_shared(path: Path) -> SharedFile:
    """Read and validate one shared file. Raises ContractError, or ContractErrors if there are several errors."""
    document = strict_yaml.read(path, WHAT)
    value = document.value
    if not isinstance(value, dict) or value.get("schema") != SCHEMA_VERSION:
        given_schema = repr(value.get("schema", "no `schema`")) if isinstance(value, dict) else "no mapping"
        write_schema = f"write `schema: {SCHEMA_VERSION}`"
        raise document.error(("schema",), f"{WHAT} must name its schema", got=given_schema, remedy=write_schema)
    if foreign := [key for key in value if key in _OF_CONTRACTS]:
        only_workloads_and_arms, keys = (
            "a shared file may contain only workloads and arms",
            ", ".join(map(repr, foreign)),
        )
        move_keys = f"write `schema: {CONTRACT_VERSION}`, or move these keys into a contract"
        raise document.error(
            ("schema",), only_workloads_and_arms, got=f"{keys}, which only contracts may have", remedy=move_keys
        )
    if errors := document.unportable_errors():
        raise ContractErrors(errors)
    try:
        Shared.model_validate(value)
    except ValidationError as error:
        raise ContractErrors(explain(error, document, (), Shared)) from error
    return SharedFile(document, hashlib.sha256(document.text.encode()).hexdigest())


def with_shared(document: Document, files: Sequence[SharedFile]) -> tuple[Document, list[ContractError]]:
    """Return the contract's document joined with its shared files, and an error for each workload or arm that is
    defined twice."""
    value: dict[str, Any] = dict(document.value)
    origins: dict[tuple[str, str], Document] = {}
    errors: list[ContractError] = []
    for section in SECTIONS:
        own = value.get(section, {})
        if not isinstance(own, dict):
            continue
        joined: dict[str, Any] = {}
        for file in files:
            for name, each in file.document.value.get(section, {}).items():
                if name in joined:
                    errors.append(_twice(file.document, origins[section, name], section, name))
                joined[name] = each
                origins[section, name] = file.document
        errors += [_twice(document, origins.pop((section, name)), section, name) for name in own if name in joined]
        if joined:
            value[section] = {**joined, **own}
    return replace(document, value=value, origins=origins), errors


def contract_digest(text: bytes, shared: Sequence[str]) -> str:
    """Return the digest of a contract. Without shared files, it is the digest of the contract's file. With shared
    files, it is a digest of the digests of all these files."""
    own = hashlib.sha256(text).hexdigest()
    return hashlib.sha256("\n".join([own, *shared]).encode()).hexdigest() if shared else own


def _twice(document: Document, first: Document, section: str, name: str) -> ContractError:
    line, column = first.position((section, name), of_key=True)
    rule, remedy = (
        "each name must be defined once",
        f"rename one: {first.where}:{line}:{column} already defines this name",
    )
    return document.error((section, name), rule, got=f"'{name}' again", remedy=remedy, of_key=True)


# Names of the files with waivers and with accepted baselines, which lie next to contracts. Upper case and `.yml` are
# accepted too.
WAIVERS_FILE, ACCEPTED_FILE = SIGNED_FILES = ("waivers.yaml", "accepted-baselines.yaml")
# the same names as in the module `layout`, which cannot be imported here, because it imports this package
RUN_HEADER, RUN_MARKS = "run.json", ("manifest.json", "INCOMPLETE")
SUFFIXES = frozenset({".yaml", ".yml"})
RULE = (
    "every .yaml and .yml file in it at any depth, except hidden files, shared files, "
    f"{WAIVERS_FILE} and {ACCEPTED_FILE}"
)


@dataclass(frozen=True)
class FolderFiles:
    """The YAML files of a folder by type, each list sorted. signed: files with waivers or accepted baselines. shared:
    files that define workloads and arms for contracts. hidden: files that are ignored (see `files_of_folder`).

    runs: the run directories below the folder. They contain copies of contracts, so they are not searched.
    """

    contracts: list[Path]
    signed: list[Path]
    hidden: list[Path]
    shared: list[Path]
    runs: list[Path]


def files_of_folder(folder: Path) -> FolderFiles:
    """Return the YAML files below a folder by type. All commands and the pytest plugin use this function.

    A file at any depth is a contract if its name ends in `.yaml` or `.yml`, in upper or lower case. The exceptions are
    waivers and accepted baselines (recognized by their names), shared files (`schema: shared/v2`), hidden files, and
    files in hidden folders (names that begin with a dot). Run directories are not searched, because they contain copies
    of contracts. Links are followed, but each folder is entered only once, so that a circle of links ends.
    """
    found = FolderFiles([], [], [], [], [])
    entered: set[Path] = set()

    def enter(directory: Path, *, hidden: bool) -> None:
        if real(directory) in entered:
            return
        entered.add(real(directory))
        try:
            inside = sorted(directory.iterdir())
        except OSError as error:
            rule = "the folder of contracts must be readable"
            raise ContractError(rule, where=str(directory), got=str(error.strerror)) from error
        for path in inside:
            unseen = hidden or path.name.startswith(".")
            if os.path.isdir(path):  # noqa: PTH112 - False, without an exception, for a path that cannot be read
                if is_run_directory(path):
                    found.runs.append(path)
                else:
                    enter(path, hidden=unseen)
            elif path.suffix.lower() in SUFFIXES:
                _kind_of(path, found, hidden=unseen).append(path)

    enter(folder, hidden=False)
    for kind in (found.contracts, found.signed, found.hidden, found.shared, found.runs):
        kind.sort()
    return found


def is_run_directory(folder: Path) -> bool:
    """Return True if a folder is a run directory, of a finished or unfinished run."""
    header, *marks = (os.path.isfile(folder / name) for name in (RUN_HEADER, *RUN_MARKS))  # noqa: PTH113
    return header and any(marks)


def real(path: Path) -> Path:
    """Return the path with all links resolved.

    Unlike `Path.resolve`, this function does not raise for a circle of links.
    """
    return Path(os.path.realpath(path))


def _kind_of(path: Path, found: FolderFiles, *, hidden: bool) -> list[Path]:
    if hidden:
        return found.hidden
    if is_signed_file(path):
        return found.signed
    return found.shared if is_shared_file(path) else found.contracts


def is_signed_file(path: Path, *names: str) -> bool:
    """Return True if a file has one of these names. Without `names`, accept the names of waiver files and of files with
    accepted baselines."""
    return path.suffix.lower() in SUFFIXES and f"{path.stem.lower()}.yaml" in (names or SIGNED_FILES)


def shared_files(paths: Sequence[Path]) -> list[Path]:
    """Return the shared files in the folders among `paths`, each file once."""
    found: dict[Path, Path] = {}
    for path in paths:
        for file in files_of_folder(path).shared if path.is_dir() else ():
            found.setdefault(real(file), file)
    return list(found.values())


def folders_read(paths: Sequence[Path]) -> list[str]:
    """Return one line for each folder among `paths`: how many contracts it has, which files count as contracts, and
    which are ignored."""
    lines = []
    for path in paths:
        if path.is_dir():
            found = files_of_folder(path)
            read = f"{path}: {counted(len(found.contracts), 'contract file')} ({RULE})"
            lines.append("; ".join([read, *_named(found)]))
    return lines


def _named(found: FolderFiles) -> Iterator[str]:
    if found.shared:
        yield f"{counted(len(found.shared), 'shared file')}: {', '.join(map(str, found.shared))}"
    if found.hidden:
        yield f"hidden: {', '.join(map(str, found.hidden))}"
    if found.runs:
        yield f"run directories, which were not searched: {', '.join(map(str, found.runs))}"

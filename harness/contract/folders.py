"""Sort the files of a folder: contracts, files that contracts share, waivers, and files to leave out."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.contract.shared import is_shared_file
from harness.errors import ContractError
from harness.numbers import counted

WAIVERS_FILE = "waivers.yaml"  # lies next to contracts and is none; in any case, and as `.yml`
RUN_HEADER, RUN_MARKS = "run.json", ("manifest.json", "INCOMPLETE")  # of `layout`, which builds on contracts
SUFFIXES = frozenset({".yaml", ".yml"})
RULE = f"every .yaml and .yml in it at any depth, but hidden ones, shared files and {WAIVERS_FILE}"


@dataclass(frozen=True)
class FolderFiles:
    """The YAML files of a folder, each kind sorted: contracts, waivers, hidden files, what contracts share.

    runs: the run directories below it, which hold copies of contracts, and are not entered.
    """

    contracts: list[Path]
    waivers: list[Path]
    hidden: list[Path]
    shared: list[Path]
    runs: list[Path]


def files_of_folder(folder: Path) -> FolderFiles:
    """Return which files below a folder are contracts. Every command, and pytest, uses this one rule.

    Every file whose name ends in `.yaml` or `.yml`, in any case and at any depth, is a contract, except waiver files
    (`waivers.yaml`), files that contracts share (`schema: shared/v2`), hidden files, and files in hidden folders (names
    that begin with a dot). Run directories are not entered: they hold copies. Links are followed, but each folder is
    entered once, so that a circle of links ends.
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
            rule = "a folder of contracts can be read"
            raise ContractError(rule, where=str(directory), got=str(error.strerror)) from error
        for path in inside:
            unseen = hidden or path.name.startswith(".")
            if os.path.isdir(path):  # noqa: PTH112 - what cannot be looked at is none, and raises nothing
                if is_run_directory(path):
                    found.runs.append(path)
                else:
                    enter(path, hidden=unseen)
            elif path.suffix.lower() in SUFFIXES:
                _kind_of(path, found, hidden=unseen).append(path)

    enter(folder, hidden=False)
    for kind in (found.contracts, found.waivers, found.hidden, found.shared, found.runs):
        kind.sort()
    return found


def is_run_directory(folder: Path) -> bool:
    """Return True if a folder is a run directory, of a finished run or of one still going on."""
    header, *marks = (os.path.isfile(folder / name) for name in (RUN_HEADER, *RUN_MARKS))  # noqa: PTH113
    return header and any(marks)


def real(path: Path) -> Path:
    """Return where a path leads, following links as far as they lead. `Path.resolve` raises for a circle of links."""
    return Path(os.path.realpath(path))


def _kind_of(path: Path, found: FolderFiles, *, hidden: bool) -> list[Path]:
    if hidden:
        return found.hidden
    if is_waiver_file(path):
        return found.waivers
    return found.shared if is_shared_file(path) else found.contracts


def is_waiver_file(path: Path) -> bool:
    """Return True if a file's name says that it holds waivers."""
    return path.suffix.lower() in SUFFIXES and f"{path.stem.lower()}.yaml" == WAIVERS_FILE


def shared_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files of folders among `paths` that hold what contracts share, each file once."""
    found: dict[Path, Path] = {}
    for path in paths:
        for file in files_of_folder(path).shared if path.is_dir() else ():
            found.setdefault(real(file), file)
    return list(found.values())


def folders_read(paths: Sequence[Path]) -> list[str]:
    """Return a line for each folder among `paths`: its number of contracts, the rule used, and what was left out."""
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
        yield f"run directories, not entered: {', '.join(map(str, found.runs))}"

"""Import foreign contracts as a list of decided items: each becomes an executable claim, or has the reason why not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.contract.folders import files_of_folder, real
from harness.errors import ContractError
from harness.extras.upstream.forms import Executable, recognized
from harness.extras.upstream.items import Item, UpstreamContract, read_upstream
from harness.extras.upstream.sections import CLAIM_SECTIONS
from harness.platform.paths import require_existing


@dataclass(frozen=True)
class Imported:
    """One foreign contract; its items are executable claims, or have no executable check for the reason that is given.

    Both lists are in the order of the file, and hold every item once.
    """

    contract: UpstreamContract
    executable: list[tuple[Item, Executable]]
    unchecked: list[tuple[Item, str]]

    def by_reason(self) -> dict[str, list[Item]]:
        """Return the items without an executable check, by reason."""
        grouped: dict[str, list[Item]] = {}
        for item, why in self.unchecked:
            grouped.setdefault(why, []).append(item)
        return grouped


def import_files(paths: Sequence[Path]) -> tuple[list[Imported], list[ContractError]]:
    """Import every file, and every YAML file of every folder, once; return an error for each that cannot be read.

    Raises UsageError for a path that does not exist.
    """
    require_existing(paths)
    imported: list[Imported] = []
    errors: list[ContractError] = []
    for path in upstream_files(paths, errors):
        try:
            imported.append(decide(read_upstream(path)))
        except ContractError as error:
            errors.append(error)
    return imported, errors


def upstream_files(paths: Sequence[Path], errors: list[ContractError]) -> list[Path]:
    """Return the files among `paths` and those in folders, hidden ones too; an empty folder adds an error."""
    files: dict[Path, Path] = {}
    for path in paths:
        found = [path]
        if path.is_dir():
            try:
                folder = files_of_folder(path)
            except ContractError as error:
                errors.append(error)
                continue
            found = sorted([*folder.contracts, *folder.waivers, *folder.hidden])
            if not found:
                errors.append(ContractError("a folder holds .yaml or .yml files", where=str(path), got="none"))
        for file in found:
            files.setdefault(real(file), file)
    return list(files.values())


def decide(contract: UpstreamContract) -> Imported:
    """Return every item with its executable claim, or with the reason why it has none."""
    found = [(item, recognized(item)) for item in contract.items]
    executable = [(item, one) for item, one in found if one is not None]
    ratios = [(item, one) for item, one in executable if one.judgement["kind"] == "throughput_ratio"]
    alone = {item.where for item, one in ratios if trajectory_of(one, executable) is None}
    unchecked = [
        (item, _ALONE if item.where in alone else CLAIM_SECTIONS[item.section].unchecked)
        for item, one in found
        if one is None or item.where in alone
    ]
    return Imported(contract, [(item, one) for item, one in executable if item.where not in alone], unchecked)


_ALONE = "a ratio of speeds, in a file with no recognized claim that the losses agree"


def trajectory_of(ratio: Executable, executable: list[tuple[Item, Executable]]) -> Item | None:
    """Return the claim that holds the losses of a timing's two arms: a faster step must not train differently."""
    arms = [ratio.judgement[arm] for arm in ("candidate", "baseline")]
    for item, one in executable:
        judgement = one.judgement
        if judgement["kind"] == "trajectory_match" and [judgement["candidate"], judgement["baseline"]] == arms:
            return item
    return None

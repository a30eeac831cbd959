"""Collect the files that contracts are read with, shared files and waivers: they have no items, only errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from harness.contract.folders import files_of_folder, is_waiver_file, real
from harness.contract.load import load_contracts
from harness.contract.shared import SharedFiles
from harness.contract.waivers import load_waivers, unmatched
from harness.errors import ContractError, ContractErrors, HarnessError
from harness.escaping import escaped_lines

_FILES = pytest.StashKey[set[Path]]()


def files_beside(config: pytest.Config) -> set[Path]:
    """Return the shared files and waivers of the folders among `contract_paths`, by their real paths."""
    if _FILES not in config.stash:
        folders = [files_of_folder(path) for path in _named(config) if path.is_dir()]
        config.stash[_FILES] = {real(file) for found in folders for file in (*found.shared, *found.waivers)}
    return config.stash[_FILES]


class FileBeside(pytest.File):
    """A shared file, or one of waivers."""

    def collect(self) -> Iterator[pytest.Item]:
        try:
            if is_waiver_file(self.path):
                _refuse_waivers_of_no_contract(self.path, _named(self.config))
            else:
                SharedFiles().read(self.path)
        except HarnessError as error:
            raise self.CollectError(escaped_lines(error)) from error
        yield from ()


def _named(config: pytest.Config) -> list[Path]:
    return [Path(path) for path in config.getini("contract_paths")]


def _refuse_waivers_of_no_contract(path: Path, named: Sequence[Path]) -> None:
    """Raise ContractErrors for waivers of contracts that are not known; a known contract reports its own waivers."""
    signed = load_waivers(path)
    try:
        contracts = load_contracts(named)
    except ContractError:  # which its own file reports
        return
    known = {loaded.contract.id for loaded in contracts}
    strangers = [waiver for waiver in signed if waiver.contract not in known]
    if errors := unmatched(strangers, contracts, all_known=True):
        raise ContractErrors(errors)

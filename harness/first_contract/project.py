"""Write the files of a first contract into a project, and find out what the machine there allows."""

from __future__ import annotations

import ast
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.contract import strict_yaml
from harness.contract.load import loaded_from
from harness.devices import environment
from harness.errors import ContractError, HarnessError, UsageError
from harness.first_contract.draft import Arms, Draft
from harness.run_directory.places import refuse_within_run, write_together

COMPILERS = ("g++", "clang++", "c++")


def compiler_missing() -> str:
    """Return why torch.compile cannot work here; "" where it probably can."""
    named = os.environ.get("CXX")
    if any(shutil.which(name) for name in ([named] if named else COMPILERS)):
        return ""
    return f"no C++ compiler ({named or ', '.join(COMPILERS)})"


def arms_here(*, compiled: bool, speed: bool = True) -> Arms:
    """Return the arms that are asked for and that this machine can run."""
    timed = speed and environment.machine().cuda
    # What a small step's libraries take for each stream may alone be four times the plain step's memory: MEMORY is
    # written once its ratio has been measured on GPUs. The museum of field bugs has it.
    return Arms(compiled=compiled and not compiler_missing(), timed=timed, memory=False)


def keep(draft: Draft, folder: Path, *, force: bool) -> list[Path]:
    """Write the adapter and the contracts into a project, all of them or none, and return their paths.

    Raises UsageError where a file exists, unless `force` allows to replace it, and where a file cannot be written.
    """
    paths = kept_files(draft, folder)
    require_free(paths, force=force)
    require_valid(replace(draft, host_values={}), folder)  # whose reasons are yours to say
    texts = (draft.adapter(folder), *_contracts(draft))
    write_together(dict(zip(paths, texts, strict=True)))
    return paths


def _contracts(draft: Draft) -> list[str]:
    """Return the texts of the contracts to keep; the second is left out where nothing repeats its bits."""
    return [text for text in (draft.contract(), draft.long_contract()) if text]


def require_valid(draft: Draft, folder: Path) -> None:
    """Raise HarnessError if Python, or the reader of contracts, refuses a draft: only the templates can cause that."""
    adapter, *contracts = kept_files(draft, folder)
    try:
        ast.parse(draft.adapter(folder), filename=str(adapter))
        for path, text in zip(contracts, _contracts(draft), strict=True):
            loaded_from(strict_yaml.parse(text, where=path.name), path)
    except (SyntaxError, ValueError, ContractError) as error:
        raise HarnessError(
            "what is drafted for a step can be read",
            where=draft.source.place,
            got=f"{error}",
            remedy="that is a fault of the harness: name the function, or its file, otherwise",
        ) from error


def kept_files(draft: Draft, folder: Path) -> list[Path]:
    """Return the adapter's path in `folder`, and the contracts' in its `contracts/` and `contracts-long/`."""
    paths = [folder / draft.adapter_name, folder / "contracts" / draft.contract_name]
    return [*paths, *([folder / "contracts-long" / draft.long_contract_name] if draft.long_contract() else [])]


def require_free(paths: Sequence[Path], *, force: bool) -> None:
    """Raise UsageError if a file exists and `force` does not allow to replace it, or a path is within a run."""
    for path in paths:
        refuse_within_run(path)
    there = [os.path.relpath(path) for path in paths if os.path.lexists(path)]
    if there and not force:
        raise UsageError(
            "no file of yours is replaced without --force", got=f"{' and '.join(there)} exists", remedy="move it away"
        )

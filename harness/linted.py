"""What `check` calls an error stops whatever would run or collect by it, with the same place and sentence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.contract.load import LoadedContract
from harness.contract.waivers import Waiver, unmatched
from harness.errors import ContractError, ContractErrors
from harness.lint import errors_of
from harness.system.described import LIMIT_S, describe, describe_all


def refuse_lint_errors(
    contracts: Sequence[LoadedContract],
    waivers: Sequence[Waiver] = (),
    paths: Sequence[Path] = (),
    limit_s: float | None = None,
) -> None:
    """Raise ContractErrors where the lint of the contracts, or of the waivers found for `paths`, has errors.

    A system that cannot be described is left to what runs it: its units are ERROR, which says more. `limit_s`: how long
    each has to describe itself, which it does once for all who ask.
    """
    describe_all([system for one in contracts for system in one.contract.systems()], limit_s or LIMIT_S)
    errors = [ContractError(each.message, where=each.where) for one in contracts for each in errors_of(one, describe)]
    errors += unmatched(waivers, contracts, all_known=any(path.is_dir() for path in paths))
    if errors:
        raise ContractErrors(errors)

"""Read accepted baselines. With an accepted baseline, a reviewer accepts until a date that a commit changes the numbers
of a claim.

    schema: accepted-baselines/v1
    accepted:
      - contract: as-main
        claim: SAME
        commit: 3f2a9c417d7be09bb3f5a1f2d1c5a7e6b8d90c12   # the commit that made the change
        reviewer: kim@example.org
        reason: Attention accumulates in fp32 from here on; issue 21.
        expires: 2026-12-31            # the last day on which the entry is valid, UTC

Under `--baseline REF` the claim's baseline arms train with the code of `commit` instead of the code of REF. If a later
commit changes the numbers again, the claim therefore still fails. `harness.commits.checkout` checks that the commit
lies in the history between REF and the tested commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from harness.contract.schema import AnyClaim, parts_of
from harness.contract.shared import ACCEPTED_FILE
from harness.contract.signed_entries import Signed, find
from harness.contract.waivers import find_waivers
from harness.kinds import probe_of


@dataclass(frozen=True, kw_only=True)
class AcceptedBaseline(Signed):
    """A commit that replaces REF of `--baseline REF` as the baseline of one claim."""

    FILE: ClassVar = ACCEPTED_FILE
    SCHEMA: ClassVar = "accepted-baselines/v1"
    KEY: ClassVar = "accepted"
    A: ClassVar = "an accepted baseline"
    SUBJECT: ClassVar = "claim"
    RULE: ClassVar = "an accepted baseline must name a claim that compares numbers with a baseline"
    ABOUT: ClassVar = ("contract", "claim")
    FIELDS: ClassVar = (*ABOUT, "commit", "reviewer", "reason", "expires")

    commit: str
    reviewer: str

    def misfit(self, claim: AnyClaim) -> tuple[str, str] | None:
        compared = [part for part in parts_of(claim) if "baseline" in part.arms()]
        if compared and not any(probe_of(part).timed for part in parts_of(claim)):
            return None
        what = "judges time" if compared else "names no `baseline`"
        return f"claim '{self.claim}', which {what}", "a waiver can accept such a claim until a date"


def find_accepted(paths: Sequence[Path]) -> list[AcceptedBaseline]:
    """Return the accepted baselines of all files below the folders in `paths`, and of all files next to the contract
    files in `paths`. Raises ContractErrors."""
    return find(AcceptedBaseline, paths)


def find_signed(paths: Sequence[Path], waivers: Path | None = None) -> list[Signed]:
    """Return waivers and accepted baselines for the contracts in `paths`. waivers: the path of the waiver file, or None
    for the waiver files that `find_waivers` finds."""
    return [*find_waivers(paths, waivers), *find_accepted(paths)]

"""Define how often a timing was tried before, as `run.json` holds it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from harness.evidence.base import Record


class TimedBefore(Record):
    """A unit that is timed, and the names of the run directories that timed it, too."""

    contract: str
    claim: str
    workload: str
    directories: list[str]


class Attempts(Record):
    """The timings that were tried before, and which attempt of its CI job a run is, from 1."""

    timings: list[TimedBefore] = Field(default_factory=list)
    ci: Annotated[int, Field(ge=1)] | None = None  # None: CI does not say

    def directories(self, unit: tuple[str, str, str]) -> list[str]:
        """Return the other directories that timed a unit (contract, claim, workload)."""
        return next((one.directories for one in self.timings if (one.contract, one.claim, one.workload) == unit), [])

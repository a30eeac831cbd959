"""Define what a gate or a drill would do on this machine, as `--plan` prints it: nothing of it has happened."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from harness.evidence.base import Obstacle, ProbeName, Record
from harness.numbers import Amount


class Estimate(Record):
    """Seconds that were measured before, and where; no estimate is made without."""

    seconds: Amount
    source: str


class PlannedUnit(Record):
    """A verdict that is planned. `runs` are the executed ones that decide it; none where it cannot be decided here."""

    contract: str
    claim: str
    workload: str
    fault: str | None = None  # that is planted for it: in a drill
    runs: list[str] = Field(default_factory=list)
    obstacle: Obstacle | None = None  # why it will be NOT_RUN, or an ERROR, on this machine

    def named(self) -> str:
        planted = f" with the fault {self.fault}" if self.fault is not None else ""
        return f"{self.claim} on {self.workload}{planted}"


class PlannedRun(Record):
    """A run that is executed. processes: it is divided among, side by side; stands_for: runs that read its evidence.

    estimate: of the seconds of all its processes, their waits left out; None: nothing like it was recorded.
    """

    id: str
    contract: str
    workload: str
    probe: ProbeName
    device: Literal["gpu", "processor"]
    device_name: str
    processes: int
    stands_for: list[str] = Field(default_factory=list)
    serves: list[str] = Field(default_factory=list)  # units, as people read them
    estimate: Estimate | None = None


class Forecast(Record):
    """`--plan --json`. seconds: of the runs with an estimate, one after another; unknown: how many have none.

    together: how long exactly these runs took when they were executed together; None: that was never recorded.
    """

    format_version: Literal[1] = 1
    units: list[PlannedUnit]
    runs: list[PlannedRun]
    seconds: Amount
    unknown: int
    together: Estimate | None = None

    @property
    def decidable(self) -> int:
        return sum(unit.obstacle is None for unit in self.units)

    @property
    def broken(self) -> bool:
        """Return True if a unit will be an ERROR: its system does not say what it is."""
        return any(unit.obstacle is not None and unit.obstacle.reason == "system_not_described" for unit in self.units)

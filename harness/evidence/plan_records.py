"""Define what is planned: units, each with one verdict, and the runs that decide them, each stored as `run.json`."""

from __future__ import annotations

from collections.abc import Collection

from pydantic import Field

from harness.contract.schema import Arm, Workload
from harness.evidence.base import Obstacle, ProbeName, Record
from harness.numbers import Real

SPENT = "spent_s"  # a run's setting: the seconds of executions before it, of whose evidence nothing is kept


class PlannedArm(Record):
    """One arm to execute: its settings, its system, how often (replicas beyond the first measure noise)."""

    arm: Arm
    system: str
    commit: str | None = None  # the baseline's, of which its system is; None: of the tree that stands there
    replicas: int = 1
    first_replica: int = 0  # above 0 in a lane whose run executes the earlier ones elsewhere
    observe_syncs: bool = False
    watch_every_step: bool = False  # its host syncs are judged, so that each of its steps is watched

    micro_batches: int | None = None  # that its inputs are split into, a digest each; None: no claim reads them
    watch_ranks: bool = False  # parameters after each step, rows that it read, and collectives that it began
    rounded_to: str | None = None  # data type that its first parameters are rounded to for a digest more
    moves: bool = False  # how far it moves each tensor, next to how far the arms before it did
    sketches: bool = False  # projections of its gradients and of its state at start and end, in every replica
    nudged: bool = False  # its parameters are changed by a rounding before it starts

    @property
    def indices(self) -> range:
        """Return the replicas to execute, by their numbers."""
        return range(self.first_replica, self.first_replica + self.replicas)


class Run(Record):
    """One thing to execute in a fresh process. `arms` are executed in their order, baselines first."""

    id: str
    contract: str
    probe: ProbeName
    workload_name: str
    workload: Workload
    arms: dict[str, PlannedArm]
    # candidate -> the baseline its gradients are compared with
    baseline_of: dict[str, str] = Field(default_factory=dict)
    gradient_steps: list[int] = Field(default_factory=list)
    gradient_arms: list[str] | None = None  # arms whose gradients some claim reads; None: all
    process: int = 0  # which of several equal processes (throughput)
    measurement: int = 0  # and of which measurement it is; a later one begins when the earlier ones are over
    # the claim's numbers that the probe itself needs (blocks, operations, …)
    settings: dict[str, object] = Field(default_factory=dict)
    fault: str | None = None
    fault_arms: list[str] = Field(default_factory=list)
    wall_limit_s: Real = 900.0
    heartbeat_s: Real = 120.0
    data: str | None = None
    model_directory: str | None = None
    # arms that some judgement names together: one that fails costs the groups that it is in (paired runs)
    groups: list[list[str]] = Field(default_factory=list)
    # arms that ended an earlier worker of this run: it was made again without them
    without: list[str] = Field(default_factory=list)
    # what must share a process: the first executions of several arms, or all those of one; None: everything
    compared: list[list[str]] | None = None

    def executions(self) -> list[tuple[str, int]]:
        """Return every planned execution, as arm and replica, in the order of execution."""
        return [(arm, replica) for arm, planned in self.arms.items() for replica in planned.indices]

    @property
    def repeats(self) -> bool:
        """Return True if the run only repeats arms whose first executions are in another process."""
        return bool(self.arms) and all(planned.first_replica > 0 for planned in self.arms.values())

    @property
    def ranks(self) -> int:
        """Return how many processes execute the run: as many as the arm with the most ranks has."""
        return max((planned.arm.ranks for planned in self.arms.values()), default=1)

    @property
    def commits(self) -> set[str | None]:
        """Return the commits of its arms' systems, as the arms name them."""
        return {planned.commit for planned in self.arms.values()}

    def needed(self, failed: Collection[str]) -> set[str]:
        """Return the arms that are needed by some judgement that names no failed arm."""
        groups = self.groups or [[arm] for arm in self.arms]
        alive = (group for group in groups if not set(group) & set(failed))
        return {arm for group in alive for arm in group if arm in self.arms}


class Unit(Record):
    """One planned verdict: (contract, claim, workload), and the runs whose evidence decides it."""

    contract: str
    claim: str
    workload: str
    runs: list[str] = Field(default_factory=list)
    obstacle: Obstacle | None = None

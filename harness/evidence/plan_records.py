"""Define what is planned: units (one verdict each), and the runs that decide them. Each run is stored as `run.json`."""

from __future__ import annotations

from collections.abc import Collection

from pydantic import Field

from harness.contract.schema import Arm, Workload
from harness.evidence.base import Obstacle, ProbeName, Record
from harness.numbers import Real

SPENT = "spent_s"  # name of a setting of a run: the seconds of earlier executions whose evidence was not kept


class PlannedArm(Record):
    """One arm to execute, how often, and what to record about it. Repeated executions (replicas) show the noise."""

    arm: Arm
    system: str
    commit: str | None = None  # the baseline commit whose code this arm's system uses; None: the working tree
    replicas: int = 1
    first_replica: int = 0  # greater than 0 only in a lane, if another process executes the earlier replicas
    observe_syncs: bool = False
    watch_every_step: bool = False  # True: watch each step for host syncs, because a claim judges them
    # number of micro-batches into which the inputs are split for their digests; None: do not split
    micro_batches: int | None = None
    # True: record the parameters after each step, the rows of each batch, and the collectives
    watch_ranks: bool = False
    rounded_to: str | None = None  # data type to which the initial parameters are rounded for an additional digest
    # True: record how the arm changes each tensor, compared with the arms that were executed before it
    moves: bool = False
    # True: record sketches of the gradients, and of the state at the start and the end, in every replica
    sketches: bool = False
    nudged: bool = False  # True: change the parameters by about one rounding before the arm starts

    @property
    def indices(self) -> range:
        """Return the numbers of the replicas that this run executes."""
        return range(self.first_replica, self.first_replica + self.replicas)


class Run(Record):
    """The work of one fresh process. `arms` are executed in order, baselines first."""

    id: str
    contract: str
    probe: ProbeName
    workload_name: str
    workload: Workload
    arms: dict[str, PlannedArm]
    # Name of a candidate -> name of the baseline with whose gradients the candidate's gradients are compared.
    baseline_of: dict[str, str] = Field(default_factory=dict)
    gradient_steps: list[int] = Field(default_factory=list)
    gradient_arms: list[str] | None = None  # arms whose gradients at least one claim reads; None: all arms
    process: int = 0  # number of this process, if a throughput claim requires several equal processes
    # number of the measurement to which this process belongs; measurements are made one after another
    measurement: int = 0
    # The claim's settings for the probe, such as numbers of blocks or the operations to compare.
    settings: dict[str, object] = Field(default_factory=dict)
    fault: str | None = None
    fault_arms: list[str] = Field(default_factory=list)
    wall_limit_s: Real = 900.0
    heartbeat_s: Real = 120.0
    data: str | None = None
    model_directory: str | None = None
    # Groups of arms. One judgement needs all arms of its group. If an arm fails, the groups that contain it cannot be
    # judged. Only for paired runs.
    groups: list[list[str]] = Field(default_factory=list)
    # Arms whose execution ended an earlier worker of this run. The run was then repeated without these arms.
    without: list[str] = Field(default_factory=list)
    # Groups of executions that must share a process: the first executions of several arms, or all executions of one
    # arm. None: all arms share a process.
    compared: list[list[str]] | None = None

    def executions(self) -> list[tuple[str, int]]:
        """Return every planned execution as (arm, replica), in the order of execution."""
        return [(arm, replica) for arm, planned in self.arms.items() for replica in planned.indices]

    @property
    def repeats(self) -> bool:
        """Return True if the run only repeats arms, because another process makes their first executions."""
        return bool(self.arms) and all(planned.first_replica > 0 for planned in self.arms.values())

    @property
    def ranks(self) -> int:
        """Return the number of processes that execute the run, which is the number of ranks of its largest arm."""
        return max((planned.arm.ranks for planned in self.arms.values()), default=1)

    @property
    def commits(self) -> set[str | None]:
        """Return the commits from which the arms' systems are taken. None stands for the working tree."""
        return {planned.commit for planned in self.arms.values()}

    def needed(self, failed: Collection[str]) -> set[str]:
        """Return the arms that can still be judged: the arms of all groups in which no arm has failed."""
        groups = self.groups or [[arm] for arm in self.arms]
        alive = (group for group in groups if not set(group) & set(failed))
        return {arm for group in alive for arm in group if arm in self.arms}


class Unit(Record):
    """One planned verdict on (contract, claim, workload), and the runs whose evidence decides it."""

    contract: str
    claim: str
    workload: str
    runs: list[str] = Field(default_factory=list)
    obstacle: Obstacle | None = None

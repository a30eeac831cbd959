"""Define what is planned: units, each with one verdict, and the runs that decide them. The directory of each run stores
the run as `run.json`."""

from __future__ import annotations

from collections.abc import Collection

from pydantic import Field

from harness.contract.schema import Arm, Workload
from harness.evidence.base import Obstacle, ProbeName, Record
from harness.numbers import Real

# name of the setting of a run that states the seconds of earlier executions whose evidence was not kept
SPENT = "spent_s"


class PlannedArm(Record):
    """An arm to execute, the number of its executions, and what to record. If an arm is executed several times, the
    differences between its executions show the noise."""

    arm: Arm
    system: str
    # the baseline's commit, if this arm uses the code of that commit; None: the arm uses the working tree
    commit: str | None = None
    replicas: int = 1
    first_replica: int = 0  # number of the first execution; above 0 if another process makes the earlier executions
    observe_syncs: bool = False
    watch_every_step: bool = False  # True: look for host syncs in each step, because a claim judges all steps
    # number of micro-batches into which the inputs are split to compute their digests; None: the inputs are not split
    micro_batches: int | None = None
    # True: record `RankSteps`: digests of the parameters after each step and of each batch row, numbers of collectives
    watch_ranks: bool = False
    # data type to which the initial parameters are rounded before an additional digest of them is recorded
    rounded_to: str | None = None
    # True: record how differently this arm and each arm that was executed before moved the tensors from start to end
    moves: bool = False
    # True: record sketches (a few numbers about each tensor) of the gradients, and of the state at the start and the
    # end, in every execution
    sketches: bool = False
    nudged: bool = False  # True: before the arm starts, change its parameters by about one rounding error

    @property
    def indices(self) -> range:
        """Return the numbers of the arm's executions that this run makes."""
        return range(self.first_replica, self.first_replica + self.replicas)


class Run(Record):
    """The work of one fresh process. The process executes the arms in the order of `arms`, baselines first."""

    id: str
    contract: str
    probe: ProbeName
    workload_name: str
    workload: Workload
    arms: dict[str, PlannedArm]
    # Name of a candidate -> name of the arm with whose gradients the candidate's gradients are compared.
    baseline_of: dict[str, str] = Field(default_factory=dict)
    gradient_steps: list[int] = Field(default_factory=list)
    gradient_arms: list[str] | None = None  # names of the arms whose gradients a claim reads; None: all arms
    process: int = 0  # number of this process, if a claim about speed requires several processes with the same work
    # number of the measurement (a group of processes) to which this process belongs; measurements are made one by one
    measurement: int = 0
    # The claim's settings for the run's probe, such as numbers of blocks, or operations to compare.
    settings: dict[str, object] = Field(default_factory=dict)
    fault: str | None = None
    fault_arms: list[str] = Field(default_factory=list)
    wall_limit_s: Real = 900.0
    heartbeat_s: Real = 120.0
    data: str | None = None
    model_directory: str | None = None
    # Groups of arms that are judged together. If an arm fails, no group that contains this arm can be judged. Only
    # runs that compare arms have groups.
    groups: list[list[str]] = Field(default_factory=list)
    # Arms that ended an earlier worker of this run. The run was then repeated without them.
    without: list[str] = Field(default_factory=list)
    # Groups of executions that must happen in one process: the first executions of several arms, or all executions of
    # one arm. None: all arms are executed in one process.
    compared: list[list[str]] | None = None

    def executions(self) -> list[tuple[str, int]]:
        """Return every planned execution as (arm, number of the execution), in the order of execution."""
        return [(arm, replica) for arm, planned in self.arms.items() for replica in planned.indices]

    @property
    def repeats(self) -> bool:
        """Return True if this run contains only repetitions of arms. Another run then makes the first execution of each
        arm."""
        return bool(self.arms) and all(planned.first_replica > 0 for planned in self.arms.values())

    @property
    def ranks(self) -> int:
        """Return the number of processes that execute the run: the largest number of ranks that one of its arms has."""
        return max((planned.arm.ranks for planned in self.arms.values()), default=1)

    @property
    def commits(self) -> set[str | None]:
        """Return the commits whose code the arms use. None stands for the working tree."""
        return {planned.commit for planned in self.arms.values()}

    def needed(self, failed: Collection[str]) -> set[str]:
        """Return the arms that can still be judged: the arms in groups in which no arm has failed."""
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

"""Define what is planned: units (one verdict each), and the runs that decide them. Each run is stored as `run.json`."""

from __future__ import annotations

from collections.abc import Collection

from pydantic import Field

from harness.contract.schema import Arm, Workload
from harness.evidence.base import Obstacle, ProbeName, Record
from harness.numbers import Real

SPENT = "spent_s"  # a run's setting: the seconds of earlier executions whose evidence was not kept


class PlannedArm(Record):
    """One arm to execute, how often, and what to record of it. Replicas after the first show the noise."""

    arm: Arm
    system: str
    commit: str | None = None  # the baseline commit that its system comes from; None: the working tree
    replicas: int = 1
    first_replica: int = 0  # above 0 in a lane if another process executes the earlier replicas
    observe_syncs: bool = False
    watch_every_step: bool = False  # watch each step for host syncs, because a claim judges them
    micro_batches: int | None = None  # micro-batches into which to split its inputs for digests; None: do not split
    watch_ranks: bool = False  # record parameters after each step, batch rows, and collectives
    rounded_to: str | None = None  # data type to which to round its initial parameters for an additional digest
    moves: bool = False  # record how it moves each tensor, compared with the arms before it
    sketches: bool = False  # record sketches of its gradients, and of its state at start and end, in every replica
    nudged: bool = False  # change its parameters by a rounding before it starts

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
    # candidate -> the baseline its gradients are compared with
    baseline_of: dict[str, str] = Field(default_factory=dict)
    gradient_steps: list[int] = Field(default_factory=list)
    gradient_arms: list[str] | None = None  # arms whose gradients some claim reads; None: all
    process: int = 0  # number of this process among several equal processes (throughput)
    measurement: int = 0  # number of the measurement that it belongs to; measurements are made one after another
    # numbers of the claim that the probe needs (blocks, operations, …)
    settings: dict[str, object] = Field(default_factory=dict)
    fault: str | None = None
    fault_arms: list[str] = Field(default_factory=list)
    wall_limit_s: Real = 900.0
    heartbeat_s: Real = 120.0
    data: str | None = None
    model_directory: str | None = None
    # groups of arms that one judgement names; if an arm fails, its groups cannot be judged (paired runs)
    groups: list[list[str]] = Field(default_factory=list)
    # arms that ended an earlier worker of this run; the run was repeated without these arms
    without: list[str] = Field(default_factory=list)
    # groups that must share a process: first executions of several arms, or all executions of one arm; None: all arms
    compared: list[list[str]] | None = None

    def executions(self) -> list[tuple[str, int]]:
        """Return every planned execution as (arm, replica), in the order of execution."""
        return [(arm, replica) for arm, planned in self.arms.items() for replica in planned.indices]

    @property
    def repeats(self) -> bool:
        """Return True if the run only repeats arms, and another process has the first executions of these arms."""
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
        """Return the arms of the groups in which no arm has failed. Only these groups can still be judged."""
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

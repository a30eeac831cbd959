"""Turn the judgements on one workload into runs, sharing a run wherever several can be judged from it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from harness.contract.claims import AnyClaim, AnyPart, arms_of
from harness.contract.kinds.kernels import KernelMatch, Prewarm, PtxTarget
from harness.contract.kinds.replay import HostSyncs, MemorySteady
from harness.contract.kinds.throughput import ThroughputRatio
from harness.contract.kinds.training import GradientMatch, Repeatability, TrajectoryMatch
from harness.contract.schema import Contract
from harness.evidence.base import Probe
from harness.evidence.plan_records import PlannedArm, Run
from harness.runners.faults import PlannedFault

ID_LIMIT = 150  # characters; a run's id names a directory
BASELINE, CANDIDATE, CONTROL = range(3)  # the order of arms in a paired run


@dataclass
class _PairedRun:
    """Arms of one paired run, as parts are added."""

    role: dict[str, int] = field(default_factory=dict)
    replicas: dict[str, int] = field(default_factory=dict)
    observe_syncs: set[str] = field(default_factory=set)
    baseline_of: dict[str, str] = field(default_factory=dict)
    gradient_steps: set[int] = field(default_factory=set)
    gradient_arms: set[str] = field(default_factory=set)

    def takes(self, part: AnyPart) -> bool:
        """Whether gradients stay unambiguous: one baseline for each candidate, and no circle."""
        if not isinstance(part, GradientMatch) or part.baseline is None:
            return True
        return self.baseline_of.get(part.candidate, part.baseline) == part.baseline and (
            part.candidate not in self._chain(part.baseline)
        )

    def _chain(self, arm: str) -> list[str]:
        chain = [arm]
        while chain[-1] in self.baseline_of:
            chain.append(self.baseline_of[chain[-1]])
        return chain

    def add(self, part: AnyPart) -> None:
        for field_name, arm in arms_of(part).items():
            role = {"candidate": CANDIDATE, "candidate.arm": CANDIDATE, "baseline": BASELINE}.get(field_name, CONTROL)
            self.role[arm] = min(role, self.role.get(arm, role))
            self._repeat(arm, 1)
        if isinstance(part, TrajectoryMatch):
            self._repeat(part.baseline, 2)  # two runs of the baseline show the noise floor
        if isinstance(part, Repeatability):
            self._repeat(part.candidate, part.runs)
        if isinstance(part, HostSyncs):
            self.observe_syncs |= {part.candidate.arm, part.control.arm}
        if isinstance(part, GradientMatch):
            self.gradient_steps |= set(part.steps)
            self.gradient_arms |= {part.candidate} | ({part.baseline} if part.baseline is not None else set())
            if part.baseline is not None:
                self.baseline_of[part.candidate] = part.baseline

    def _repeat(self, arm: str, times: int) -> None:
        self.replicas[arm] = max(times, self.replicas.get(arm, 0))

    def order(self, contract: Contract) -> list[str]:
        """A baseline before whatever is compared with it; then candidates; then controls."""
        as_written = list(contract.arms)
        return sorted(self.role, key=lambda arm: (self.role[arm], len(self._chain(arm)), as_written.index(arm)))


def _single_arm_probe(part: AnyPart) -> tuple[Probe, set[str]] | None:
    """The probe of a part that looks at one arm, and which of the part's fields it needs; None: a paired run."""
    match part:
        case PtxTarget():
            return "kernels", {"target"}
        case Prewarm(scope="coverage"):
            return "kernels", {"target", "scope"}
        case Prewarm():
            return "prewarm", {"target", "handles", "memory_filled"}
        case KernelMatch():
            return "kernel_match", {"operations", "max_relative_error", "magnitudes"}
        case MemorySteady(per="recapture"):
            return "recapture", {"after"}
        case _:
            return None


def _joined(one: dict[str, object], other: dict[str, object]) -> dict[str, object] | None:
    """Settings that serve both parts: equal, or equal but for the kernel operations to compare; else None."""
    ours, theirs = one.get("operations"), other.get("operations")
    if not isinstance(ours, list) or not isinstance(theirs, list):
        return one if one == other else None
    joined = {**one, "operations": [*ours, *(name for name in theirs if name not in ours)]}
    return joined if joined == {**other, "operations": joined["operations"]} else None


class RunBuilder:
    """Collects the parts judged on one workload of one contract; `runs` are what to execute for them."""

    def __init__(
        self,
        contract: Contract,
        workload_name: str,
        fault: PlannedFault | None,
        data: str | None,
        model_directory: str | None,
    ) -> None:
        self._contract, self._workload_name, self._fault = contract, workload_name, fault
        self._data, self._model_directory = data, model_directory
        self._paired: list[_PairedRun] = []
        self._others: dict[str, Run] = {}

    def add(self, claim: AnyClaim, index: int, part: AnyPart) -> list[str]:
        """Plan one part (`index` within its claim); the ids of the runs whose evidence decides it."""
        if isinstance(part, ThroughputRatio):
            return self._processes(f"{claim.id}+{index}", part)
        single = _single_arm_probe(part)
        return [self._add_paired(part) if single is None else self._shared(part, *single)]

    def runs(self) -> list[Run]:
        """Paired runs first: they take least and tell most."""
        paired = [self._paired_run(number, planned) for number, planned in enumerate(self._paired)]
        return [*paired, *self._others.values()]

    def _add_paired(self, part: AnyPart) -> str:
        number = next((n for n, planned in enumerate(self._paired) if planned.takes(part)), len(self._paired))
        if number == len(self._paired):
            self._paired.append(_PairedRun())
        self._paired[number].add(part)
        return self._paired_id(number)

    def _paired_id(self, number: int) -> str:
        return self._id("paired" if number == 0 else f"paired+{number}")

    def _paired_run(self, number: int, planned: _PairedRun) -> Run:
        arms = {arm: planned.replicas[arm] for arm in planned.order(self._contract)}
        run = self._run(self._paired_id(number), "paired", arms, {}, 0)
        observed = {
            name: arm.model_copy(update={"observe_syncs": name in planned.observe_syncs})
            for name, arm in run.arms.items()
        }
        return run.model_copy(
            update={
                "arms": observed,
                "baseline_of": planned.baseline_of,
                "gradient_steps": sorted(planned.gradient_steps),
                "gradient_arms": sorted(planned.gradient_arms),
            }
        )

    def _processes(self, suffix: str, part: ThroughputRatio) -> list[str]:
        arms = {part.baseline: 1, part.candidate: 1}
        settings = part.model_dump(mode="json", include={"candidate", "baseline", "blocks", "block_steps"})
        return [
            self._other("throughput", f"{suffix}+{process}", arms, settings, process)
            for process in range(part.processes)
        ]

    def _shared(self, part: AnyPart, probe: Probe, settings: set[str]) -> str:
        """A run of one arm that every part with the same arm and settings shares; it compares all their operations."""
        arms = arms_of(part)
        values = part.model_dump(mode="json", include=settings)
        for run in self._others.values():
            if run.probe == probe and list(run.arms) == [arms["candidate"]]:
                joined = _joined(run.settings, values)
                if joined is not None:
                    self._others[run.id] = run.model_copy(update={"settings": joined})
                    return run.id
        number = sum(run.probe == probe for run in self._others.values())
        return self._other(probe, f"{arms['candidate']}+{number}", {arms["candidate"]: 1}, values, 0)

    def _other(self, probe: Probe, suffix: str, arms: dict[str, int], settings: dict[str, object], process: int) -> str:
        identity = self._id(f"{probe}+{suffix}")
        self._others[identity] = self._run(identity, probe, arms, settings, process)
        return identity

    def _run(self, identity: str, probe: Probe, arms: dict[str, int], settings: dict[str, object], process: int) -> Run:
        fault_arms = sorted(set(arms) & self._fault.arms) if self._fault is not None else []
        return Run(
            id=identity,
            contract=self._contract.id,
            probe=probe,
            workload_name=self._workload_name,
            workload=self._contract.workloads[self._workload_name],
            arms={name: self._arm(name, replicas) for name, replicas in arms.items()},
            process=process,
            settings=settings,
            fault=self._fault.name if self._fault is not None and fault_arms else None,
            fault_arms=fault_arms,
            data=self._data,
            model_directory=self._model_directory,
        )

    def _arm(self, name: str, replicas: int) -> PlannedArm:
        arm = self._contract.arms[name]
        return PlannedArm(arm=arm, system=arm.system or self._contract.system, replicas=replicas)

    def _id(self, suffix: str) -> str:
        """Unambiguous (no name contains `+`), readable, and short enough for a directory's name."""
        identity = f"{self._contract.id}+{self._workload_name}+{suffix}"
        if len(identity) <= ID_LIMIT:
            return identity
        digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
        return f"{identity[: ID_LIMIT - 17]}+{digest}"

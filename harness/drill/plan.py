"""Plan a drill: every claim against every fault that it names, and the unfaulted controls.

Each uses the smallest workload that this machine can run: least demanded memory, then fewest steps x tokens. At equal
size it is the one on the accelerator, if there is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from harness.contract.claims import AnyClaim
from harness.contract.load import LoadedContract
from harness.contract.schema import Workload
from harness.devices.environment import Machine
from harness.drill.evidence_faults import evidence_faults, offered_by
from harness.drill.expectations import expectation_for
from harness.drill.merge import arms_to_execute, donor_for, reduced
from harness.errors import ContractError
from harness.evidence.plan_records import Run, Unit
from harness.kinds import probe_named
from harness.planning.faults import plan_fault
from harness.planning.plan import Describe, Plan, plan, refuse_unknown
from harness.run_directory.drill_record import NotDrilled
from harness.system.protocol import Expectation, FaultDescription
from harness.system.wrappers import HARNESS_FAULTS


@dataclass(frozen=True)
class FaultedRun:
    """A run with a fault: as planned, what of it is executed (None: nothing), the control run that gives the rest."""

    planned: Run
    executed: Run | None
    donor: str | None


@dataclass(frozen=True)
class Case:
    """One row of the kill matrix: a fault in a unit, and what must be said."""

    unit: Unit  # its runs are the faulted ones
    fault: str
    expected: Expectation


@dataclass
class DrillPlan:
    """`controls` are units and runs without a fault; `faulted` by run id, in the order of execution."""

    controls: Plan = field(default_factory=lambda: Plan([], []))
    cases: list[Case] = field(default_factory=list)
    faulted: dict[str, FaultedRun] = field(default_factory=dict)
    not_run: list[NotDrilled] = field(default_factory=list)


def plan_drill(
    contracts: Sequence[LoadedContract],
    *,
    claims: Sequence[str] = (),
    faults: Sequence[str] = (),
    machine: Machine,
    describe: Describe,
) -> DrillPlan:
    """Plan a drill. Raises UsageError for an unknown claim or fault, ContractError for one that declares nothing."""
    named = {fault for loaded in contracts for claim in loaded.contract.claims for fault in claim.falsified_by}
    refuse_unknown("no claim names this fault", faults, named)
    everything = plan(contracts, claims=claims, machine=machine, describe=describe)
    drilled = DrillPlan()
    for loaded in contracts:
        _ContractPlanner(loaded, everything.units, faults, machine, describe, drilled).add()
    return drilled


class _ContractPlanner:
    """Adds one contract's rows, controls and runs to the plan."""

    def __init__(
        self,
        loaded: LoadedContract,
        units: Sequence[Unit],
        faults: Sequence[str],
        machine: Machine,
        describe: Describe,
        drilled: DrillPlan,
    ) -> None:
        self._loaded, self._faults, self._machine, self._describe = loaded, faults, machine, describe
        self._units = [unit for unit in units if unit.contract == loaded.contract.id]
        self._offered = offered_by(loaded.contract, describe)
        self._drilled = drilled

    def add(self) -> None:
        rows = list(self._rows())
        controls: dict[str, list[str]] = {}  # workload -> claims
        for claim, workload, _ in rows:
            if claim.id not in controls.setdefault(workload, []):
                controls[workload].append(claim.id)
        planned = {workload: self._plan(workload, claims, None) for workload, claims in controls.items()}
        for control in planned.values():
            self._drilled.controls.units.extend(control.units)
            self._drilled.controls.runs.extend(control.runs)
        for (workload, fault, _), group in self._groups(rows).items():
            self._add_faulted(workload, fault, group, planned[workload].runs)

    def _rows(self) -> Iterator[tuple[AnyClaim, str, str]]:
        """Yield claim, workload and fault of every row that this machine can run, and note the others as not run."""
        claims = {unit.claim for unit in self._units}
        for claim in self._loaded.contract.claims:
            for fault in claim.falsified_by:
                if claim.id not in claims or (self._faults and fault not in self._faults):
                    continue
                description = self._offered.get(fault)
                if description is None or expectation_for(claim, description) is None:
                    raise ContractError(
                        "a fault that a claim names declares what it must make the judge say",
                        where=f"{self._loaded.path}: claim {claim.id}",
                        got=f"`{fault}`",
                        remedy="see `harness check`",
                    )
                workload = self._smallest(claim, description)
                if workload is None:
                    self._drilled.not_run.append(self._not_run(claim, description))
                else:
                    yield claim, workload, fault

    def _smallest(self, claim: AnyClaim, fault: FaultDescription) -> str | None:
        workloads = self._loaded.contract.workloads
        runnable = [unit.workload for unit in self._units if unit.claim == claim.id and unit.obstacle is None]
        if fault.needs == "cuda":
            runnable = [name for name in runnable if self._machine.cuda and workloads[name].needs.device != "cpu"]
        return min(runnable, key=lambda name: size_of(workloads[name]), default=None)

    def _not_run(self, claim: AnyClaim, fault: FaultDescription) -> NotDrilled:
        obstacles = [unit.obstacle for unit in self._units if unit.claim == claim.id and unit.obstacle is not None]
        reason, message = "needs_cuda", f"the fault needs CUDA: {self._machine.cuda_message}"
        if obstacles:
            reason, message = obstacles[0].reason, obstacles[0].message
        contract = self._loaded.contract.id
        return NotDrilled(contract=contract, claim=claim.id, fault=fault.name, reason=reason, message=message)

    def _groups(self, rows: Sequence[tuple[AnyClaim, str, str]]) -> dict[tuple[str, str, frozenset[str]], list[str]]:
        """Group the claims that one run can serve: those for which the fault is planted in the same arms."""
        groups: dict[tuple[str, str, frozenset[str]], list[str]] = {}
        for claim, workload, fault in rows:
            arms = plan_fault(fault, self._offered, [claim]).arms
            groups.setdefault((workload, fault, arms), []).append(claim.id)
        return groups

    def _add_faulted(self, workload: str, fault: str, claims: list[str], controls: Sequence[Run]) -> None:
        in_evidence = fault in evidence_faults()
        planned = self._plan(workload, claims, None if in_evidence else fault)
        names = {run.id: self._name(f"{run.id}+{fault}") for run in planned.runs}
        for run in planned.runs:
            renamed = run.model_copy(update={"id": names[run.id]})
            self._drilled.faulted[renamed.id] = _faulted_run(renamed, controls, in_evidence=in_evidence)
        for unit in planned.units:
            claim = next(claim for claim in self._loaded.contract.claims if claim.id == unit.claim)
            expected = expectation_for(claim, self._offered[fault])
            if expected is not None:
                unit = unit.model_copy(update={"runs": [names[run] for run in unit.runs]})  # noqa: PLW2901
                self._drilled.cases.append(Case(unit, fault, expected))

    def _name(self, wanted: str) -> str:
        taken = self._drilled.faulted
        return next(
            name for number in range(len(taken) + 1) if (name := wanted + (f"+{number}" if number else "")) not in taken
        )

    def _plan(self, workload: str, claims: Sequence[str], fault: str | None) -> Plan:
        return plan(
            [self._loaded],
            claims=claims,
            workloads=[workload],
            fault=fault,
            machine=self._machine,
            describe=self._describe,
            harness_faults=HARNESS_FAULTS,
        )


def _faulted_run(run: Run, controls: Sequence[Run], *, in_evidence: bool) -> FaultedRun:
    """Return a faulted run with what of it is executed, and the control run that gives the rest.
    Nothing is executed of a run equal to a control, or for a fault in the evidence, which is planted on reading."""
    control = donor_for(run, controls)
    if in_evidence or (control is not None and not probe_named(run.probe).arm_by_arm):
        return FaultedRun(run, None, control.id if control is not None else None)
    if control is None or arms_to_execute(run) == set(run.arms):
        return FaultedRun(run, run, None)
    return FaultedRun(run, reduced(run), control.id)


def size_of(workload: Workload) -> tuple[float, float, bool]:
    """Return a sort key for the smallest workload; a demand for memory stands for the number of layers."""
    lengths = workload.seq_len if isinstance(workload.seq_len, list) else [workload.seq_len]
    tokens = workload.batch_size * sum(lengths) / len(lengths)
    return workload.needs.memory_gib or 0.0, workload.steps * tokens, workload.needs.device == "cpu"


def runs_of(planned: DrillPlan) -> list[Run]:
    """Return the runs to execute: the controls, then the faulted runs."""
    faulted = [faulted_run.executed for faulted_run in planned.faulted.values() if faulted_run.executed is not None]
    return [*planned.controls.runs, *faulted]

"""Plan a drill: each fault of each claim is planted once. Controls, which are runs without a fault, are planned, too.

Each fault and each control uses the smallest workload that this machine can run. Workloads are compared by the memory
that they need, and with equal memory by steps x tokens. Of equally small workloads, one that runs on a GPU is
preferred.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from harness.contract.load import LoadedContract
from harness.contract.schema import AnyClaim, Workload
from harness.devices.environment import Machine
from harness.drill.faults import evidence_faults, expectation_for, offered_by
from harness.errors import ContractError
from harness.evidence.descriptions import Expectation, FaultDescription
from harness.evidence.plan_records import Run, Unit
from harness.evidence.run_evidence import RunEvidence
from harness.evidence.serving import DONATED, SAME, serves
from harness.kinds import probe_named
from harness.planning.plan import Describe, Plan, plan, refuse_unknown
from harness.planning.run_builder import plan_fault
from harness.run_directory.verdict_file import NotDrilled
from harness.system.wrappers import HARNESS_FAULTS, SWAPPED_ARMS

# The functions below plan only the arms that a fault can change. The other arms come from the control, a run without a
# fault. An arm without the fault is the same program with the same input as in the control. Equal runs on one machine
# give equal bits (claim FALSIFY-GPUTRAIN-006), so such an arm is executed once for all faults. If equal runs gave
# different bits, the arms would differ from step 0 on and not from the step that the fault declares. The fault would
# then count as survived, but never as killed by mistake. Gradients are compared on the device, so arms whose gradients
# are compared must be executed in one process.


def arms_to_execute(run: Run) -> set[str]:
    """Return the arms that are executed with the fault: arms that have it, and arms that must share a process with
    them.

    Two arms must share a process if their gradients are compared, or if their end states may differ within a bound.
    """
    if not probe_named(run.probe).arm_by_arm or run.fault == SWAPPED_ARMS:
        return set(run.arms)  # the fault exchanges two arms, so all arms are needed
    needed = _changed(run)
    pending = list(needed)
    while pending:
        arm = pending.pop()
        compared = {*_bounded_apart(run, arm), run.baseline_of.get(arm, arm)} - needed
        needed |= compared
        pending += compared
    return needed


def _bounded_apart(run: Run, arm: str) -> set[str]:
    """Return the arms whose end state is compared with the end state of `arm` within a bound, and not by digests.

    Such arms must be executed in one process. A bound is used in two cases: only one of the two arms has several ranks,
    or the parameter changes of `arm` are compared with those of an earlier arm.
    """
    several = run.arms[arm].arm.ranks > 1
    apart = {other for other in _compared_with(run, arm) if (run.arms[other].arm.ranks > 1) is not several}
    return apart | {other for other in run.arms if arm in _moved_after(run, other)}


def _compared_with(run: Run, arm: str) -> set[str]:
    return {other for arms in run.compared or [] if arm in arms for other in arms} & run.arms.keys()


def _moved_after(run: Run, arm: str) -> set[str]:
    """Return the arms that are executed after `arm` and whose parameter changes are compared with those of `arm`."""
    if not run.arms[arm].moves:
        return set()
    order = list(run.arms)
    later = order[order.index(arm) + 1 :]
    return {other for other in _compared_with(run, arm) & {*later} if run.arms[other].moves}


def donor_for(run: Run, controls: Sequence[Run]) -> Run | None:
    """Return a control (a run without a fault) that has all arms that need not be executed for `run`, or None. If the
    run's probe does not execute one arm after the other, the control must have the same arms and settings as `run`."""
    if not probe_named(run.probe).arm_by_arm:
        return next((control for control in controls if serves(control, run, SAME)), None)
    left_out = {arm: arm for arm in run.arms.keys() - arms_to_execute(run)}
    return next((control for control in controls if serves(control, run, DONATED, left_out)), None)


def reduced(run: Run) -> Run:
    """Return the run with only the arms of `arms_to_execute`. An arm that the fault cannot change is executed once."""
    needed, changed = arms_to_execute(run), _changed(run)
    arms = {
        arm: planned if arm in changed else planned.model_copy(update={"replicas": 1, "observe_syncs": False})
        for arm, planned in run.arms.items()
        if arm in needed
    }
    baseline_of = {candidate: base for candidate, base in run.baseline_of.items() if candidate in needed}
    return run.model_copy(update={"arms": arms, "baseline_of": baseline_of})


def _changed(run: Run) -> set[str]:
    """Return the arms whose evidence the fault can change: the arms that have the fault, and arms that are compared
    with them."""
    faulted = set(run.fault_arms)
    moved = {other for arm in faulted & run.arms.keys() for other in _moved_after(run, arm)}
    return faulted | moved | {candidate for candidate, baseline in run.baseline_of.items() if baseline in faulted}


def merged(run: Run, faulted: RunEvidence, control: RunEvidence) -> RunEvidence:
    """Return the evidence of all arms. Arms that the fault can change come from `faulted`, the other arms from
    `control`.

    `run` may be a run that `reduced` returned, because a reduced run has every comparison that the fault can change.
    Arms that exist only in the control have no effect. If the worker of one of the two runs died, the merged run counts
    as died, too, because incomplete evidence decides nothing.
    """
    whole = _merged_at_one_rank(run, faulted, control)
    number = max(len(faulted.ranks), len(control.ranks))
    ranks = [_merged_at_one_rank(run, _at_rank(faulted, rank), _at_rank(control, rank)) for rank in range(number)]
    return replace(whole, ranks=tuple(ranks))


def _at_rank(seen: RunEvidence, other: int) -> RunEvidence:
    """Return the evidence of rank number `other` + 1. If the run has fewer ranks, return the evidence of rank 0."""
    return seen.ranks[other] if other < len(seen.ranks) else seen


def _merged_at_one_rank(run: Run, faulted: RunEvidence, control: RunEvidence) -> RunEvidence:
    changed = _changed(run)
    arms = {arm: executions for arm, executions in control.arms.items() if arm not in changed}
    arms |= {arm: executions for arm, executions in faulted.arms.items() if arm in changed}
    failed = {arm: failure for arm, failure in control.failed.items() if arm not in changed}
    failed |= {arm: failure for arm, failure in faulted.failed.items() if arm in changed}
    return replace(
        faulted,
        arms=arms,
        failed=failed,
        death=faulted.death or control.death,
        obstacle=faulted.obstacle or control.obstacle,
        ranks=(),
    )


@dataclass(frozen=True)
class FaultedRun:
    """A run with a planted fault. planned: the whole run. executed: the part of the run that is executed, or None.
    donor: the id of the run without a fault from which the evidence of the other arms is taken."""

    planned: Run
    executed: Run | None
    donor: str | None


@dataclass(frozen=True)
class Case:
    """A fault that is planted in a unit, and the verdict that the fault must cause. A report has one row for each
    case."""

    unit: Unit  # this unit's runs are the runs with the fault
    fault: str
    expected: Expectation


@dataclass
class DrillPlan:
    """The plan of a drill. controls: units and runs without a fault. faulted: runs with a fault, by id, in the order of
    their execution."""

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
    """Plan a drill. Raises UsageError for an unknown claim, and for a fault that no selected claim names. Raises
    ContractError if a fault declares no verdict for a claim that names the fault."""
    everything = plan(contracts, claims=claims, machine=machine, describe=describe)
    selected = {(unit.contract, unit.claim) for unit in everything.units}
    named = {
        fault
        for loaded in contracts
        for claim in loaded.contract.claims
        if (loaded.contract.id, claim.id) in selected
        for fault in claim.falsified_by
    }
    refuse_unknown("no selected claim names this fault", faults, named)
    drilled = DrillPlan()
    for loaded in contracts:
        _ContractPlanner(loaded, everything.units, faults, machine, describe, drilled).add()
    return drilled


class _ContractPlanner:
    """Adds one contract to the plan: its planted faults, controls and runs."""

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
        controls: dict[str, list[str]] = {}  # workload -> ids of the claims with a control on this workload
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
        """Yield (claim, workload, fault) for each fault that this machine can plant. Record each other fault as not
        run."""
        claims = {unit.claim for unit in self._units}
        for claim in self._loaded.contract.claims:
            for fault in claim.falsified_by:
                if claim.id not in claims or (self._faults and fault not in self._faults):
                    continue
                description = self._offered.get(fault)
                if description is None or expectation_for(claim, description) is None:
                    raise ContractError(
                        "each fault under a claim's `falsified_by` must declare the verdict that it causes",
                        where=f"{self._loaded.path}: claim {claim.id}",
                        got=f"`{fault}`",
                        remedy="run `harness check` to see what is wrong",
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
        """Group the claims for which the same fault is planted in the same arms on the same workload. The claims of a
        group share runs. The keys are (workload, fault, arms). The values are lists of claim ids."""
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
    """Return a run with a planted fault, with the part to execute and the control (run without a fault) that has the
    other arms.

    Nothing is executed if the run is equal to a control, or if the fault is an evidence fault, which is planted when
    the evidence is read.
    """
    control = donor_for(run, controls)
    if in_evidence or (control is not None and not probe_named(run.probe).arm_by_arm):
        return FaultedRun(run, None, control.id if control is not None else None)
    if control is None or arms_to_execute(run) == set(run.arms):
        return FaultedRun(run, run, None)
    return FaultedRun(run, reduced(run), control.id)


def size_of(workload: Workload) -> tuple[float, float, bool]:
    """Return a key by which workloads are sorted by size. The required memory comes first, in place of the unknown
    number of layers."""
    lengths = workload.seq_len if isinstance(workload.seq_len, list) else [workload.seq_len]
    tokens = workload.batch_size * sum(lengths) / len(lengths)
    return workload.needs.memory_gib or 0.0, workload.steps * tokens, workload.needs.device == "cpu"


def runs_of(planned: DrillPlan) -> list[Run]:
    """Return the runs to execute: first the controls (runs without a fault), then the runs with faults."""
    faulted = [faulted_run.executed for faulted_run in planned.faulted.values() if faulted_run.executed is not None]
    return [*planned.controls.runs, *faulted]

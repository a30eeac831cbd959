"""Plan the units of contracts, the runs that decide them, and the obstacles of units that cannot be decided here.

The functions are pure. They turn contracts and the descriptions of machine and systems into units and runs. Claims that
can be judged from the same run share this run.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from harness.contract.schema import AnyClaim, AnyPart, Contract, Workload, parts_of
from harness.devices.environment import Machine
from harness.errors import SystemResolutionError, UsageError
from harness.evidence.base import Obstacle
from harness.evidence.descriptions import FaultDescription, SystemDescription
from harness.evidence.plan_records import PlannedArm, Run, Unit
from harness.planning.obstacles import Baseline, HasContract, commit_obstacle, find_obstacle, system_obstacle
from harness.planning.run_builder import PlannedFault, RunBuilder, plan_fault

LIMIT_S = 60.0  # limit in seconds for the run that `where_run` plans: all executions of both arms together
# Names of the figures that contain the step at which a judge saw a difference. The first difference may lie in an
# earlier step.
_SEEN_AT = ("first_differing_step", "first_exceeding_step", "first_unequal_step", "first_non_finite_step")
# Name of the figure with the first step of the first group that differs, in claims that compare groups of steps
# (`every`).
_BLOCK = "first_differing_block"
_NOISE = "noise_floor"  # name of the figure with the difference between two executions of the baseline


def where_run(
    claim: AnyClaim, unit: Unit, runs: Sequence[Run], figures: Mapping[str, object], limit_s: float = LIMIT_S
) -> Run | None:
    """Return a new run that finds the first step in which the candidate of a claim differs from the arm with which it
    is compared.

    runs: the runs that decided the unit.
    figures: the verdict's figures, by name.
    Return None if the claim's kind does not compare trainings, if no run has the claim's arms, or if a run has several
    ranks.
    """
    part = next((part for part in parts_of(claim) if part.must_train_alike), None)
    planned: dict[str, PlannedArm] = {arm: each for run in runs for arm, each in run.arms.items()}
    if part is None or not planned:
        return None
    named, between = part.arms(), part.between_steps()
    arm, baseline = named["candidate"], named.get("baseline", named["candidate"])
    if not {arm, baseline} <= planned.keys() or runs[0].ranks > 1:
        return None
    candidate = f"{arm} with {', '.join(between)}" if between else arm
    arms = {baseline: planned[baseline], candidate: planned[arm]}
    steps, values = runs[0].workload.steps, {name.rpartition(".")[2]: value for name, value in figures.items()}
    settings: dict[str, object] = {
        "candidate": candidate,
        "baseline": baseline,
        "last": min(_last_step(part, values, steps), steps - 1),
        "observed": False,
        "limit_s": limit_s,
        # If two executions of the baseline differ, train deterministically. Otherwise the first difference might be
        # only noise.
        "deterministic": bool(values.get(_NOISE)),
        **{setting: {candidate: value} for setting, value in between.items()},
    }
    fields = (
        "contract",
        "workload_name",
        "workload",
        "fault",
        "data",
        "model_directory",
        "wall_limit_s",
        "heartbeat_s",
    )
    return Run(
        id=where_name(unit),
        probe="where",
        arms={name: each.model_copy(update={"replicas": 1, "first_replica": 0}) for name, each in arms.items()},
        settings=settings,
        fault_arms=[candidate if each == arm else each for each in runs[0].fault_arms],
        **{name: getattr(runs[0], name) for name in fields},
    )


def where_name(unit: Unit) -> str:
    """Return the id of the run that `where_run` plans for a unit. The id is also the name of the run's folder."""
    names = (unit.contract, unit.claim, unit.workload)
    digest = hashlib.sha256("+".join(names).encode()).hexdigest()[:8]
    return f"{re.sub(r'[^A-Za-z0-9_.-]+', '_', unit.claim)[:80]}+{digest}"


def _last_step(part: AnyPart, values: Mapping[str, object], steps: int) -> int:
    """Return the last step in which the first difference can lie. values: the verdict's figures."""
    seen = [value for name in _SEEN_AT if type(value := values.get(name)) is int]
    if type(block := values.get(_BLOCK)) is int:
        seen.append(block + int(getattr(part, "every", 1)) - 1)
    return min(seen, default=steps - 1)


Describe = Callable[[str], SystemDescription]
SHOWN = 12  # largest number of known names that are listed in an error about an unknown name


@dataclass(frozen=True)
class Plan:
    """The planned units, in the order of the contracts, and the runs, in the order of their execution."""

    units: list[Unit]
    runs: list[Run]


def plan(
    contracts: Sequence[HasContract],
    *,
    claims: Sequence[str] = (),
    workloads: Sequence[str] = (),
    fault: str | None = None,
    machine: Machine,
    describe: Describe,
    harness_faults: Mapping[str, FaultDescription] = MappingProxyType({}),
    data: str | None = None,
    model_directory: str | None = None,
    baseline: Baseline | None = None,
) -> Plan:
    """Return the units and runs of the contracts, or only of the named claims and workloads.

    describe: returns the description of a named system. If it raises SystemResolutionError, the system's units are not
        run and become ERRORs with this reason. If `fault` is given, the error is raised instead, because only the
        description lists the system's faults.
    fault: the fault to plant in the arms of the claims that it should break.
    baseline: the commit of the arms that claims name as `baseline`; None: all arms use the working tree.
    Raise UsageError for a claim, workload or fault that no contract has.
    """
    selected = [loaded.contract for loaded in contracts]
    refuse_unknown(
        "no contract has this claim", claims, {claim.id for contract in selected for claim in contract.claims}
    )
    refuse_unknown(
        "no contract has this workload", workloads, {name for contract in selected for name in contract.workloads}
    )
    descriptions = _Descriptions(describe)
    if fault is not None:
        known = {name for contract in selected for name in descriptions.faults(contract)} | set(harness_faults)
        refuse_unknown("no contract has this fault", [fault], known)
    units: list[Unit] = []
    runs: list[Run] = []
    for contract in selected:
        wanted = [claim for claim in contract.claims if not claims or claim.id in claims]
        planted = None
        if fault is not None:
            planted = plan_fault(fault, {**harness_faults, **descriptions.faults(contract)}, wanted)
        for workload_name, workload in contract.workloads.items():
            if workloads and workload_name not in workloads:
                continue
            on_workload = [claim for claim in wanted if workload_name in claim.judged_on]
            there = baseline or Baseline()
            accepted = {claim: one.commit for (name, claim), one in there.accepted.items() if name == contract.id}
            builder = RunBuilder(
                contract, workload_name, planted, data, model_directory, there.commit, accepted=accepted
            )
            units += _plan_workload(
                contract, workload_name, workload, on_workload, builder, planted, machine, descriptions, baseline
            )
            runs += builder.runs()
    return Plan(_in_order_of_claims(units, selected), runs)


def _plan_workload(
    contract: Contract,
    name: str,
    workload: Workload,
    claims: Sequence[AnyClaim],
    builder: RunBuilder,
    planted: PlannedFault | None,
    machine: Machine,
    descriptions: _Descriptions,
    baseline: Baseline | None,
) -> list[Unit]:
    units = []
    for claim in claims:
        obstacle = (
            system_obstacle(contract, claim, descriptions.get)
            or _fault_obstacle(planted, machine)
            or find_obstacle(contract, claim, workload, machine, descriptions.get)
            or (commit_obstacle(contract, claim, baseline.of(contract.id, claim.id)) if baseline is not None else None)
        )
        runs: list[str] = []
        if obstacle is None:
            for index, part in enumerate(parts_of(claim)):
                runs += [run for run in builder.add(claim, index, part) if run not in runs]
        units.append(Unit(contract=contract.id, claim=claim.id, workload=name, runs=runs, obstacle=obstacle))
    return units


def _fault_obstacle(planted: PlannedFault | None, machine: Machine) -> Obstacle | None:
    if planted is None:
        return None
    if planted.description is None:
        return Obstacle(reason="fault_not_offered", message=f"this contract's system has no fault `{planted.name}`")
    if planted.description.needs == "cuda" and not machine.cuda:
        return Obstacle(reason="needs_cuda", message=f"the fault needs CUDA: {machine.cuda_message}")
    return None


def _in_order_of_claims(units: list[Unit], contracts: Sequence[Contract]) -> list[Unit]:
    """Return the units in the order of the files: by contract, claim and workload."""
    order = {
        (contract.id, claim.id, workload): (number, position, claim.judged_on.index(workload))
        for number, contract in enumerate(contracts)
        for position, claim in enumerate(contract.claims)
        for workload in claim.judged_on
    }
    return sorted(units, key=lambda unit: order[unit.contract, unit.claim, unit.workload])


class _Descriptions:
    """Describes each system at most once. Stores the error for a system that cannot be described."""

    def __init__(self, describe: Describe) -> None:
        self._describe = describe
        self._known: dict[str, SystemDescription | SystemResolutionError] = {}

    def get(self, system: str) -> SystemDescription | SystemResolutionError:
        if system not in self._known:
            try:
                self._known[system] = self._describe(system)
            except SystemResolutionError as error:
                self._known[system] = error
        return self._known[system]

    def faults(self, contract: Contract) -> dict[str, FaultDescription]:
        """Return the faults, by name, that the contract's system and the systems of its arms offer."""
        faults: dict[str, FaultDescription] = {}
        for system in reversed(contract.systems()):
            description = self.get(system)
            if isinstance(description, SystemResolutionError):
                raise description
            faults.update(description.faults)
        return faults


def refuse_unknown(rule: str, names: Sequence[str], known: Collection[str]) -> None:
    """Raise UsageError for the first of `names` that is not in `known`. rule: the beginning of the message.

    The message suggests the nearest known name, or lists some names.
    """
    there = sorted(known)
    for unknown_name in names:
        if unknown_name not in known:
            nearest = difflib.get_close_matches(unknown_name, there, n=1)
            more = f" and {len(there) - SHOWN} more" if len(there) > SHOWN else ""
            some = f"known: {', '.join(there[:SHOWN]) or 'none'}{more}"
            nearest_or_known_names = f"did you mean `{nearest[0]}`?" if nearest else some
            raise UsageError(rule, got=f"`{unknown_name}`", remedy=nearest_or_known_names)

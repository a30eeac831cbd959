"""Plan the runs whose evidence decides claims on one workload. The parts of claims share a run where this is
possible."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, cast

from harness.contract.base import NUDGED_CONTROLS
from harness.contract.schema import AnyClaim, AnyPart, Contract, parts_of
from harness.evidence.base import ProbeName
from harness.evidence.descriptions import FaultDescription
from harness.evidence.plan_records import PlannedArm, Run
from harness.evidence.serving import DEMANDED, NONE, Difference, differences
from harness.kinds import kind_of, probe_of


@dataclass(frozen=True)
class PlannedFault:
    """A fault to plant in `arms` of a contract's runs. description: None if no system of the contract has the fault."""

    name: str
    description: FaultDescription | None
    arms: frozenset[str]


def plan_fault(name: str, offered: Mapping[str, FaultDescription], claims: Sequence[AnyClaim]) -> PlannedFault:
    """Return the fault with the arms in which it is planted: the arms of the claims that the fault should break.

    The fault should break a claim in three cases: the claim lists the fault, the fault lists the claim (a fault of the
    system), or the fault lists the claim's kind (a fault of the harness). If it should break none of the given claims,
    the fault is planted in the arms of all given claims.
    """
    description = offered.get(name)
    if description is None:
        return PlannedFault(name, None, frozenset())
    parts = [part for claim in claims for part in parts_of(claim)]
    breaks = description.breaks
    named = {claim.id for claim in claims if name in claim.falsified_by or claim.id in breaks}
    broken = [part for claim in claims for part in parts_of(claim) if claim.id in named or part.kind in breaks]
    arms = {arm for part in broken or parts for arm in _planted_arms(part, description.plant)}
    return PlannedFault(name, description, frozenset(arms))


def _planted_arms(part: AnyPart, plant: Literal["candidate", "baseline", "both"]) -> list[str]:
    # A nudged control is the baseline with other rounding errors, so a fault of the baseline is a fault of the control.
    candidate, baselines = part.candidate_path, [part.baseline_path, *NUDGED_CONTROLS]
    roles = {"candidate": [candidate], "baseline": baselines, "both": [candidate, *baselines]}
    named = part.arms()
    return [named[role] for role in roles[plant] if role in named]


ID_LIMIT = 150  # largest number of characters of a run's id, which is also the name of a directory
# Settings of kernel comparisons. One run may use the values of several claims, because a judge reads only the results
# for its own claim's values.
TRIED_TOGETHER = ("operations", "magnitudes")
_OF_BASELINE = ("baseline", *NUDGED_CONTROLS)  # fields of a claim whose arms use the baseline's commit
BASELINE, CANDIDATE, CONTROL = range(3)  # the roles of arms in a `_PairedRun`, in their order of execution


@dataclass
class _PairedRun:
    """A planned run that executes arms one after the other. `add` adds the arms and recordings that a part needs."""

    probe: ProbeName
    role: dict[str, int] = field(default_factory=dict)
    replicas: dict[str, int] = field(default_factory=dict)
    observe_syncs: set[str] = field(default_factory=set)
    watch_every_step: set[str] = field(default_factory=set)
    baseline_of: dict[str, str] = field(default_factory=dict)
    gradient_steps: set[int] = field(default_factory=set)
    gradient_arms: set[str] = field(default_factory=set)
    groups: list[list[str]] = field(default_factory=list)
    compared: list[list[str]] = field(default_factory=list)
    recorded_of: dict[str, dict[str, int | str]] = field(default_factory=dict)  # arm -> fields of its PlannedArm
    earlier: dict[str, set[str]] = field(default_factory=dict)  # arm -> the baselines with which some part compares it
    baselines: set[str] = field(default_factory=set)  # arms that a part names as its baseline or nudged control
    others: set[str] = field(default_factory=set)  # arms that a part names in another role
    commit: str | None = None  # the commit of `baselines`; None: the working tree

    def takes(self, part: AnyPart, commit: str | None) -> bool:
        """Return True if the run can also serve this part. Three conditions must hold: the part's recordings fit those
        of the run, no chain of baselines is a circle, and the commits are equal."""
        baselines, others = _by_role(part)
        if baselines and self.baselines and commit != self.commit:
            return False
        if commit is not None and (baselines & (self.others | others) or others & self.baselines):
            return False
        for arm, fields in part.recorded_of().items():
            known = self.recorded_of.get(arm, {})
            if any(known.get(name, value) != value for name, value in fields.items()):
                return False
        if any(self._nudged(arm) is not _nudged(part, arm) for arm in part.arms().values() if arm in self.role):
            return False
        demand = part.gradients()
        if demand is None or demand.baseline is None:
            return True
        chain = self._chain(demand.baseline)
        return all(
            self.baseline_of.get(arm, demand.baseline) == demand.baseline and arm not in chain
            for arm in demand.compared()
        )

    def _nudged(self, arm: str) -> bool:
        return bool(self.recorded_of.get(arm, {}).get("nudged", False))

    def _chain(self, arm: str) -> list[str]:
        chain = [arm]
        while chain[-1] in self.baseline_of:
            chain.append(self.baseline_of[chain[-1]])
        return chain

    def _place(self, arm: str, later: frozenset[str] = frozenset()) -> int:
        """Return the position of `arm` among the arms of its role. The arms with which `arm` is compared come first.

        later: arms that come after this arm. If each of two arms is the other's baseline, they keep the contract's
        order.
        """
        before = {each for each in self.earlier.get(arm, ()) if self.role[each] == self.role[arm]} - later - {arm}
        return 1 + max((self._place(each, later | {arm}) for each in before), default=0)

    def add(self, part: AnyPart, commit: str | None) -> None:
        baselines, others = _by_role(part)
        self.commit = commit if baselines else self.commit
        self.baselines |= baselines
        self.others |= others
        for field_name, arm in part.arms().items():
            role = {part.candidate_path: CANDIDATE, "baseline": BASELINE}.get(field_name, CONTROL)
            self.role[arm] = min(role, self.role.get(arm, role))
            self.replicas[arm] = max(part.replicas().get(arm, 1), self.replicas.get(arm, 0))
        group = sorted(set(part.arms().values()))
        self.groups += [group] if group not in self.groups else []
        self.compared += [arms for arms in part.compared() if arms not in self.compared]
        for arm, fields in part.recorded_of().items():
            self.recorded_of[arm] = self.recorded_of.get(arm, {}) | fields
        self.observe_syncs |= part.sync_arms()
        if part.sync_arms():
            self.watch_every_step.add(part.arms()[part.candidate_path])
        demand = part.gradients()
        if demand is not None:
            self.gradient_steps |= set(demand.steps)
            self.gradient_arms |= {demand.candidate, demand.baseline or demand.candidate, *demand.also}
            self.gradient_arms |= {*demand.compared()}
            if demand.baseline is not None:
                self.baseline_of |= dict.fromkeys(demand.compared(), demand.baseline)
        # The gradients and the end state of an arm are compared with those of an arm that was executed earlier.
        # Therefore the baseline comes first.
        named = part.arms()
        pairs = [(named.get(part.candidate_path), named.get("baseline")), *self.baseline_of.items()]
        for later, first in pairs:
            if later is not None and first is not None:
                self.earlier.setdefault(later, set()).add(first)

    def order(self, contract: Contract) -> list[str]:
        """Return the arms in their order of execution: baselines, candidates, controls. Within a role, an arm comes
        after its baselines."""
        as_written = list(contract.arms)
        return sorted(self.role, key=lambda arm: (self.role[arm], self._place(arm), as_written.index(arm)))


def _steps_within(steps: Collection[int], length: int) -> list[int]:
    """Return the sorted steps that a workload of `length` steps has. Negative numbers in `steps` count from the end."""
    counted = {step if step >= 0 else length + step for step in steps}
    return sorted(step for step in counted if 0 <= step < length)


def _nudged(part: AnyPart, arm: str) -> bool:
    """Return True if the arm is a control whose start parameters the harness changes by about one rounding error
    ("nudged")."""
    return bool(part.recorded_of().get(arm, {}).get("nudged", False))


def _by_role(part: AnyPart) -> tuple[set[str], set[str]]:
    """Return two sets of arms: the part's baseline with the controls that `_nudged` finds, and all other arms of the
    part."""
    arms = part.arms()
    return {arm for name, arm in arms.items() if name in _OF_BASELINE}, {
        arm for name, arm in arms.items() if name not in _OF_BASELINE
    }


def _joined(one: dict[str, object], other: dict[str, object]) -> dict[str, object] | None:
    """Return settings with which one run can serve two parts. Return None if there are none, or if such a run would
    execute combinations of settings that no part needs.

    The values of `operations` and `magnitudes` are joined if only one of these two settings differs, or if the values
    of one part include those of the other part. If bounds are given by data type, both parts must name the same data
    types. All other settings must be equal.
    """
    names = [name for name in TRIED_TOGETHER if name in one and name in other]
    ours, theirs = ({name: cast("list[object]", settings[name]) for name in names} for settings in (one, other))
    union = {name: [*ours[name], *(each for each in theirs[name] if each not in ours[name])] for name in names}
    joined = {**one, **union}
    if _tried(joined) != _tried({**other, **union}):
        return None
    lacking = [{name for name in names if len(given[name]) < len(union[name])} for given in (ours, theirs)]
    return joined if not all(lacking) or len(set.union(*lacking)) == 1 else None


def _tried(settings: dict[str, object]) -> dict[str, object]:
    """Return the settings that a probe needs. Of bounds by data type, a probe needs only the data types, so the values
    of the bounds are left out."""
    bounds = settings.get("max_relative_error")
    return {**settings, "max_relative_error": list(bounds)} if isinstance(bounds, dict) else settings


class RunBuilder:
    """Plans the runs for the parts of claims that are judged on one workload of a contract."""

    def __init__(
        self,
        contract: Contract,
        workload_name: str,
        fault: PlannedFault | None,
        data: str | None,
        model_directory: str | None,
        baseline: str | None = None,
        *,
        accepted: Mapping[str, str | None] = MappingProxyType({}),
    ) -> None:
        """Start without planned runs. baseline: the commit for baseline arms; None: all arms use the working tree.

        accepted: other commits for the baseline arms of some claims, by claim.
        """
        self._contract, self._workload_name, self._fault = contract, workload_name, fault
        self._baseline, self._accepted = baseline, accepted
        self._data, self._model_directory = data, model_directory
        self._paired: dict[ProbeName, list[_PairedRun]] = {}
        self._others: dict[str, Run] = {}

    def add(self, claim: AnyClaim, index: int, part: AnyPart) -> list[str]:
        """Plan the runs for a part of a claim. Return the ids of the runs whose evidence decides the part. index: the
        part's index in the claim."""
        row = probe_of(part)
        probe, commit = row.name, self._accepted.get(claim.id, self._baseline)
        if row.arm_by_arm:
            return [self._add_paired(part, probe, commit)]
        settings = part.model_dump(mode="json", include=set(kind_of(part.kind).probes[probe]))
        processes = part.process_count()
        if processes is None:
            return [self._shared(part, probe, settings)]
        return [
            self._other(
                probe,
                f"{claim.id}+{index}+{process}",
                dict.fromkeys(part.arms_of(process), 1),
                settings,
                process,
                part.measurement_of(process),
                dict.fromkeys(_by_role(part)[0], commit),
            )
            for process in range(processes)
        ]

    def runs(self) -> list[Run]:
        """Return the planned runs. Paired runs come first, because they take the least time and reveal the most."""
        paired = [self._paired_run(n, one) for planned in self._paired.values() for n, one in enumerate(planned)]
        return [*paired, *self._others.values()]

    def _add_paired(self, part: AnyPart, probe: ProbeName, commit: str | None) -> str:
        known = self._paired.setdefault(probe, [])
        taking = (n for n, planned in enumerate(known) if planned.takes(part, commit))
        number = next(taking, len(known))
        if number == len(known):
            known.append(_PairedRun(probe))
        known[number].add(part, commit)
        return self._paired_id(probe, number)

    def _paired_id(self, probe: ProbeName, number: int) -> str:
        return self._id(probe if number == 0 else f"{probe}+{number}")

    def _paired_run(self, number: int, planned: _PairedRun) -> Run:
        arms = {arm: planned.replicas[arm] for arm in planned.order(self._contract)}
        commits = dict.fromkeys(planned.baselines, planned.commit)
        run = self._run(self._paired_id(planned.probe, number), planned.probe, arms, {}, 0, commits)
        observed = {
            name: arm.model_copy(
                update={
                    "observe_syncs": name in planned.observe_syncs,
                    "watch_every_step": name in planned.watch_every_step,
                    **planned.recorded_of.get(name, {}),
                }
            )
            for name, arm in run.arms.items()
        }
        return run.model_copy(
            update={
                "arms": observed,
                "baseline_of": planned.baseline_of,
                "gradient_steps": _steps_within(planned.gradient_steps, run.workload.steps),
                "gradient_arms": sorted(planned.gradient_arms),
                "groups": planned.groups,
                "compared": planned.compared,
            }
        )

    def _shared(self, part: AnyPart, probe: ProbeName, values: dict[str, object]) -> str:
        """Return the id of a run that executes only the part's candidate. Parts with compatible settings share the
        run."""
        candidate = part.arms()[part.candidate_path]
        for run in self._others.values():
            if run.probe == probe and list(run.arms) == [candidate]:
                joined = _joined(run.settings, values)
                if joined is not None:
                    self._others[run.id] = run.model_copy(update={"settings": joined})
                    return run.id
        number = sum(run.probe == probe for run in self._others.values())
        return self._other(probe, f"{candidate}+{number}", {candidate: 1}, values, 0)

    def _other(
        self,
        probe: ProbeName,
        suffix: str,
        arms: dict[str, int],
        settings: dict[str, object],
        process: int,
        measurement: int = 0,
        commits: Mapping[str, str | None] = MappingProxyType({}),
    ) -> str:
        identity = self._id(f"{probe}+{suffix}")
        run = self._run(identity, probe, arms, settings, process, commits)
        self._others[identity] = run.model_copy(update={"measurement": measurement})
        return identity

    def _run(
        self,
        identity: str,
        probe: ProbeName,
        arms: dict[str, int],
        settings: dict[str, object],
        process: int,
        commits: Mapping[str, str | None],
    ) -> Run:
        fault_arms = sorted(set(arms) & self._fault.arms) if self._fault is not None else []
        return Run(
            id=identity,
            contract=self._contract.id,
            probe=probe,
            workload_name=self._workload_name,
            workload=self._contract.workloads[self._workload_name],
            arms={name: self._arm(name, replicas, commits.get(name)) for name, replicas in arms.items()},
            process=process,
            settings=settings,
            fault=self._fault.name if self._fault is not None and fault_arms else None,
            fault_arms=fault_arms,
            data=self._data,
            model_directory=self._model_directory,
        )

    def _arm(self, name: str, replicas: int, commit: str | None) -> PlannedArm:
        arm = self._contract.arms[name]
        return PlannedArm(arm=arm, system=arm.system or self._contract.system, commit=commit, replicas=replicas)

    def _id(self, suffix: str) -> str:
        """Return the id of a run, which ends with `suffix`. If the id is too long for a folder's name, it is cut and
        ends with a digest."""
        identity = f"{self._contract.id}+{self._workload_name}+{suffix}"
        if len(identity) <= ID_LIMIT:
            return identity
        digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
        return f"{identity[: ID_LIMIT - 17]}+{digest}"


# The following functions find the first difference between the runs that were made for a unit and the runs that the
# unit's contract requires now. Texts, bounds and guards are not part of a run. Therefore a contract can judge old
# evidence if only its texts, bounds and guards have changed. All other contents of a contract determine what is
# executed. Evidence with another workload, arm, system or probe setting cannot be judged by this contract.

ONE = "one"


def first_difference(
    contract: Contract,
    claim: AnyClaim,
    workload: str,
    made: Sequence[Run],
    *,
    unread: int = 0,
    fault: str | None = None,
    baseline: str | None = None,
) -> Difference | None:
    """Return the first difference between the runs `made` and the runs that the contract requires now.

    made: the runs that decided the unit. Return None if every part of the claim has the runs that it requires, and each
    run of `made` is required by some part.

    unread: how many of the unit's runs cannot be read. So many required runs may be missing in `made`, because other
    code reports them. fault: a fault that was planted on purpose, which the runs in `made` may have.
    baseline: the commit of the baseline arms.
    """
    # A contract names neither the data nor the model directory, but all runs of a unit must have the same values.
    for name in ("data", "model_directory"):
        if len({getattr(run, name) for run in made}) > 1:
            return Difference(name, "one for all runs", "several")
    used: set[int] = set()
    for index, part in enumerate(parts_of(claim)):
        builder = RunBuilder(contract, workload, None, None, None, baseline)
        builder.add(claim, index, part)
        demanded = builder.runs()
        # For each required run, find the index in `made` of the run that was made for it, or None. The runs of one
        # timing differ only in the number of their process, which is compared, too.
        serving = [
            next((number for number, run in enumerate(made) if _first(wanted, run, fault) is None), None)
            for wanted in demanded
        ]
        used |= {number for number in serving if number is not None}
        if serving.count(None) > unread:
            return _nearest_difference(demanded[serving.index(None)], made, fault)
    stray = next((run for number, run in enumerate(made) if number not in used), None)
    return None if stray is None else Difference(f"run {stray.id}", NONE, f"a {stray.probe} run")


def arms_demanded(contract: Contract, claim: AnyClaim, workload: str) -> set[str]:
    """Return the names of all arms that the claim's runs execute on this workload, including controls."""
    builder = RunBuilder(contract, workload, None, None, None, None)
    for index, part in enumerate(parts_of(claim)):
        builder.add(claim, index, part)
    return {arm for run in builder.runs() for arm in run.arms}


def _nearest_difference(wanted: Run, made: Sequence[Run], fault: str | None) -> Difference:
    alike = [run for run in made if run.probe == wanted.probe]
    if not alike:
        return Difference(f"a {wanted.probe} run", ONE, NONE)
    nearest = next((run for run in alike if run.process == wanted.process), alike[0])
    return _first(wanted, nearest, fault) or Difference(f"a {wanted.probe} run for each use", ONE, NONE)


def _first(wanted: Run, made: Run, fault: str | None) -> Difference | None:
    unplanted = made.model_copy(update={"fault": None}) if made.fault == fault else made
    return next(differences(unplanted, wanted, DEMANDED, {arm: arm for arm in wanted.arms}), None)

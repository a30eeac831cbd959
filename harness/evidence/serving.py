"""Decide when the evidence of one run (the host) can be used for another run (the guest), which is then not executed.

The host's process must have executed everything that the guest requires. The table `SHARED` has one rule for every
field of a run and of a planned arm. The tables for other purposes are derived from `SHARED`. This module also builds a
run's evidence from lanes (processes that execute parts of a run) or from a host.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import eq
from pathlib import Path
from typing import Any, TypeVar

from harness.contract.schema import Arm, Needs, Workload
from harness.evidence import layout
from harness.evidence.arm_records import ArmEnd, Gradients, HostSyncEvidence
from harness.evidence.base import Cause, Record, RunRecord
from harness.evidence.files import Damaged
from harness.evidence.plan_records import PlannedArm, Run
from harness.evidence.run_evidence import ArmEvidence, RunEvidence, execution_of, recorded_in
from harness.evidence.run_records import ArmFailed
from harness.kinds import probe_named

AN_ARM, NONE = "an arm", "none"
# Settings of kernel comparisons that are lists or mappings. An executed run (host) may have more entries in them than
# the run that uses its evidence (guest) requires. If a setting gives a bound for each data type, only the data types
# are compared here, because a judge reads the bounds from the claim.
_TRIED = frozenset({"operations", "magnitudes", "max_relative_error"})


@dataclass(frozen=True)
class Difference:
    """A field in which two runs differ: the required value and the value of the executed run, as text."""

    field: str
    demanded: str
    made: str

    def __str__(self) -> str:
        return f"{self.field}: {self.demanded} in the contract, {self.made} in the evidence"


# Tuples of three: a path inside the compared field, the value that the guest requires, and the value of the host.
Unmet = Iterator[tuple[str, Any, Any]]


def _unequal(host: Any, guest: Any) -> Unmet:
    """Yield each entry in which two mappings differ. If `host` or `guest` is not a mapping, yield both values if they
    differ. True differs from 1."""
    if isinstance(host, Mapping) and isinstance(guest, Mapping):
        pairs = [(f".{key}", guest.get(key), host.get(key)) for key in {**guest, **host}]
    else:
        pairs = [("", guest, host)]
    return (pair for pair in pairs if pair[1] != pair[2] or isinstance(pair[1], bool) is not isinstance(pair[2], bool))


def _missing(host: Any, guest: Any) -> Unmet:
    """Yield what one field of a run requires (`guest`) and the same field of the executed run lacks (`host`): entries
    of a mapping, a whole list, or a value."""
    if isinstance(guest, Mapping):
        yield from ((f".{key}", value, host.get(key)) for key, value in guest.items() if host.get(key) != value)
    elif isinstance(guest, list):
        yield from [("", guest, host)] if any(each not in host for each in guest) else []
    elif guest and guest != host:
        yield ("", guest, host)


def _fewer(host: float, guest: float) -> Unmet:
    if host < guest:
        yield ("", guest, host)


def _untried(host: Mapping[str, Any], guest: Mapping[str, Any]) -> Unmet:
    exact = ({name: value for name, value in run.items() if name not in _TRIED} for run in (host, guest))
    yield from _unequal(*exact)
    for name in sorted(_TRIED & guest.keys()):
        there, demanded = (_items(run.get(name)) for run in (host, guest))
        yield from ((f".{name}", *unmet[1:]) for unmet in _missing(there, demanded))


def _items(value: object) -> list[object]:
    return list(value) if isinstance(value, list | dict) else []


def _hosts(host: Any, _guest: Any) -> Any:
    return host


def _union(host: Any, guest: Any) -> Any:
    if isinstance(host, Mapping):
        return {**host, **{key: value for key, value in guest.items() if key not in host}}
    return sorted({*host, *guest}) if isinstance(host, list) else host or guest


def _with(host: list[Any], guest: list[Any]) -> list[Any]:
    return [*host, *(each for each in guest if each not in host)]


@dataclass(frozen=True)
class Rule:
    """The rule by which one field is compared between an executed run (the host) and a run that could use the host's
    evidence (the guest).

    unmet: yields what the guest's value requires and the host's value does not provide. joined: returns a value that
    meets the requirements of both runs or, if there is no such value, the host's value. seen: returns the part of a
    value that is compared.
    """

    unmet: Callable[[Any, Any], Unmet]
    joined: Callable[[Any, Any], Any] = _hosts
    seen: Callable[[Any], Any] = lambda value: value


def trained_on(workload: Workload) -> dict[str, object]:
    """Return the fields of a workload that influence training, by name. Of the workload's `needs`, only the device is
    returned, because all other needs only select a machine."""
    fields = {name: getattr(workload, name) for name in Workload.model_fields if name not in ("needs", "options")}
    options = {f"options.{name}": value for name, value in workload.options.items()}
    return fields | {"needs.device": workload.needs.device} | options


def _settings(arm: Arm) -> dict[str, object]:
    """Return all settings of an arm except its system. The planned arm has a separate field for the system."""
    return {**{name: getattr(arm, name) for name in Arm.model_fields if name != "system"}, **arm.settings()}


def _with_needs(host: Workload, guest: Workload) -> Workload:
    """Return the host's workload with the needs of both runs: the modules of both, and the larger memory. The memory is
    None if one run does not state it."""
    memory = [workload.needs.memory_gib for workload in (host, guest)]
    most = None if None in memory else max(each for each in memory if each is not None)
    modules = list(dict.fromkeys([*host.needs.modules, *guest.needs.modules]))
    needs: Needs = host.needs.model_copy(update={"memory_gib": most, "modules": modules})
    return host.model_copy(update={"needs": needs})


def _nothing(_host: Any, _guest: Any) -> Unmet:
    yield from ()


EQUAL = Rule(_unequal)
INCLUDES = Rule(_missing, _union)
HAS = Rule(_missing)  # like INCLUDES, but the host cannot be extended by what the guest requires
AT_LEAST = Rule(_fewer, max)
IGNORED = Rule(_nothing)
TRIED = Rule(_untried)
ASKED = Rule(lambda host, guest: _missing(host, {arm: one for arm, one in guest.items() if one is not None}))

Rules = Mapping[str, Rule]
# Rules for a guest that reads the host's evidence under other arm names. Differences are reported in the order of this
# table.
SHARED: Rules = {
    "id": IGNORED,
    "contract": IGNORED,
    "workload_name": IGNORED,
    "probe": EQUAL,
    "process": EQUAL,
    "measurement": EQUAL,
    "workload": Rule(_unequal, _with_needs, trained_on),
    "arms": INCLUDES,  # the guest's arms, by name; the rules that follow are for the fields of each arm
    "arm": Rule(_unequal, seen=_settings),
    "system": EQUAL,
    "commit": EQUAL,
    "replicas": AT_LEAST,
    "first_replica": EQUAL,
    "observe_syncs": INCLUDES,
    "watch_every_step": INCLUDES,
    "watch_ranks": INCLUDES,
    # the host's value cannot be changed here, because movements are compared with those of the arms executed before
    "moves": HAS,
    "sketches": INCLUDES,
    "nudged": EQUAL,
    "micro_batches": INCLUDES,
    "rounded_to": INCLUDES,
    "baseline_of": INCLUDES,
    "gradient_steps": INCLUDES,
    "gradient_arms": INCLUDES,
    "settings": EQUAL,
    "fault": EQUAL,
    "fault_arms": EQUAL,
    "data": EQUAL,
    "model_directory": EQUAL,
    "wall_limit_s": AT_LEAST,
    "heartbeat_s": AT_LEAST,
    "groups": Rule(_nothing, lambda host, guest: _with(host, guest) if host and guest else []),
    "without": IGNORED,
    "compared": Rule(_nothing, lambda host, guest: None if None in (host, guest) else _with(host, guest)),
}
# Rules for runs whose probe does not execute one arm after the other, and for estimates of a run's time. Host and guest
# must execute equal work.
SAME: Rules = {
    **{name: replace(EQUAL, seen=rule.seen) for name, rule in SHARED.items()},
    **dict.fromkeys(("id", "contract", "workload_name", "wall_limit_s", "heartbeat_s"), IGNORED),
}
# Rules for a lane, a process that executed a part of a run. Its executions are compared separately, one by one.
PART: Rules = {
    **dict.fromkeys(SHARED, EQUAL),
    "arms": INCLUDES,
    **dict.fromkeys(("replicas", "first_replica", "without"), IGNORED),
}
# Rules for evidence of arms that no planted fault changes. The host may make comparisons that the guest does not need.
DONATED: Rules = {**SHARED, "workload_name": EQUAL, "baseline_of": ASKED, "fault": IGNORED}
# Rules for a run that a contract requires, compared with an executed run. A contract determines neither data nor time
# limits.
DEMANDED: Rules = {
    **DONATED,
    "contract": EQUAL,
    "settings": TRIED,
    "fault": EQUAL,
    **dict.fromkeys(("fault_arms", "data", "model_directory", "wall_limit_s", "heartbeat_s"), IGNORED),
}
_OF_RUN, _OF_ARM = tuple(Run.model_fields), tuple(PlannedArm.model_fields)
# Rules for two runs whose arms are ignored in the comparison.
ALIKE: Rules = {
    name: rule if rule.unmet is _unequal and name in _OF_RUN and name != "fault_arms" else IGNORED
    for name, rule in SHARED.items()
}
if SHARED.keys() != {*_OF_RUN, *_OF_ARM}:
    raise TypeError("SHARED must have a rule for each field of `Run` and `PlannedArm`, and for no other name")


def serves(host: Run, guest: Run, rules: Rules, arms: Mapping[str, str] | None = None) -> bool:
    """Return True if the executed run `host` does everything that the run `guest` requires. arms: an arm's name in
    `guest` -> its name in `host`."""
    return not any(True for _ in differences(host, guest, rules, arms))


def differences(host: Run, guest: Run, rules: Rules, arms: Mapping[str, str] | None = None) -> Iterator[Difference]:
    """Yield each field in which the executed run `host` does not meet what the run `guest` requires. arms: the arms to
    compare: an arm's name in `guest` -> its name in `host`. None means all arms, under equal names."""
    if arms is not None:
        host, guest = of_arms(host, {there: there for there in arms.values()}), of_arms(guest, arms)
    for name in rules:
        if name == "arms" and rules[name] is not IGNORED:
            yield from _of_arms(host, guest, rules)
        elif name in _OF_RUN:
            yield from _of_field(name, name, host, guest, rules)


def _of_arms(host: Run, guest: Run, rules: Rules) -> Iterator[Difference]:
    more = host.arms if rules["arms"].unmet is _unequal else ()
    for name in {**guest.arms, **dict.fromkeys(more)}:
        if name not in host.arms or name not in guest.arms:
            yield Difference(f"arms.{name}", *(AN_ARM if name in run.arms else NONE for run in (guest, host)))
            continue
        for field in _OF_ARM:
            yield from _of_field(f"arms.{name}.{field}", field, host.arms[name], guest.arms[name], rules)


def _of_field(place: str, name: str, host: Record, guest: Record, rules: Rules) -> Iterator[Difference]:
    rule = rules[name]
    for key, demanded, there in rule.unmet(rule.seen(getattr(host, name)), rule.seen(getattr(guest, name))):
        # Messages use the names of the contract: `workload` for `workload_name`. The settings of an arm get no prefix
        # `arm`.
        called = {"workload_name": "workload", "arm": ""}.get(name, name)
        yield Difference(f"{place.removesuffix(name)}{called}".removesuffix(".") + key, _text(demanded), _text(there))


def _text(value: object) -> str:
    return NONE if value is None else repr(value)


def of_arms(run: Run, arms: Mapping[str, str]) -> Run:
    """Return the run with only the arms named in `arms`, under new names. arms: an arm's name -> its new name."""
    return run.model_copy(
        update={
            "arms": {arms[name]: arm for name, arm in run.arms.items() if name in arms},
            "fault_arms": sorted(arms[name] for name in run.fault_arms if name in arms),
            "groups": _named(run.groups, arms),
            "compared": None if run.compared is None else _named(run.compared, arms),
            **_gradients(run, arms),
        }
    )


def _gradients(run: Run, arms: Mapping[str, str]) -> dict[str, object]:
    """Return the run's fields about gradients, reduced to the arms in `arms` and with their new names."""
    read = {name: new for name, new in arms.items() if name in reads_gradients(run)}
    return {
        "baseline_of": {new: _renamed(run.baseline_of.get(name), arms) for name, new in read.items()},
        "gradient_steps": run.gradient_steps if read else [],
        "gradient_arms": sorted(read.values()),
    }


def widened(host: Run, guest: Run) -> Run:
    """Return the run `host`, extended by what the run `guest` requires, so that one execution serves both runs. If no
    value of a field meets the requirements of both runs, the value of `host` is kept. guest: a run that names its arms
    as `host` does (see `of_arms`)."""
    whole = host.model_copy(update=_gradients(host, {name: name for name in host.arms}))
    changes = {name: SHARED[name].joined(getattr(whole, name), getattr(guest, name)) for name in _OF_RUN}
    changes["arms"] = {
        **host.arms,
        **{name: _joined(host.arms.get(name, arm), arm) for name, arm in guest.arms.items()},
    }
    changes["fault_arms"] = sorted({*host.fault_arms, *({*guest.fault_arms} - host.arms.keys())})
    changes["baseline_of"] = {arm: one for arm, one in changes["baseline_of"].items() if one is not None}
    return host.model_copy(update=changes)


def _joined(host: PlannedArm, guest: PlannedArm) -> PlannedArm:
    return host.model_copy(
        update={name: SHARED[name].joined(getattr(host, name), getattr(guest, name)) for name in _OF_ARM}
    )


def reads_gradients(run: Run) -> Collection[str]:
    """Return the arms whose gradients a claim of the run reads."""
    if not run.gradient_steps:
        return frozenset()
    return run.arms.keys() if run.gradient_arms is None else set(run.gradient_arms)


def _renamed(name: str | None, arms: Mapping[str, str]) -> str | None:
    return None if name is None else arms.get(name, name)


def _named(groups: Sequence[Sequence[str]], arms: Mapping[str, str]) -> list[list[str]]:
    return [[arms[name] for name in group if name in arms] for group in groups]


# The code below joins the evidence of a run's lanes. A lane is a process that executed a part of the run. `run.json`
# describes the whole run, and the `run.json` in each lane's folder describes the part of the lane. Together, the lanes
# contain every execution of the run exactly once. If a lane died or is missing, only the arms of this lane fail.

Execution = tuple[str, int]  # the name of an arm, and the number of its execution


@dataclass(frozen=True)
class Lane:
    """One lane (a process that executed part of a run), as read from its folder."""

    name: str
    run: Run
    evidence: RunEvidence


def lane_folders(directory: Path) -> list[Path]:
    """Return the folders of a run's lanes (processes for parts of the run), in the order of their numbers. Return an
    empty list if the run has no lanes."""
    folders = [path for path in directory.glob(f"{layout.LANE}*") if path.is_dir() and not path.is_symlink()]
    numbered = {path: path.name.removeprefix(layout.LANE) for path in folders}
    return sorted(
        (path for path, number in numbered.items() if number.isdecimal()), key=lambda path: int(numbered[path])
    )


def joined(run: Run, lanes: Sequence[Lane], unreadable: Sequence[str]) -> RunEvidence:
    """Return the evidence of `run`, joined from its lanes, as if one process had executed the run. unreadable: messages
    about lanes that cannot be read. Raises `Damaged` if a lane is not part of this run, or if lanes overlap."""
    executed: dict[Execution, ArmEvidence] = {}
    failed: dict[str, ArmFailed] = {}
    for lane in lanes:
        _require_part(lane, run)
        failed = {**_failures(lane), **failed}
        for arm, executions in lane.evidence.arms.items():
            executed |= dict(zip([(arm, replica) for replica in lane.run.arms[arm].indices], executions, strict=False))
    for arm, replica in missing(run, [lane.run for lane in lanes]):
        lost = f"no lane has replica {replica}; " + "; ".join(unreadable)
        cause: Cause = "garbage" if unreadable else "incomplete"
        failed.setdefault(arm, ArmFailed(arm=arm, cause=cause, detail=lost.rstrip("; "), phase=None, stack=""))
    seen = [lane.evidence for lane in lanes]
    obstacle = next((one.obstacle for one in seen if one.obstacle is not None), None)
    others = [record for one in seen for record in one.of_packages]
    return RunEvidence(run.id, run.probe, _by_arm(executed), failed=failed, obstacle=obstacle, of_packages=others)


def missing(run: Run, lanes: Sequence[Run]) -> list[Execution]:
    """Return the planned executions that no lane contains. Raises `Damaged` for an execution that was not planned or is
    in two lanes."""
    held = [execution for lane in lanes for execution in lane.executions()]
    for arm, replica in held:
        if held.count((arm, replica)) > 1:
            raise Damaged(f"the evidence of two processes holds the same replica {replica} of arm {arm}")
        if (arm, replica) not in run.executions():
            raise Damaged(f"the evidence of a process holds replica {replica} of arm {arm}, which was not planned")
    return [execution for execution in run.executions() if execution not in held]


def _require_part(lane: Lane, run: Run) -> None:
    """Raise `Damaged` if the lane's run differs from `run` in anything else than missing executions."""
    if not serves(run, lane.run, PART):
        raise Damaged(f"{lane.name}/{layout.RUN} describes a run that is not a part of this run")
    for arm, executions in lane.evidence.arms.items():
        if len(executions) > lane.run.arms[arm].replicas:
            raise Damaged(f"{lane.name} holds more executions of arm {arm} than were planned")


def _failures(lane: Lane) -> dict[str, ArmFailed]:
    """Return the failure of each failed arm of a lane, by arm: the arm's own failure, or the death of the lane."""
    death = lane.evidence.death
    if death is None:
        return lane.evidence.failed
    ended = {
        arm: ArmFailed(arm=arm, cause=death.cause, detail=death.detail, phase=death.phase, stack=death.stack)
        for arm in lane.run.arms
    }
    return {**ended, **lane.evidence.failed}


def _by_arm(executed: dict[Execution, ArmEvidence]) -> dict[str, list[ArmEvidence]]:
    """Return each arm's executions in order. If an execution is missing, the arm's later executions are left out,
    because in the list they would have the numbers of earlier executions."""
    arms: dict[str, list[ArmEvidence]] = {}
    for arm, replica in sorted(executed):
        if replica == len(arms.get(arm, [])):
            arms.setdefault(arm, []).append(executed[arm, replica])
    return arms


# The code below lets a run that was not executed (the guest) use the evidence of a run that was executed (the host).
# The guest's directory has only two files. `run.json` states what the guest's claims require. `shared.json` names the
# host and maps each arm of the guest to an arm of the host.

Named = TypeVar("Named", bound=RunRecord)


class Shared(Record):
    """`shared.json`: names the run whose process executed this run's arms. arms: an arm's name in this run -> its name
    in the other run."""

    run: str
    arms: dict[str, str]


def lacks(host: Run, guest: Run, arms: Mapping[str, str]) -> str | None:
    """Return in words what the run `guest` requires and the run `host` did not execute. Return None if nothing is
    missing. arms: an arm's name in `guest` -> its name in `host`."""
    if not probe_named(guest.probe).arm_by_arm:
        return None if serves(host, guest, SAME) and all(map(eq, arms, arms.values())) else "an equal run"
    if set(arms) != set(guest.arms) or len(set(arms.values())) < len(arms) or not set(arms.values()) <= set(host.arms):
        return "a separate arm for each arm of the run that is served"
    found = next(differences(host, guest, SHARED, arms), None)
    if found is None:
        return None
    for name, there in arms.items():
        if found.field.startswith(f"arms.{there}."):
            what = "repetitions" if found.field.endswith(".replicas") else "settings"
            return f"the {what} of arm {name}, which is arm {there} in that run"
    return f"{found.field} is {found.made}, but {found.demanded} is required"


def seen_by(guest: Run, host: RunEvidence, arms: Mapping[str, str]) -> RunEvidence:
    """Return the evidence of the run `host` with the id and arm names of the run `guest`, as if `guest` had been
    executed. arms: an arm's name in `guest` -> its name in `host`."""
    if not probe_named(guest.probe).arm_by_arm:
        return replace(host, run_id=guest.id)
    ours = {there: name for name, there in arms.items()}
    executed = {
        name: [
            _execution_renamed(one, guest, name, ours)
            for one in host.arms[there]
            if one.start.replica in planned.indices
        ]
        # in sorted order, because `assemble` reads the arms of an executed run in this order, too
        for name, planned in sorted(guest.arms.items())
        if (there := arms[name]) in host.arms
    }
    failed = {
        name: _record_named(host.failed[there], name, ours) for name, there in arms.items() if there in host.failed
    }
    others = tuple(seen_by(guest, one, arms) for one in host.ranks[: guest.ranks - 1])
    named = [(one, getattr(one, "arm", None)) for one in host.of_packages]
    of_packages = [
        _record_named(one, ours[arm], ours) if arm else one for one, arm in named if arm is None or arm in ours
    ]
    return replace(host, run_id=guest.id, arms=executed, failed=failed, ranks=others, of_packages=of_packages)


def _execution_renamed(seen: ArmEvidence, guest: Run, name: str, ours: Mapping[str, str]) -> ArmEvidence:
    """Return an execution from a host (an executed run) as evidence of the run `guest`: with the name that the arm has
    in `guest`, and without records that `guest` did not request."""
    steps = guest.gradient_steps if name in reads_gradients(guest) else []
    asked = [
        record
        for record in recorded_in(seen)
        if not isinstance(record, Gradients) or record.step in steps
        if not isinstance(record, HostSyncEvidence) or guest.arms[name].observe_syncs
    ]
    return execution_of(seen.series, [_record_named(record, name, ours) for record in asked])


def _record_named(record: Named, name: str, ours: Mapping[str, str]) -> Named:
    """Return a record of an executed run (the host) as a record of the run that uses it (the guest): with the arm's
    name in the guest, and without comparisons with arms that the guest does not have."""
    changes: dict[str, object] = {"arm": name}
    if isinstance(record, ArmEnd):
        for field, seen in (("differences", record.differences), ("moved_apart", record.moved_apart)):
            known = [one.model_copy(update={"arm": ours[one.arm]}) for one in seen or () if one.arm in ours]
            changes[field] = None if seen is None else known
    elif isinstance(record, Gradients):
        changes["baseline"] = ours.get(record.baseline or "")
    return record.model_copy(update=changes)

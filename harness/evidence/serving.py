"""Define the relation "run A serves run B": A's process executed all that B demands, so B can be judged from it.

One table has a rule for every field of a run and of a planned arm. Purposes that truly differ replace single rules.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.contract.schema import Arm, Needs, Workload
from harness.evidence.base import Record
from harness.evidence.plan_records import PlannedArm, Run

AN_ARM, NONE = "an arm", "none"
# Of kernel comparisons: what was tried next to what is demanded does no harm. Of bounds by data type the types are
# tried, and the bounds are judged by.
_TRIED = frozenset({"operations", "magnitudes", "max_relative_error"})


@dataclass(frozen=True)
class Difference:
    """A field with what is demanded there, and what the run has instead; both as text."""

    field: str
    demanded: str
    made: str

    def __str__(self) -> str:
        return f"{self.field}: {self.demanded} in the contract, {self.made} in the evidence"


Unmet = Iterator[tuple[str, Any, Any]]  # key within the field, what the guest demands, what the host has


def _unequal(host: Any, guest: Any) -> Unmet:
    """Yield the entries, or the values, that are not equal. True is not equal to 1."""
    if isinstance(host, Mapping) and isinstance(guest, Mapping):
        pairs = [(f".{key}", guest.get(key), host.get(key)) for key in {**guest, **host}]
    else:
        pairs = [("", guest, host)]
    return (pair for pair in pairs if pair[1] != pair[2] or isinstance(pair[1], bool) is not isinstance(pair[2], bool))


def _missing(host: Any, guest: Any) -> Unmet:
    """Yield what the guest demands and the host lacks: an entry, an item, a flag that is set, a value."""
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
    """unmet: of the host's value and the guest's, what the host's does not meet. joined: the value that meets both, if
    there is one. seen: what of a value is compared."""

    unmet: Callable[[Any, Any], Unmet]
    joined: Callable[[Any, Any], Any] = _hosts
    seen: Callable[[Any], Any] = lambda value: value


def trained_on(workload: Workload) -> dict[str, object]:
    """Return what decides the training. Of its needs only the device does; memory and modules choose a machine."""
    fields = {name: getattr(workload, name) for name in Workload.model_fields if name not in ("needs", "options")}
    options = {f"options.{name}": value for name, value in workload.options.items()}
    return fields | {"needs.device": workload.needs.device} | options


def _settings(arm: Arm) -> dict[str, object]:
    """Return all settings of an arm except its system, which the planned arm has."""
    return {**{name: getattr(arm, name) for name in Arm.model_fields if name != "system"}, **arm.settings()}


def _with_needs(host: Workload, guest: Workload) -> Workload:
    """Return the host's workload with the larger memory, or none where one declares none, and the modules of both."""
    memory = [workload.needs.memory_gib for workload in (host, guest)]
    most = None if None in memory else max(each for each in memory if each is not None)
    modules = list(dict.fromkeys([*host.needs.modules, *guest.needs.modules]))
    needs: Needs = host.needs.model_copy(update={"memory_gib": most, "modules": modules})
    return host.model_copy(update={"needs": needs})


def _nothing(_host: Any, _guest: Any) -> Unmet:
    yield from ()


EQUAL = Rule(_unequal)
INCLUDES = Rule(_missing, _union)
HAS = Rule(_missing)  # and cannot be made to: an arm that is executed otherwise is another one
AT_LEAST = Rule(_fewer, max)
IGNORED = Rule(_nothing)
TRIED = Rule(_untried)
ASKED = Rule(lambda host, guest: _missing(host, {arm: one for arm, one in guest.items() if one is not None}))

Rules = Mapping[str, Rule]
# For a guest that reads the host's evidence under names of its own. Differences are reported in this order.
SHARED: Rules = {
    "id": IGNORED,
    "contract": IGNORED,
    "workload_name": IGNORED,
    "probe": EQUAL,
    "process": EQUAL,
    "measurement": EQUAL,
    "workload": Rule(_unequal, _with_needs, trained_on),
    "arms": INCLUDES,  # by name, each by the rules of its own fields:
    "arm": Rule(_unequal, seen=_settings),
    "system": EQUAL,
    "commit": EQUAL,
    "replicas": AT_LEAST,
    "first_replica": EQUAL,
    "observe_syncs": INCLUDES,
    "watch_every_step": INCLUDES,
    "watch_ranks": INCLUDES,
    "moves": HAS,  # it records how far it moves from the arms before it: their order decides
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
# For a probe whose evidence is not arm by arm, and for what a run costs: it executes the same.
SAME: Rules = {
    **{name: replace(EQUAL, seen=rule.seen) for name, rule in SHARED.items()},
    **dict.fromkeys(("id", "contract", "workload_name", "wall_limit_s", "heartbeat_s"), IGNORED),
}
# For a lane of a run, whose executions are counted one by one.
PART: Rules = {
    **dict.fromkeys(SHARED, EQUAL),
    "arms": INCLUDES,
    **dict.fromkeys(("replicas", "first_replica", "without"), IGNORED),
}
# For the arms that a fault leaves alone: a comparison that no claim asked for does no harm.
DONATED: Rules = {**SHARED, "workload_name": EQUAL, "baseline_of": ASKED, "fault": IGNORED}
# For a contract, which says neither with which data nor within which limits it is run.
DEMANDED: Rules = {
    **DONATED,
    "contract": EQUAL,
    "settings": TRIED,
    "fault": EQUAL,
    **dict.fromkeys(("fault_arms", "data", "model_directory", "wall_limit_s", "heartbeat_s"), IGNORED),
}
_OF_RUN, _OF_ARM = tuple(Run.model_fields), tuple(PlannedArm.model_fields)
# For two runs before their arms are compared.
ALIKE: Rules = {
    name: rule if rule.unmet is _unequal and name in _OF_RUN and name != "fault_arms" else IGNORED
    for name, rule in SHARED.items()
}
if SHARED.keys() != {*_OF_RUN, *_OF_ARM}:
    raise TypeError("every field of a run and of a planned arm has its rule, and nothing else has one")


def serves(host: Run, guest: Run, rules: Rules, arms: Mapping[str, str] | None = None) -> bool:
    """Return True if the host's run has all that the guest's run demands. Arguments as of `differences`."""
    return not any(True for _ in differences(host, guest, rules, arms))


def differences(host: Run, guest: Run, rules: Rules, arms: Mapping[str, str] | None = None) -> Iterator[Difference]:
    """Yield everything in which the host's run has less than the guest's run demands, or something different.

    arms: the guest's names of arms -> the host's names, of the requested arms. None: both runs as they stand.
    """
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
        # a run calls its workload by a name, and an arm's settings are its own
        called = {"workload_name": "workload", "arm": ""}.get(name, name)
        yield Difference(f"{place.removesuffix(name)}{called}".removesuffix(".") + key, _text(demanded), _text(there))


def _text(value: object) -> str:
    return NONE if value is None else repr(value)


def of_arms(run: Run, arms: Mapping[str, str]) -> Run:
    """Return the part of a run that is about these arms, under new names. arms: the run's own name -> the new one."""
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
    """Return which gradients are read: steps, or none where no arm is read, and each read arm's baseline or None."""
    read = {name: new for name, new in arms.items() if name in reads_gradients(run)}
    return {
        "baseline_of": {new: _renamed(run.baseline_of.get(name), arms) for name, new in read.items()},
        "gradient_steps": run.gradient_steps if read else [],
        "gradient_arms": sorted(read.values()),
    }


def widened(host: Run, guest: Run) -> Run:
    """Return the host's run with all that the guest's demands, too. Where no run meets both, the host's demands stand.

    guest: its arms have the host's names, by `of_arms`.
    """
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
    """Return the arms whose gradients some claim of the run reads."""
    if not run.gradient_steps:
        return frozenset()
    return run.arms.keys() if run.gradient_arms is None else set(run.gradient_arms)


def _renamed(name: str | None, arms: Mapping[str, str]) -> str | None:
    return None if name is None else arms.get(name, name)


def _named(groups: Sequence[Sequence[str]], arms: Mapping[str, str]) -> list[list[str]]:
    return [[arms[name] for name in group if name in arms] for group in groups]

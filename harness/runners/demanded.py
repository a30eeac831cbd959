"""What a contract demands to be run for a unit, and the first thing in which runs that were made differ from it.

Texts, bounds and guards are no part of a run: evidence is judged by those of any contract. Whatever else a contract
says decides what is run, so evidence of another workload, arm, system or probe setting is evidence of something else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.contract.claims import AnyClaim, parts_of
from harness.contract.schema import Contract, Workload
from harness.evidence.base import Record
from harness.evidence.plan_records import PlannedArm, Run
from harness.runners.run_builder import RunBuilder

AN_ARM, ONE, NONE = "an arm", "one", "none"
_HOLDS_MORE = frozenset({"operations", "magnitudes", "max_relative_error"})  # what was tried beside it does no harm


@dataclass(frozen=True)
class Difference:
    """A field with what the contract demands there, and what the evidence has instead; both as text."""

    field: str
    demanded: str
    made: str

    def __str__(self) -> str:
        return f"{self.field}: {self.demanded} in the contract, {self.made} in the evidence"


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
    """The first thing in which `made`, the runs that a unit was decided by, are not what the contract demands.

    None where every part of the claim has the runs that it demands, and every run is one that some part demands.
    unread: how many runs of the unit left nothing that says what they were; their absence is another's to tell.
    fault: the fault that was planted on purpose, and that a run may have. baseline: the commit of the baselines.
    """
    for name in ("data", "model_directory"):  # a contract names neither; runs that are judged together share them
        if len({getattr(run, name) for run in made}) > 1:
            return Difference(name, "one for all runs", "several")
    used: set[int] = set()
    for index, part in enumerate(parts_of(claim)):
        builder = RunBuilder(contract, workload, None, None, None, baseline)
        builder.add(claim, index, part)
        demanded = builder.runs()
        serving = _matched(demanded, made, fault)
        used |= {number for number in serving if number is not None}
        if serving.count(None) > unread:
            return _nearest_difference(demanded[serving.index(None)], made, fault)
    stray = next((run for number, run in enumerate(made) if number not in used), None)
    return None if stray is None else Difference(f"run {stray.id}", NONE, f"a {stray.probe} run")


def arms_demanded(contract: Contract, claim: AnyClaim, workload: str) -> set[str]:
    """Return every arm that the claim's runs execute on this workload, controls among them."""
    builder = RunBuilder(contract, workload, None, None, None, None)
    for index, part in enumerate(parts_of(claim)):
        builder.add(claim, index, part)
    return {arm for run in builder.runs() for arm in run.arms}


def _matched(demanded: Sequence[Run], made: Sequence[Run], fault: str | None) -> list[int | None]:
    """For each demanded run the position of one that serves it, None where none does; equal runs differ by process."""
    numbered = list(enumerate(made))
    return [
        next((number for number, run in numbered if _first(wanted, run, fault) is None), None) for wanted in demanded
    ]


def _nearest_difference(wanted: Run, made: Sequence[Run], fault: str | None) -> Difference:
    alike = [run for run in made if run.probe == wanted.probe]
    if not alike:
        return Difference(f"a {wanted.probe} run", ONE, NONE)
    nearest = next((run for run in alike if run.process == wanted.process), alike[0])
    return _first(wanted, nearest, fault) or Difference(f"a {wanted.probe} run for each use", ONE, NONE)


def _first(wanted: Run, made: Run, fault: str | None) -> Difference | None:
    return next(_differences(wanted, made, fault), None)


def _differences(wanted: Run, made: Run, fault: str | None) -> Iterator[Difference]:
    """Everything in which a run is less than the demanded one, or another; more of the same is none."""
    names = {"contract": "contract", "workload_name": "workload", "probe": "probe"}
    names |= {"process": "process", "measurement": "measurement"}
    yield from (
        difference for field, name in names.items() for difference in _unequal(name, wanted, made, attribute=field)
    )
    yield from _mapping("workload", _of_workload(wanted.workload), _of_workload(made.workload))
    for name, arm in wanted.arms.items():
        if name not in made.arms:
            yield Difference(f"arms.{name}", AN_ARM, NONE)
        else:
            yield from _of_arm(f"arms.{name}", arm, made.arms[name])
    for candidate, baseline in wanted.baseline_of.items():
        if made.baseline_of.get(candidate) != baseline:
            there = _text(made.baseline_of.get(candidate))
            yield Difference(f"the baseline of {candidate}'s gradients", _text(baseline), there)
    yield from _missing("gradient_steps", wanted.gradient_steps, made.gradient_steps)
    if made.gradient_arms is not None:
        yield from _missing("gradient_arms", wanted.gradient_arms or [], made.gradient_arms)
    yield from _settings(wanted.settings, made.settings)
    if made.fault not in (None, fault):
        yield Difference("fault", _text(fault), _text(made.fault))


def _unequal(name: str, wanted: Record, made: Record, *, attribute: str) -> Iterator[Difference]:
    demanded, there = getattr(wanted, attribute), getattr(made, attribute)
    if demanded != there:
        yield Difference(name, _text(demanded), _text(there))


def _of_workload(workload: Workload) -> dict[str, object]:
    """What is trained on. Of its needs the device says where; memory and modules say on which machines."""
    fields: dict[str, object] = workload.model_dump(mode="json", exclude={"needs", "options"})
    options = {f"options.{name}": value for name, value in workload.options.items()}
    return fields | {"needs.device": workload.needs.device} | options


def _of_arm(name: str, wanted: PlannedArm, made: PlannedArm) -> Iterator[Difference]:
    fields, there = (
        {
            "capture": arm.arm.capture,
            "deterministic": arm.arm.deterministic,
            **arm.arm.settings(),
            "system": arm.system,
            "commit": arm.commit,
        }
        for arm in (wanted, made)
    )
    yield from _mapping(name, fields, there)
    if made.replicas < wanted.replicas:
        yield Difference(f"{name}.replicas", _text(wanted.replicas), _text(made.replicas))
    if wanted.observe_syncs and not made.observe_syncs:
        yield Difference(f"{name}.observe_syncs", _text(True), _text(False))
    for field in ("moves", "sketches"):
        if getattr(wanted, field) and not getattr(made, field):
            yield Difference(f"{name}.{field}", _text(True), _text(False))
    yield from _unequal(f"{name}.nudged", wanted, made, attribute="nudged")
    for field in ("micro_batches", "rounded_to"):
        if getattr(wanted, field) is not None:
            yield from _unequal(f"{name}.{field}", wanted, made, attribute=field)


def _settings(wanted: Mapping[str, object], made: Mapping[str, object]) -> Iterator[Difference]:
    exact = {name: value for name, value in wanted.items() if name not in _HOLDS_MORE}
    yield from _mapping("settings", exact, {name: made[name] for name in made if name not in _HOLDS_MORE})
    for name in sorted(_HOLDS_MORE & wanted.keys()):
        # bounds by data type: the types are tried, the bounds are judged by
        demanded, there = _items(wanted[name]), _items(made.get(name))
        yield from _missing(f"settings.{name}", demanded, there)


def _items(value: object) -> list[object]:
    return list(value) if isinstance(value, list | dict) else []


def _missing(name: str, wanted: Sequence[object], made: Sequence[object]) -> Iterator[Difference]:
    if any(value not in made for value in wanted):
        yield Difference(name, _text(list(wanted)), _text(list(made)))


def _mapping(place: str, wanted: Mapping[str, object], made: Mapping[str, object]) -> Iterator[Difference]:
    """Keys that only one of them has, and keys with unequal values; True is no 1."""
    for name in [*wanted, *(name for name in made if name not in wanted)]:
        demanded, there = wanted.get(name), made.get(name)
        if demanded != there or isinstance(demanded, bool) is not isinstance(there, bool):
            yield Difference(f"{place}.{name}", _text(demanded), _text(there))


def _text(value: object) -> str:
    return NONE if value is None else repr(value)

"""What the parts of a contract say of each other: names that exist, and bounds that can be met."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harness.contract.claims import AnyClaim, AnyPart, CompositeClaim, arms_of, parts_of
from harness.contract.kinds.kernels import Prewarm
from harness.contract.kinds.replay import Capture, HostSyncs, MemorySteady
from harness.contract.kinds.throughput import ThroughputRatio
from harness.contract.kinds.training import GradientMatch, Repeatability, TrajectoryMatch
from harness.contract.schema import Contract, Workload
from harness.contract.strict_yaml import Key, nearest

Path = tuple[Key, ...]


@dataclass(frozen=True)
class Problem:
    """A broken rule, at the path of the offending value."""

    path: Path
    rule: str
    got: str = ""
    remedy: str = ""


def problems(contract: Contract) -> list[Problem]:
    """Everything in a contract that names what is not there, or asks what cannot be met, in claim order."""
    return list(_problems(contract))


def _problems(contract: Contract) -> Iterator[Problem]:
    seen: set[str] = set()
    for index, claim in enumerate(contract.claims):
        here: Path = ("claims", index)
        if claim.id in seen:
            yield Problem((*here, "id"), "claim ids are unique", f"'{claim.id}' again", "rename one")
        seen.add(claim.id)
        yield from _workload_names(contract, claim, here)
        composite = isinstance(claim, CompositeClaim)
        for number, part in enumerate(parts_of(claim)):
            path: Path = (*here, "parts", number) if composite else here
            yield from _arm_names(contract, part, path)
            yield from _alone(contract, claim, part, path)
            for name in claim.on:
                if name in contract.workloads:
                    yield from _on_workload(claim, part, path, name, contract.workloads[name])


def _workload_names(contract: Contract, claim: AnyClaim, here: Path) -> Iterator[Problem]:
    for position, name in enumerate(claim.on):
        path = (*here, "on", position)
        if name not in contract.workloads:
            yield Problem(path, "`on` names a workload", f"'{name}'", nearest(name, contract.workloads))
        elif name in claim.on[:position]:
            yield Problem(path, "`on` names a workload once", f"'{name}' again", "remove it")


def _arm_names(contract: Contract, part: AnyPart, path: Path) -> Iterator[Problem]:
    """Named arms exist and differ; what must be captured asks for a capture."""
    seen: dict[str, str] = {}
    for field, arm in arms_of(part).items():
        place = (*path, *field.split("."))
        if arm not in contract.arms:
            yield Problem(place, f"`{field}` names an arm", f"'{arm}'", nearest(arm, contract.arms))
        elif arm in seen:
            rule = "an arm is not compared with itself"
            yield Problem(place, rule, f"'{arm}' as `{seen[arm]}` and as `{field}`", "name another arm")
        seen.setdefault(arm, field)
    candidate = part.candidate.arm if isinstance(part, HostSyncs) else part.candidate
    captures = part.mechanism is not None or isinstance(part, Capture)
    if captures and candidate in contract.arms and contract.arms[candidate].capture == "none":
        field = "candidate.arm" if isinstance(part, HostSyncs) else "candidate"
        remedy = "give it `capture: step` or `capture: backward`"
        yield Problem(
            (*path, *field.split(".")), "the candidate of a captured claim captures", f"'{candidate}'", remedy
        )


def _alone(contract: Contract, claim: AnyClaim, part: AnyPart, path: Path) -> Iterator[Problem]:
    """Rules of a judgement that do not depend on the workload."""
    if isinstance(part, ThroughputRatio):
        named = {
            claim.id: any(isinstance(one, TrajectoryMatch) for one in parts_of(claim)) for claim in contract.claims
        }
        if not named.get(part.trajectory):
            rule = "`trajectory` names a trajectory_match claim of this contract"
            valid = [name for name, matches in named.items() if matches]
            yield Problem(
                (*path, "trajectory"), rule, f"'{part.trajectory}'", nearest(part.trajectory, valid) or "add one"
            )
    if isinstance(part, HostSyncs) and not part.control.exactly:
        rule = "the control shows that a sync would be seen: `exactly`, at least 1"
        got = "no `exactly`" if part.control.exactly is None else "0"
        yield Problem((*path, "control"), rule, got, "name an arm that synchronizes")
    if isinstance(part, Capture) and part.nodes_at_most is not None and part.nodes_at_most < part.nodes_at_least:
        rule = "`nodes_at_most` is not below `nodes_at_least`"
        yield Problem((*path, "nodes_at_most"), rule, f"{part.nodes_at_most} < {part.nodes_at_least}")
    if isinstance(part, Prewarm) and part.scope == "device" and part.target != "device":
        remedy = "use `scope: coverage`, or leave `target` out"
        yield Problem((*path, "target"), "`scope: device` is judged on the device", f"'{part.target}'", remedy)
    yield from _effects_by_workload(claim, part, path)
    if isinstance(part, GradientMatch) and len(set(part.steps)) < len(part.steps):
        yield Problem((*path, "steps"), "`steps` are distinct", str(part.steps), "remove the repeated one")


def _on_workload(claim: AnyClaim, part: AnyPart, path: Path, name: str, workload: Workload) -> Iterator[Problem]:
    """Bounds that this workload can meet."""
    got = f"workload '{name}' has {workload.steps} steps"
    remedy = "lower it, or give the workload more steps"
    for field, value in _step_counts(part).items():
        if value > workload.steps:
            rule = f"`{field}` ({value}) is within the workload's steps"
            yield Problem((*path, *field.split(".")), rule, got, remedy)
    if isinstance(part, GradientMatch):
        for position, step in enumerate(part.steps):
            if step >= workload.steps:
                rule = f"step {step} is one of the workload's steps, counted from 0"
                yield Problem((*path, "steps", position), rule, got, remedy)
    if isinstance(part, MemorySteady) and part.per == "replay" and part.after >= workload.steps:
        yield Problem((*path, "after"), f"a step follows the first {part.after} (`after`)", got, remedy)
    mechanism = claim.mechanism or part.mechanism
    if mechanism == "cuda_graph" and workload.needs.device == "cpu":
        remedy = "name a workload that needs cuda, or use `mechanism: traced`"
        rule = "a cuda_graph claim runs on a CUDA device"
        yield Problem(path, rule, f"workload '{name}' needs device cpu", remedy)


def _effects_by_workload(claim: AnyClaim, part: AnyPart, path: Path) -> Iterator[Problem]:
    """`at_least_on` names workloads of the claim."""
    guards = getattr(part, "guards", None)
    if guards is None or guards.training_effect is None:
        return
    for name in guards.training_effect.at_least_on:
        if name not in claim.on:
            place = (*path, "guards", "training_effect", "at_least_on", name)
            yield Problem(place, "`at_least_on` names a workload of the claim", f"'{name}'", nearest(name, claim.on))


def _step_counts(part: AnyPart) -> dict[str, int]:
    """Fields that count steps of the workload, by their path."""
    counts: dict[str, int | None] = {}
    if isinstance(part, TrajectoryMatch | Repeatability):
        guards = part.guards
        counts["guards.steps"] = guards.steps
        counts["guards.distinct_batches"] = guards.distinct_batches
        counts["guards.clip_active_steps"] = guards.clip_active_steps
        if guards.training_effect is not None:
            counts["guards.training_effect.last"] = guards.training_effect.last
    elif isinstance(part, GradientMatch):
        counts["clip_active_steps"] = part.clip_active_steps
    elif isinstance(part, Capture):
        counts["captures"] = part.captures
    return {field: value for field, value in counts.items() if value is not None}

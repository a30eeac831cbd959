"""What the parts of a contract say of each other: names that exist, and bounds that can be met."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from harness.contract.base import Problem
from harness.contract.claims import AnyClaim, AnyPart, CompositeClaim, parts_of
from harness.contract.schema import Contract, Workload
from harness.contract.strict_yaml import Key, nearest

Path = tuple[Key, ...]


def problems(contract: Contract) -> list[Problem]:
    """Everything in a contract that names what is not there, or asks what cannot be met, in claim order."""
    return list(_problems(contract))


def _problems(contract: Contract) -> Iterator[Problem]:
    seen: set[str] = set()
    judgements = {claim.id: parts_of(claim) for claim in contract.claims}
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
            for problem in (*part.contradictions(), *part.dangling_names(claim.on, judgements)):
                yield replace(problem, path=(*path, *problem.path))
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
    for field, arm in part.arms().items():
        place = (*path, *field.split("."))
        if arm not in contract.arms:
            yield Problem(place, f"`{field}` names an arm", f"'{arm}'", nearest(arm, contract.arms))
        elif arm in seen:
            rule = "an arm is not compared with itself"
            yield Problem(place, rule, f"'{arm}' as `{seen[arm]}` and as `{field}`", "name another arm")
        seen.setdefault(arm, field)
    candidate = part.arms()[part.candidate_path]
    if part.captures_candidate() and candidate in contract.arms and contract.arms[candidate].capture == "none":
        place = (*path, *part.candidate_path.split("."))
        remedy = "give it `capture: step` or `capture: backward`"
        yield Problem(place, "the candidate of a captured claim captures", f"'{candidate}'", remedy)


def _on_workload(claim: AnyClaim, part: AnyPart, path: Path, name: str, workload: Workload) -> Iterator[Problem]:
    """Bounds that this workload can meet."""
    for place, rule in part.beyond(workload.steps):
        got = f"workload '{name}' has {workload.steps} steps"
        yield Problem((*path, *place), rule, got, "lower it, or give the workload more steps")
    mechanism = claim.mechanism or part.mechanism
    if mechanism == "cuda_graph" and workload.needs.device == "cpu":
        remedy = "name a workload that needs cuda, or use `mechanism: traced`"
        rule = "a cuda_graph claim runs on a CUDA device"
        yield Problem(path, rule, f"workload '{name}' needs device cpu", remedy)

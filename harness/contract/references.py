"""Check what the parts of a contract say of each other: names exist, and bounds can be met."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from harness.contract.base import NUDGED_CONTROLS, Problem
from harness.contract.claims import AnyClaim, AnyPart, CompositeClaim, parts_of
from harness.contract.schema import Contract, Workload
from harness.contract.strict_yaml import Key, nearest
from harness.kinds import kind_of

Path = tuple[Key, ...]


def problems(contract: Contract, only_on: Mapping[int, Collection[str]] = MappingProxyType({})) -> list[Problem]:
    """Return a problem for each name that does not exist and each demand that cannot be met, in claim order.

    only_on: by the position of a claim, the workloads on which it is judged by the numbers that it has here; left out,
    all of the claim's workloads.
    """
    return list(_problems(contract, only_on))


def _problems(contract: Contract, only_on: Mapping[int, Collection[str]]) -> Iterator[Problem]:
    yield from _names_in_one_case(contract)
    judgements = {claim.id: parts_of(claim) for claim in contract.claims}
    for index, claim in enumerate(contract.claims):
        here: Path = ("claims", index)
        yield from _workload_names(contract, claim, here)
        yield from _excused_ends(claim, here)
        composite = isinstance(claim, CompositeClaim)
        for number, part in enumerate(parts_of(claim)):
            path: Path = (*here, "parts", number) if composite else here
            yield from _arm_names(contract, part, path)
            yield from _ranks(contract, part, path)
            yield from _control_of_ends(contract, part, path)
            for problem in (*part.contradictions(), *part.dangling_names(claim.judged_on, judgements)):
                yield replace(problem, path=(*path, *problem.path))
            for name in claim.judged_on:
                if name in contract.workloads and name in only_on.get(index, claim.judged_on):
                    yield from _on_workload(claim, part, path, name, contract.workloads[name])
                    yield from _shares(contract, part, path, name)
                    yield from _warm_steps(contract, part, path, name)


def _names_in_one_case(contract: Contract) -> Iterator[Problem]:
    """Yield a problem where two names differ in case at most: they become file names, and some systems ignore case."""
    named: list[tuple[str, list[tuple[Path, str]]]] = [
        ("claim ids", [(("claims", index, "id"), claim.id) for index, claim in enumerate(contract.claims)]),
        ("workloads", [(("workloads", name), name) for name in contract.workloads]),
        ("arms", [(("arms", name), name) for name in contract.arms]),
    ]
    for what, names in named:
        seen: dict[str, str] = {}
        for path, name in names:
            first = seen.get(name.casefold())
            if first is not None:
                got = f"'{name}' again" if first == name else f"'{name}', which differs from '{first}' in case only"
                yield Problem(path, f"{what} are unique", got, "rename one")
            seen.setdefault(name.casefold(), name)


def _workload_names(contract: Contract, claim: AnyClaim, here: Path) -> Iterator[Problem]:
    for position, name in enumerate(claim.judged_on):
        path = (*here, "judged_on", position)
        if name not in contract.workloads:
            yield Problem(path, "`judged_on` names a workload", f"'{name}'", nearest(name, contract.workloads))
        elif name in claim.judged_on[:position]:
            yield Problem(path, "`judged_on` names a workload once", f"'{name}' again", "remove it")


def _excused_ends(claim: AnyClaim, here: Path) -> Iterator[Problem]:
    """Yield a problem where a claim excuses ends (`may_end_apart`) but compares none."""
    kinds = [part.kind for part in parts_of(claim)]
    if claim.may_end_apart and all("equal_ends" in kind_of(kind).leaves_out for kind in kinds):
        rule = "`may_end_apart` is for claims that compare how arms end"
        yield Problem((*here, "may_end_apart"), rule, f"`{kinds[0]}` compares no ends", "leave `may_end_apart` out")


def _arm_names(contract: Contract, part: AnyPart, path: Path) -> Iterator[Problem]:
    """Yield problems of named arms: an arm exists, differs from the others, and captures if the claim needs it."""
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


def _control_of_ends(contract: Contract, part: AnyPart, path: Path) -> Iterator[Problem]:
    """Yield problems of `ends`: it compares arms of one system, and its control has the baseline's settings."""
    named = part.arms()
    arms = {name: contract.arms[arm] for name, arm in named.items() if arm in contract.arms}
    control = next((field for field in NUDGED_CONTROLS if field in named), None)
    if control is None or "baseline" not in named or len(arms) < len(named):
        return
    if not contract.same_settings(named[control], named["baseline"]):
        rule = f"the control {'of `ends` ' if control == 'ends.control' else ''}has the baseline's settings"
        got = f"'{named[control]}' has others than '{named['baseline']}'"
        yield Problem((*path, *control.split(".")), rule, got, "the harness starts it a rounding away by itself")
    systems = {arms[role].system or contract.system for role in ("candidate", "baseline")}
    if control == "ends.control" and len(systems) > 1:
        rule = "`ends` compares arms of one system, whose tensors have the same names"
        got = f"'{named['candidate']}' and '{named['baseline']}' have two"
        yield Problem((*path, "ends"), rule, got, "leave `ends` out")


def _ranks(contract: Contract, part: AnyPart, path: Path) -> Iterator[Problem]:
    """Yield problems of ranks: compared arms need equal numbers of ranks, a claim about ranks needs several."""
    named = {field: arm for field, arm in part.arms().items() if arm in contract.arms}
    of_candidate = contract.arms[named[part.candidate_path]] if part.candidate_path in named else None
    candidate = 1 if of_candidate is None else of_candidate.ranks
    for field, arm in named.items():
        ranks, place = contract.arms[arm].ranks, (*path, *field.split("."))
        if part.judged_at != "all ranks" and ranks != candidate:
            rule = "arms that are compared rank by rank have as many ranks"
            yield Problem(place, rule, f"'{arm}' has {ranks}, the candidate {candidate}", "see the kind `ranks_match`")
        elif part.judged_at == "all ranks" and field == part.candidate_path and ranks == 1:
            yield Problem(place, "a claim about ranks is about an arm with several", f"'{arm}' has 1", "say `ranks: 2`")
        elif field == "in_turn" and of_candidate is not None and (candidate > 2 or of_candidate.shares < candidate):
            # only a sum of two has one result: the order of a longer one is the communication library's own
            rule = "`in_turn` compares the bits of two ranks that read two shares"
            got = f"{candidate} ranks with {of_candidate.shares} shares"
            yield Problem(place, rule, got, "say `ends: {control: …, at_most: 0.01}`")
        elif part.judged_at == "all ranks" and field != part.candidate_path and ranks > 1:
            yield Problem(place, "ranks are compared with one process", f"'{arm}' has {ranks}", "name an arm with one")


def _shares(contract: Contract, part: AnyPart, path: Path, name: str) -> Iterator[Problem]:
    """Yield a problem for each arm whose ranks cannot take equal shares of the workload's batch."""
    size = contract.workloads[name].batch_size
    for field, arm in part.arms().items():
        ranks, shares = (contract.arms[arm].ranks, contract.arms[arm].shares) if arm in contract.arms else (1, 1)
        if size % shares:
            rule = "ranks take equal shares of a batch"
            got = f"'{arm}' has {ranks} ranks, and workload '{name}' batches of {size}"
            yield Problem((*path, *field.split(".")), rule, got, f"make `batch_size` a multiple of {shares}")


def _warm_steps(contract: Contract, part: AnyPart, path: Path, name: str) -> Iterator[Problem]:
    """Yield a problem for each arm whose workload ends before its capture."""
    steps = contract.workloads[name].steps
    for field, arm in part.arms().items():
        warm = contract.arms[arm].warm_steps if arm in contract.arms else 0
        if warm >= steps:
            rule = "an arm is captured before its last step"
            got = f"'{arm}' has {warm} warm steps, and workload '{name}' {steps} steps"
            yield Problem((*path, *field.split(".")), rule, got, "lower `warm_steps`, or give the workload more steps")


def _on_workload(claim: AnyClaim, part: AnyPart, path: Path, name: str, workload: Workload) -> Iterator[Problem]:
    """Yield a problem for each bound, and each mechanism, that does not fit this workload."""
    for place, rule in part.beyond(workload.steps):
        got = f"workload '{name}' has {workload.steps} steps"
        yield Problem((*path, *place), rule, got, "lower it, or give the workload more steps")
    mechanism = claim.mechanism or part.mechanism
    if mechanism == "cuda_graph" and workload.needs.device == "cpu":
        remedy = "name a workload that needs cuda, or use `mechanism: traced`"
        rule = "a cuda_graph claim runs on a CUDA device"
        yield Problem(path, rule, f"workload '{name}' needs device cpu", remedy)

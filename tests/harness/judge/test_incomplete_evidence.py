"""Passing evidence with one thing taken from it: a float made NaN or infinite, a list emptied, a value left out.

The verdict is then no PASS, but for what no judgement rests on, which is listed here with what it is for.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple, get_args

import evidence_builders
import numpy as np
import pytest
from judge_cases import Case
from judge_cases_tables import ONE_WRONG_THING
from pydantic import BaseModel

from harness.judge.registry import judge_unit
from harness.judge.verdict import Status

Path = tuple[Any, ...]
KINDS = [kind for kind in ONE_WRONG_THING if kind != "any"]

# Numbers on which no judgement rests, and what they are for.
SHOWN = {
    "power_w": "shown over time",
    "temperature_c": "shown over time",
    "magnitude": "names a case of a kernel",
    "naive_error_vs_fp64": "how well the twin itself does; a twin that is no number differs from the kernel",
    "telemetry.samples.seconds": "places a sample; one that falls into no block belongs to no arm",
    "telemetry.began": "likewise",
    "timing.blocks.began": "places a block, likewise",
}
ABSENT = {
    "any": {
        "start.facts": "the system's own words; layers are asked for where a bound is per layer",
        "targets": "PTX declarations, which ptx_target judges",
        "versions": "likewise",
        "entries": "entry names, shown",
        "shared_memory_bytes": "asked for where a claim demands a number",
        "threads": "likewise",
        "syncs.readings.places": "where the control's syncs were, shown",
        "telemetry.samples.power_w": "shown over time",
        "telemetry.samples.temperature_c": "likewise",
        "telemetry.samples.sm_clock_mhz": "of one sample: an idle moment has no clock under load",
        "driver_ptx_version": "what the driver reads, for ptx_target",
    },
    # What the harness saw of a capture is the claim of kind `capture`; the others rest on its record.
    "a capture's record": {
        "capture.mechanism": "asked for where a claim names one",
        "capture.nodes": "the census",
        "capture.nodes.by_type": "likewise",
        "capture.nodes.kernels": "likewise",
        "capture.nodes.clipped_tensors": "likewise",
        "capture.observed_graph_launches": "launches that the harness saw",
    },
    "ptx_target": {
        "kernels.graphed.planned": "the used ones remain",
        "kernels.graphed.used": "the planned ones remain",
    },
    "gradient_match": {"gradients.groups": "asked for where the claim bounds clipped norms"},
    "throughput_ratio": {"timing.blocks.processor_seconds": "of the candidate: the baseline must not idle"},
}
JUDGED_WHOLE = {"ptx_target": ("targets", "versions", "driver_ptx_version"), "capture": ("start.facts",)}
# Claims about how a step was run; what it computed is the trajectory's claim.
WITHOUT_LOSSES = ("capture", "host_syncs", "memory_steady")


class Judged(NamedTuple):
    """What a case gave to `judge_unit`."""

    contract: Any
    claim: Any
    workload: str
    evidence: list[Any]
    rest: tuple[Any, ...]


def passing(kind: str) -> Case:
    return next(case for case in ONE_WRONG_THING[kind] if case.reason == "held")


def recorded(case: Case, monkeypatch: pytest.MonkeyPatch) -> Judged:
    seen: list[Judged] = []

    def record(contract: Any, claim: Any, workload: str, evidence: Any, *rest: Any) -> Any:
        seen.append(Judged(contract, claim, workload, list(evidence), rest))
        return judge_unit(contract, claim, workload, evidence, *rest)

    monkeypatch.setattr(evidence_builders, "judge_unit", record)
    assert case.judged().status is Status.PASS
    return seen[-1]


def leaves(value: Any, path: Path = ()) -> Iterator[Path]:
    """Paths to the floats; of a list only the first two entries and the last, which are alike."""
    if isinstance(value, float):
        yield path
    for key, entry in inside(value):
        yield from leaves(entry, (*path, key))


def inside(value: Any) -> list[tuple[Any, Any]]:
    """What a value holds, by attribute, key or index."""
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.dtype.kind == "f"):
        return [(index, value[index]) for index in few(len(value))]
    if isinstance(value, BaseModel):
        return [(name, getattr(value, name)) for name in type(value).model_fields]
    if is_dataclass(value):
        return [(field.name, getattr(value, field.name)) for field in fields(value)]
    return []


def few(length: int) -> list[int]:
    return sorted({*range(min(2, length)), *range(max(0, length - 1), length)})


def step_into(value: Any, key: Any) -> Any:
    return value[key] if isinstance(value, dict | list | tuple | np.ndarray) else getattr(value, str(key))


def poisoned(evidence: list[Any], path: Path, other: object) -> list[Any]:
    """A copy in which one thing is another."""
    changed = copy.deepcopy(evidence)
    parent: Any = changed
    for key in path[:-1]:
        parent = step_into(parent, key)
    last = path[-1]
    if isinstance(parent, dict | list | np.ndarray):
        parent[last] = other
    else:
        object.__setattr__(parent, str(last), other)
    return changed


def name_of(path: Path) -> str:
    return ".".join(key for key in path if isinstance(key, str))


def rests_on(path: Path, kind: str) -> bool:
    name = name_of(path)
    if kind in WITHOUT_LOSSES and name.endswith("series.loss"):
        return False
    return not any(name.endswith(shown) for shown in SHOWN)


def test_every_kind_but_those_of_texts_and_counts_has_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the next test would look at nothing."""
    counted = {
        kind: sum(rests_on(path, kind) for path in leaves(recorded(passing(kind), monkeypatch).evidence))
        for kind in KINDS
    }
    assert {kind for kind, numbers in counted.items() if not numbers} == {*WITHOUT_LOSSES, "ptx_target"}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_number_never_passes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = recorded(passing(kind), monkeypatch)
    passed = []
    for path in leaves(case.evidence):
        if not rests_on(path, kind):
            continue
        for number in (math.nan, math.inf, -math.inf):
            evidence = poisoned(case.evidence, path, number)
            if judge_unit(case.contract, case.claim, case.workload, evidence, *case.rest).status is Status.PASS:
                passed.append((".".join(map(str, path)), number))
    assert passed == []


def things(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """What could be absent: paths to lists and dictionaries, with an empty one, and to optional values, with None."""
    for key, entry in inside(value):
        if isinstance(entry, dict | list | tuple) and entry:
            yield (*path, key), type(entry)()
        if isinstance(value, BaseModel) and entry is not None:
            annotation = type(value).model_fields[key].annotation
            if type(None) in get_args(annotation):
                yield (*path, key), None
        yield from things(entry, (*path, key))


def may_be_absent(path: Path, kind: str) -> bool:
    name = name_of(path)
    if any(name.endswith(judged) for judged in JUDGED_WHOLE.get(kind, ())):
        return False
    lists = ["any", kind] if kind == "capture" else ["any", "a capture's record", kind]
    return any(name.endswith(listed) for each in lists for listed in ABSENT.get(each, {}))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_absent_never_passes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = recorded(passing(kind), monkeypatch)
    passed = []
    for path, nothing in things(case.evidence):
        if may_be_absent(path, kind) or (
            "synchronizing" in path and kind == "gradient_match"
        ):  # an arm of other claims
            continue
        evidence = poisoned(case.evidence, path, nothing)
        if judge_unit(case.contract, case.claim, case.workload, evidence, *case.rest).status is Status.PASS:
            passed.append(".".join(map(str, path)))
    assert passed == []

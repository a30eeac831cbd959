"""No phase of a worker is `other` by accident: every call in the sources that names one, against the table."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from import_statements import SOURCES
from run_builders import make_contract
from syntax_trees import parsed

from harness.evidence import run_records
from harness.execution import recorder
from harness.run_directory.costs import Kind, control_arms, kind_of

OF_AN_ARM = "arm.0: "  # an `ArmLife` puts arm and replica before the name
AGAIN = "a phase that goes on"


class Named(NamedTuple):
    """A call that names a phase: where, and the name with `arm` for every value that is put into it."""

    where: str
    name: str | None


def phases_named(path: Path, source: str) -> Iterator[Named]:
    """Every call of `phase` with one argument, a recorder's or a life's; None for a name that is no text there."""
    for node in ast.walk(parsed(source)) if "phase" in source else ():  # most files have no call of that name
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or len(node.args) != 1:
            continue
        if node.func.attr == "phase":
            name = _text(node.args[0])
            of_recorder = "recorder" in ast.unparse(node.func.value) or path.name == "recorder.py"
            prefix = "" if of_recorder else OF_AN_ARM
            yield Named(f"{path.name}:{node.lineno}", None if name is None else prefix + name)


def _text(node: ast.expr) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or "arm" for part in node.values).replace("arm.arm: ", OF_AN_ARM)
    if isinstance(node, ast.FormattedValue):
        return _text(node.value)
    if isinstance(node, ast.Call):  # a wait: of an arm, or of the worker, as it comes
        return _text(node.args[-1])
    if isinstance(node, ast.Name):
        return AGAIN if node.id == "before" else getattr(recorder, node.id, getattr(run_records, node.id, None))
    return None


NAMED = [
    named
    for path in SOURCES
    if {"execution", "devices", "processes"} & set(path.parts)
    for named in phases_named(path, path.read_text(encoding="utf-8"))
    # without those that name no phase of their own: with arm and replica before a name of the list, and one resumed
    if named.name not in {"arm: arm", AGAIN}
]


def test_the_phase_names_in_the_sources_are_found() -> None:
    assert len(NAMED) >= 20
    assert {"start", "timed", "arm.0: open", "arm.0: steps", "import arm"} <= {one.name for one in NAMED}


@pytest.mark.parametrize("named", NAMED, ids=lambda named: named.where)
def test_every_phase_name_in_the_sources_has_a_kind_of_cost(named: Named) -> None:
    assert named.name is not None, "give the phase a name that stands in the source"
    assert kind_of(named.name) is not Kind.OTHER


@pytest.mark.parametrize(
    ("phase", "kind"),
    [
        ("start", Kind.IMPORTS),
        ("import harness.execution.probes.paired", Kind.IMPORTS),
        ("graphed: open", Kind.OPENING),
        ("graphed.0: start", Kind.END),
        ("graphed.11: steps", Kind.JUDGED_TRAINING),
        ("untrained.0: steps", Kind.UNTRAINED_CONTROL),
        ("untrained.0: open", Kind.OPENING),
        ("untrained.0: host syncs", Kind.DETECTORS),
        ("graphed.0: wait to be alone", Kind.WAITING),
        ("wait to be together", Kind.WAITING),
        ("full: kernels for sm_90", Kind.KERNEL_COMPILATION),
        ("full: kernels", Kind.KERNEL_COMPARISONS),
        ("full: inventory after a refusal:\nof two lines", Kind.KERNEL_COMPILATION),
        ("stepsister.0: stepsister", Kind.OTHER),
        ("graphed.0: timed", Kind.OTHER),
        ("steps", Kind.OTHER),
        ("", Kind.OTHER),
    ],
)
def test_a_phase_name_determines_its_kind_of_cost(phase: str, kind: Kind) -> None:
    assert kind_of(phase, {"untrained"}) is kind


def test_a_control_arm_is_used_only_as_a_training_effect_control() -> None:
    effect = {"training_effect": {"control": "untrained", "last": 1, "at_least": 0.1}}
    other = {"training_effect": {"control": "plain", "last": 1, "at_least": 0.1}}
    trajectory = {"kind": "trajectory_match", "candidate": "graphed", "equality": "bitwise", "max_abs_difference": 0.1}
    contract = make_contract(
        {"id": "A", **trajectory, "baseline": "plain", "guards": {"steps": 3, **effect}},
        {"id": "B", **trajectory, "baseline": "again", "guards": {"steps": 3, **other}},
        arms={"graphed": {"capture": "step"}, "plain": {}, "again": {}, "untrained": {"learning_rate": 0}},
    )
    assert control_arms(contract) == {"untrained"}

"""Faults that a step-function system declares itself: checked, planted, killed or surviving like any other."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_drill import execute_here
from step_function_systems import Regression
from torch import Tensor
from wrong_adapters import RIGHT

from harness.api.drill import DrillOptions, drill
from harness.contract.schema import Arm, Workload
from harness.errors import SystemResolutionError
from harness.system.adapter_checks import AdapterError
from harness.system.described import describe
from harness.system.step_function import Expectation, PlantedFault, StepFunction

ROOT = Path(__file__).parents[3]
WORKLOAD = Workload(model="any", batch_size=2, seq_len=4, steps=4)
FAULTS = """
    faults = {
        "half_batch": PlantedFault(
            summary="the step trains on half of its batch",
            plant=lambda right: replace(right, step=lambda batch: right.step({k: v[::2] for k, v in batch.items()})),
            breaks={"OWN": Expectation("FAIL", "differs", {"first_differing_step": 0})},
        ),
        "idle": PlantedFault("it changes nothing", lambda right: right, {"OWN": Expectation("FAIL", "differs")}),
        "stale_batch": PlantedFault(
            summary="as the harness's own of that name, but by one step more, so that its first two batches are equal",
            plant=lambda right: replace(right, batch=lambda index: right.batch(max(0, index - 2))),
            breaks={"OWN": Expectation("FAIL", "unequal_batches", {"first_unequal_step": 1})},
        ),
    }
"""
CONTRACT = """\
schema: contract/v1
id: own-v1
title: A system with faults of its own
system: own:System
workloads:
  w: {model: any, batch_size: 2, seq_len: 4, steps: 6}
arms:
  captured: {capture: step}
  plain: {capture: none}
claims:
  - id: OWN
    title: The replay trains like the plain step
    kind: trajectory_match
    candidate: captured
    baseline: plain
    equality: bitwise
    max_abs_difference: 0.1
    guards: {steps: 6}
    on: [w]
    why: few steps are enough
    if_fails: look at the first step
    falsified_by: [half_batch, idle, stale_batch]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a system of three faults, of which one changes nothing."""
    imports = "from dataclasses import replace\nfrom harness.system.step_function import Expectation, PlantedFault\n"
    source = imports + RIGHT.replace('    name = "a user\'s"\n', f'    name = "a user\'s"\n{FAULTS}')
    (tmp_path / "own.py").write_text(source)
    (tmp_path / "own-v1.yaml").write_text(CONTRACT)
    return tmp_path


def test_a_projects_own_faults_are_planted_and_killed_unless_they_change_nothing(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The contract is checked in a separate process that imports only the harness.

    The drill runs in the test's process.
    """
    checked = subprocess.run(
        [sys.executable, "-P", "-m", "harness", "check", "own-v1.yaml"],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (checked.returncode, checked.stdout) == (0, "1 contract · 1 claim · 0 errors · 1 warning\n"), checked.stderr
    monkeypatch.syspath_prepend(str(project))
    monkeypatch.setattr("harness.execution.supervisor.execute", execute_here)
    monkeypatch.setattr("harness.execution.sharing._repetitions", lambda _run: [])
    monkeypatch.setattr("harness.execution.schedule.usable_cores", lambda: 1)
    drilled = drill([project / "own-v1.yaml"], DrillOptions(reports=project / "reports", name="run"))
    assert drilled.exit_code == 1
    assert {row.fault: (row.killed, row.seen.reason) for row in drilled.record.rows} == {
        "half_batch": (True, "differs"),
        "idle": (False, "held"),
        "stale_batch": (True, "unequal_batches"),
    }


class Halves(Regression):
    """Regression with a fault in the rows of its batch, and one that returns no step function."""

    faults = {  # noqa: RUF012 - as users write it
        "half_batch": PlantedFault(
            "half of each batch",
            lambda right: replace(right, step=lambda batch: right.step(first_rows(batch))),
            {"trajectory_match": Expectation("FAIL", "differs")},
        ),
        "returns_nothing": PlantedFault("returns nothing", lambda _: None, {}),  # type: ignore[arg-type,return-value]
    }


def first_rows(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor[:4] for name, tensor in batch.items()}


@pytest.mark.parametrize("capture", ["none", "step"])
def test_a_planted_fault_changes_the_step(capture: str) -> None:
    arm = Arm.model_validate({"capture": capture})
    with Halves().open(WORKLOAD, arm) as right, Halves().open(WORKLOAD, arm, fault="half_batch") as faulty:
        batch = first_rows(right.inputs())  # type: ignore[arg-type]
        expected = right._function.step(batch)  # the same as the first loss on half of the rows
        assert torch.equal(faulty.step(0), expected)
    assert isinstance(right._function, StepFunction)


def test_a_fault_that_the_system_does_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match=r"regression does not have the fault 'stale_batch'"):
        Halves().open(WORKLOAD, Arm(), fault="stale_batch")


def test_a_fault_whose_planting_returns_no_step_function_is_refused() -> None:
    with pytest.raises(AdapterError) as caught:
        Halves().open(WORKLOAD, Arm(), fault="returns_nothing")
    assert caught.value.rule.startswith("the plant of fault 'returns_nothing' must return StepFunction(step, batch, ")
    assert caught.value.got == "None"


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("{'half': print}", "a builtin_function_or_method instead of a PlantedFault for the fault 'half'"),
        ("['half']", "a list instead of a dictionary"),
    ],
)
def test_invalid_faults_of_a_system_are_refused_at_their_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, found: str
) -> None:
    module = f"own_faults_{len(value)}"
    (tmp_path / f"{module}.py").write_text(RIGHT.replace('    name = "a user\'s"\n', f"    faults = {value}\n"))
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SystemResolutionError) as caught:
        describe(f"{module}:System")
    assert caught.value.rule == "`faults` must be a dictionary from the name of each fault to its PlantedFault"
    assert caught.value.got == f"{found} ({module}.py:5)"

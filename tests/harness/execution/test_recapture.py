"""The re-capture probe: whole rounds of shapes, each captured anew, and the training goes on as if nothing was."""

from __future__ import annotations

import csv
import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from step_function_systems import Regression

from harness.contract.schema import Arm, Workload
from harness.evidence.plan_records import PlannedArm, Run
from harness.execution import arm as arm_life
from harness.execution.opening import captures_of
from harness.execution.probes import memory
from harness.execution.recorder import Recorder
from harness.system.protocol import NotAvailable


def make_run(seq_len: int | list[int], after: int) -> Run:
    arm = PlannedArm(arm=Arm(capture="step"), system="step_function_systems:Regression")
    return Run(
        id="m1",
        contract="c",
        probe="recapture",
        workload_name="shapes",
        workload=Workload(model="any", batch_size=2, seq_len=seq_len, steps=12),
        arms={"captured": arm},
        settings={"after": after},
    )


def execute(run: Run, directory: Path) -> dict[str, dict[str, Any]]:
    directory.mkdir()
    with Recorder(directory) as recorder:
        memory.execute_recapture(run, recorder)
    lines = (directory / "records.jsonl").read_text().splitlines()
    return {record["record"]: record for record in map(json.loads, lines)}


def test_every_step_of_every_recapture_round_is_a_new_capture(tmp_path: Path) -> None:
    run = make_run([3, 4, 5], after=3)
    records = execute(run, tmp_path / "run")
    assert (records["capture"]["captures"], records["capture"]["replays"]) == (12, 12)
    assert records["capture"]["uncaptured_steps"] == 0
    assert (records["memory"]["per"], records["memory"]["arm"]) == ("recapture", "captured")
    with Regression().open(run.workload, Arm()) as plain:
        losses = [repr(float(plain.step(index).double())) for index in range(12)]
    rows = list(csv.DictReader((tmp_path / "run" / "captured.0.csv").read_text().splitlines()))
    assert [row["loss"] for row in rows] == losses
    assert [row["tokens"] for row in rows][:3] == ["6", "8", "10"]


@pytest.mark.parametrize(("seq_len", "after", "captures"), [(4, 3, 12), ([4, 8], 3, 12), ([4, 8, 12], 1, 12)])
def test_recaptures_cover_whole_rounds_of_shapes_and_enough_samples_for_the_judge(
    seq_len: int | list[int], after: int, captures: int
) -> None:
    shapes = len(seq_len) if isinstance(seq_len, list) else 1
    assert captures_of(make_run(seq_len, after), shapes) == captures


def test_a_system_that_cannot_forget_its_captures_is_not_available_for_recapture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arm_life, "opened", lambda *_: nullcontext(SimpleNamespace(step=None)))
    with pytest.raises(NotAvailable, match="forget_captures"):
        execute(make_run(4, 1), tmp_path / "run")

"""Timed blocks and telemetry tell their moments by one clock, though two processes write them."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

from harness.contract.schema import Arm, Workload
from harness.evidence.plan_records import PlannedArm, Run
from harness.evidence.read_run import read_run
from harness.execution.supervisor import execute

SYSTEM = "step_function_systems:Regression"


def test_timed_blocks_begin_after_the_start_of_the_telemetry_sampler(tmp_path: Path) -> None:
    run = Run(
        id="t1",
        contract="c",
        probe="throughput",
        workload_name="small",
        workload=Workload(model="any", batch_size=2, seq_len=4, steps=20),
        arms={name: PlannedArm(arm=Arm(), system=SYSTEM) for name in ("plain", "captured")},
        settings={"candidate": "captured", "baseline": "plain", "blocks": 4, "block_steps": 3},
    )
    before = time.monotonic()
    assert execute(run, tmp_path / "run") is None
    _, evidence = read_run(tmp_path / "run")
    assert evidence.timing is not None
    assert evidence.telemetry is not None
    assert evidence.telemetry.began is not None
    blocks = [(block.began or 0.0, block.seconds) for block in evidence.timing.blocks]
    moments = [before, evidence.telemetry.began, *itertools.chain(*((at, at + took) for at, took in blocks))]
    assert len(blocks) >= 8  # more, where something disturbed them
    assert moments == sorted(moments)
    assert moments[-1] < time.monotonic()

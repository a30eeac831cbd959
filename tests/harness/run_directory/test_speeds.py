"""One claim is timed on machines of one speed: what was measured beside its blocks tells those of one name apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bundle_builders import RUN_ID, Loaded, header
from evidence_builders import blocks, sample
from run_builders import make_contract, stand_in_run

from harness.api.judged import judge_bundles
from harness.errors import EvidenceError
from harness.evidence.environment_records import GpuFacts
from harness.evidence.plan_records import Unit
from harness.evidence.run_records import Complete, Telemetry, TimingEvidence
from harness.execution.recorder import Recorder
from harness.numbers import dump_json
from harness.run_directory.bundle import Bundle, read_bundle
from harness.run_directory.shards import RULE, speeds_apart
from harness.run_directory.writer import BundleWriter

SHAPE = {"model": "m", "batch_size": 4, "seq_len": 16, "steps": 3}
SPEED = {
    "id": "C",
    "kind": "throughput_ratio",
    "candidate": "graphed",
    "baseline": "plain",
    "at_least": 1.0,
    "trajectory": "T",
    "limits": {"sm_clock_spread": 0.3, "clock_advantage": 0.02},
}
BITS = {
    "id": "T",
    "kind": "trajectory_match",
    "candidate": "graphed",
    "baseline": "plain",
    "equality": "bitwise",
    "max_abs_difference": 0.1,
    "guards": {"steps": 3},
}
LOADED = Loaded(make_contract(SPEED, BITS, workloads={"v": SHAPE, "w": SHAPE}))


def timed(folder: Path, workload: str, *, clock: float | None = 1980.0, pace: float | None = 0.01) -> Bundle:
    """A run directory of one timed workload, on an H200 of this clock, beside processors of this pace."""
    one = Unit(contract="c", claim="C", workload=workload, runs=[RUN_ID])
    described = header(one, loaded=LOADED, started_at="2026-11-20T0{}:00:00Z".format("12"[workload == "w"]))
    environment = described.environment.model_copy(update={"gpu": GpuFacts(name="H200")})
    described = described.model_copy(update={"runs": {RUN_ID: "throughput"}, "environment": environment})
    writer = BundleWriter(folder / workload, described, [LOADED])
    directory = writer.evidence_directory(RUN_ID)
    directory.mkdir(parents=True)
    run = stand_in_run("one_arm").model_copy(update={"id": RUN_ID, "probe": "throughput"})
    (directory / "run.json").write_text(dump_json(run.model_dump()))
    steps = [block.model_copy(update={"pace": pace}) for block in blocks([0.01] * 4, [0.02] * 4)]
    counted: dict[str, Any] = {"observed_steps": 4, "observed_graph_launches": {}}
    with Recorder(directory) as recorder:
        recorder.write(TimingEvidence(process=0, candidate="graphed", baseline="plain", blocks=steps, **counted))
        recorder.write(Complete(seconds=1.0))
    watched = Telemetry(samples=[sample(sm_clock_mhz=each) for each in (clock and clock * 0.6, clock)])
    (directory / "telemetry.jsonl").write_text(dump_json(watched.model_dump(), indent=None) + "\n")
    return read_bundle(writer.finish())


@pytest.mark.parametrize(
    ("other", "found"),
    [
        ({"clock": 1400.0}, ""),
        (
            {"clock": 1380.0},
            "the highest SM clocks differ: 1380 and 1980 MHz; a difference of 0.3 of the higher clock is allowed",
        ),
        ({"pace": 0.0134}, ""),
        ({"pace": 0.02}, "one processor is 2.00 times as slow as the other at best; 1.35 times is allowed"),
        ({"clock": None, "pace": None}, ""),
    ],
    ids=["a clock within the spread", "a slow clock", "a pace within", "a slow processor", "nothing known"],
)
def test_timings_from_machines_of_equal_name_and_different_speed_do_not_decide_a_claim_together(
    tmp_path: Path, other: dict[str, float | None], found: str
) -> None:
    bundles = [timed(tmp_path, "v"), timed(tmp_path, "w", **other)]
    said = [f"C, in comparison with {tmp_path / 'v'}: {found}"] if found else []
    errors = list(speeds_apart(bundles, [LOADED.contract]))
    assert [(error.rule, error.where, error.got) for error in errors] == [
        (RULE, str(tmp_path / "w"), got) for got in said
    ]


def test_a_gate_with_timings_from_machines_of_two_speeds_is_refused(tmp_path: Path) -> None:
    bundles = [timed(tmp_path, "v"), timed(tmp_path, "w", pace=0.02)]
    with pytest.raises(EvidenceError, match="must be timed on machines of one speed; found C, in comparison with"):
        judge_bundles(bundles, [LOADED])


def test_a_single_machine_has_no_speed_conflict(tmp_path: Path) -> None:
    bundle = timed(tmp_path, "v")
    assert list(speeds_apart([bundle], [LOADED.contract])) == []

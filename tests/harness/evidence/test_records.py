"""Reading what a worker left: whole, cut off, damaged, hostile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from recorded import end, read, start

from harness.errors import EvidenceError
from harness.evidence.arm_records import ArmEnd, ArmStart, Gradients, MemoryEvidence
from harness.evidence.base import Obstacle
from harness.evidence.read_run import read_run
from harness.evidence.run_records import Complete, KernelsEvidence, Raised, TelemetrySample, Unavailable
from harness.execution.recorder import Recorder, StepRows
from harness.numbers import dump_json


def test_records_are_ordered_by_arm_and_replica(directory: Path) -> None:
    gradients = Gradients(arm="plain", replica=1, step=0, baseline=None, tensors=[], groups=[])
    memory = MemoryEvidence(arm="plain", replica=0, per="replay", samples=[])
    with Recorder(directory) as recorder:
        for record in (start(), memory, end(), start(replica=1), gradients, Complete(seconds=1.0)):
            recorder.write(record)
    evidence = read(directory)
    first, second = evidence.arms["plain"]
    assert (first.memory, first.gradients, first.end) == ([memory], [], end())
    assert (second.memory, second.gradients, second.end) == ([], [gradients], None)
    assert second.start.facts == {"layers": 2}
    assert len(second.series.loss) == 0
    assert evidence.death is None


def test_each_execution_has_the_rows_of_its_own_series_file(directory: Path) -> None:
    """Equal files are parsed only once. Files of equal length that differ in one digit are parsed separately."""
    with Recorder(directory) as recorder:
        for replica, loss in enumerate((1.5, 2.5, 1.5)):
            recorder.write(start(replica=replica))
            recorder.series("plain", replica).rows(StepRows([0], [loss], ["b"], [1], [8]))
        recorder.write(Complete(seconds=1.0))
    first, other, again = (each.series for each in read(directory).arms["plain"])
    assert [float(series.loss[0]) for series in (first, other, again)] == [1.5, 2.5, 1.5]
    assert again is first


def test_records_of_a_complete_run_are_read_back(directory: Path) -> None:
    kernels = KernelsEvidence(
        arm="plain",
        device="sm_90",
        device_readable=True,
        driver_ptx_version="9.0",
        compiled_for=None,
        planned=[],
        used=[],
    )
    obstacle = Obstacle(reason="not_available", message="needs peft")
    with Recorder(directory) as recorder:
        recorder.write(kernels)
        recorder.write(Unavailable(obstacle=obstacle))
        recorder.write(Complete(seconds=1.0))
    evidence = read(directory)
    assert evidence.kernels == {"plain": kernels}
    assert evidence.obstacle == obstacle


def test_telemetry_is_read_together_with_the_records(directory: Path) -> None:
    sample = TelemetrySample(
        seconds=0.5,
        sm_clock_mhz=1980,
        power_w=None,
        temperature_c=40,
        throttle_reasons=["sw_power_cap"],
        foreign_processes=1,
        host_load_per_core=0.25,
    )
    (directory / "telemetry.jsonl").write_text(dump_json({"record": "telemetry", "samples": [sample.model_dump()]}))
    telemetry = read(directory).telemetry
    assert telemetry is not None
    assert telemetry.samples == [sample]


def test_a_record_cut_off_by_the_death_of_its_process_is_left_out(directory: Path) -> None:
    with Recorder(directory) as recorder:
        recorder.phase("arm plain")
        recorder.write(start())
        recorder.series("plain", 0).rows(StepRows([0, 1], [2.0, 1.0], ["a", "b"], [0, 0], [1, 1]))
    with (directory / "records.jsonl").open("a") as records:
        records.write('{"record":"arm_e')
    with (directory / "plain.0.csv").open("a") as series:
        series.write("2,0.")
    evidence = read(directory)
    assert evidence.death is not None
    assert (evidence.death.cause, evidence.death.phase) == ("incomplete", "arm plain")
    assert evidence.arms["plain"][0].series.loss.tolist() == [2.0, 1.0]


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    "line",
    [
        "garbage",
        "",
        "{}",
        '{"record":"phase","name":"x","seconds":1,"extra":1}',
        '{"record":"complete","seconds":"soon"}',
        '{"record":"arm_start","arm":' + DEEP + "}",
        '{"record":"complete","seconds":1' + "0" * 5000 + "}",
        "\x00",
    ],
    ids=["text", "empty", "no tag", "unknown key", "wrong type", "deep", "huge number", "nul"],
)
def test_a_damaged_record_makes_the_run_count_as_dead(directory: Path, line: str) -> None:
    with Recorder(directory) as recorder:
        recorder.write(start())
    with (directory / "records.jsonl").open("a") as records:
        records.write(f"{line}\n")
    evidence = read(directory)
    assert evidence.death is not None
    assert evidence.death.cause == "garbage"
    assert evidence.death.detail.startswith("records.jsonl:2: ")
    assert len(evidence.death.detail) < 400
    assert list(evidence.arms) == ["plain"]  # what came before is kept


@pytest.mark.parametrize(
    ("records", "detail"),
    [
        ([Complete(seconds=1.0), start()], "records.jsonl:2: a record after `complete`"),
        ([end()], "records.jsonl: `arm_end` of arm plain comes before the arm's start"),
        ([start(), start()], "records.jsonl: `arm_start` of arm plain, replica 0 was recorded twice"),
        ([start("other")], "records.jsonl: arm other, replica 0 was recorded, but not planned"),
        ([start(replica=1)], "records.jsonl: replica 0 of arm plain is missing"),
    ],
)
def test_contradictory_records_make_the_run_count_as_dead(
    directory: Path, records: list[ArmStart | ArmEnd], detail: str
) -> None:
    with Recorder(directory) as recorder:
        for record in records:
            recorder.write(record)
    death = read(directory).death
    assert death is not None
    assert (death.cause, death.detail) == ("garbage", detail)


def test_a_recorded_exception_is_the_cause_of_death_rather_than_the_missing_last_record(directory: Path) -> None:
    with Recorder(directory) as recorder:
        recorder.write(Raised(error="ValueError: no", stack="in step"))
    death = read(directory).death
    assert death is not None
    assert (death.cause, death.detail, death.stack) == ("exception", "ValueError: no", "in step")


def test_a_run_without_records_counts_as_dead_with_the_cause_incomplete(directory: Path) -> None:
    death = read(directory).death
    assert death is not None
    assert (death.cause, death.phase) == ("incomplete", None)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"id": 1}', DEEP, '{"id": NaN}'])
def test_a_damaged_run_is_an_evidence_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(EvidenceError, match=r"every evidence directory must contain a readable `run\.json`"):
        read_run(tmp_path)


def test_a_damaged_record_of_a_death_counts_as_damaged_evidence(directory: Path) -> None:
    (directory / "death.json").write_text("{}")
    death = read(directory).death
    assert death is not None
    assert death.cause == "garbage"


@pytest.mark.parametrize("what", ["phase", "write", "row", "heartbeat"])
def test_every_recorded_write_counts_as_a_heartbeat(directory: Path, what: str) -> None:
    with Recorder(directory) as recorder:
        os.utime(directory / "heartbeat", (0, 0))
        write = {
            "phase": lambda: recorder.phase("x"),
            "write": lambda: recorder.write(start()),
            "row": lambda: recorder.series("plain", 0).rows(StepRows([0], [1.0], ["a"], [0], [1])),
            "heartbeat": recorder.heartbeat,
        }
        write[what]()
        assert (directory / "heartbeat").stat().st_mtime > 0

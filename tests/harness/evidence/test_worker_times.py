"""What a worker did when, read from its directory: whole, older, cut off, damaged, begun again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from recorded import RUN, start

from harness.evidence.read_run import ProcessTimes, WorkerTimes, read_times
from harness.evidence.run_records import Complete, Phase
from harness.execution.recorder import Recorder
from harness.execution.supervisor import write_process_times
from harness.numbers import dump_json

PHASE, COMPLETE = Phase(name="start", seconds=0.0, began=5.0), Complete(seconds=2.0, processor_seconds=1.5)


def record(directory: Path, *records: Phase | Complete) -> None:
    with Recorder(directory) as recorder:
        recorder.write(start())
        for one in records:
            recorder.write(one)


def test_worker_times_contain_only_phases_end_and_process_times(directory: Path) -> None:
    record(directory, PHASE, COMPLETE)
    process = ProcessTimes(
        started=1.0,
        ended=9.0,
        given_run=3.0,
        ready=2.0,
        asked_for_gpu=0.5,
        gpu="GPU-1",
        gpu_alone=False,
        stopped=[(5.0, 6.0)],
    )
    write_process_times(directory, process)
    [read] = read_times(directory)
    assert read == WorkerTimes(RUN, [PHASE], COMPLETE, process)
    assert read.clocked


def test_evidence_of_older_versions_has_no_clock_times(directory: Path) -> None:
    lines = ['{"name":"start","record":"phase","seconds":0.25}', '{"record":"complete","seconds":2.0}']
    (directory / "records.jsonl").write_text("\n".join(lines) + "\n")
    [read] = read_times(directory)
    assert read == WorkerTimes(RUN, [Phase(name="start", seconds=0.25)], Complete(seconds=2.0), None)
    assert not read.clocked


def test_a_phase_without_a_start_time_is_left_out_of_clock_times(directory: Path) -> None:
    record(directory, PHASE, Phase(name="timed", seconds=1.0))
    write_process_times(directory, ProcessTimes(started=1.0, ended=9.0))
    assert not read_times(directory)[0].clocked


def test_worker_times_without_the_times_of_the_process_do_not_count_as_clock_times(directory: Path) -> None:
    record(directory, PHASE, COMPLETE)
    assert not read_times(directory)[0].clocked


@pytest.mark.parametrize("text", ["", "{", '{"started": 1.0}', '{"started": "soon", "ended": 2.0}', "[]"])
def test_damaged_process_times_are_read_as_none(directory: Path, text: str) -> None:
    (directory / "process.json").write_text(text)
    assert read_times(directory)[0].process is None


def test_damaged_phase_records_are_left_out_of_the_worker_times(directory: Path) -> None:
    record(directory, PHASE)
    with (directory / "records.jsonl").open("a") as file:
        file.write('{"name":3,"record":"phase","seconds":1.0}\n{"name":"cut off","record":"phase","seco')
    assert read_times(directory)[0].phases == [PHASE]


def test_worker_times_list_earlier_attempts_first_and_in_order(directory: Path) -> None:
    for number in (10, 2):
        aside = directory / f"attempt.{number}"
        aside.mkdir()
        (aside / "run.json").write_text(dump_json(RUN.model_dump()))
        record(aside, Phase(name=f"attempt {number}", seconds=0.0))
    record(directory, PHASE)
    assert [worker.phases[0].name for worker in read_times(directory)] == ["attempt 2", "attempt 10", "start"]


def test_worker_times_of_a_run_in_lanes_are_those_of_its_lanes(directory: Path) -> None:
    """A lane is a part of a run with its own worker process."""
    for number in (10, 2):
        for folder in (directory / f"lane.{number}", directory / f"lane.{number}/attempt.0"):
            folder.mkdir()
            (folder / "run.json").write_text(dump_json(RUN.model_dump()))
            record(folder, Phase(name=folder.relative_to(directory).as_posix(), seconds=0.0))
    names = [worker.phases[0].name for worker in read_times(directory)]
    assert names == ["lane.2/attempt.0", "lane.2", "lane.10/attempt.0", "lane.10"]


def test_a_run_directory_without_a_readable_run_has_no_worker_times(directory: Path) -> None:
    record(directory, PHASE)
    (directory / "run.json").write_text("{}")
    assert read_times(directory) == []


def test_all_times_of_an_evidence_recorder_come_from_one_clock(directory: Path) -> None:
    with Recorder(directory) as recorder:
        recorder.phase("start")
        recorder.phase("timed")
        recorder.complete()
    [read] = read_times(directory)
    first, second = read.phases
    assert first.began is not None
    assert second.began is not None
    assert second.began - first.began == pytest.approx(second.seconds - first.seconds, abs=1e-9)
    assert json.loads((directory / "records.jsonl").read_text().splitlines()[-1])["processor_seconds"] > 0

"""One claim is timed on machines of one kind: shards that timed its workloads on others are no gate."""

from __future__ import annotations

from pathlib import Path

import pytest
from bundle_builders import RUN_ID, finished, header
from run_builders import stand_in_run

from harness.evidence.base import Obstacle
from harness.evidence.environment_records import CpuFacts, GpuFacts
from harness.evidence.plan_records import Unit
from harness.evidence.run_records import Complete, Unavailable
from harness.execution.recorder import Recorder
from harness.numbers import dump_json
from harness.run_directory.bundle import Header, read_bundle
from harness.run_directory.shards import differences
from harness.run_directory.writer import BundleWriter

RULE = "a claim must be timed on machines of one kind, because other machines differ in speed"


def timed(workload: str, gpu: str | None, *, claim: str = "C", probe: str = "throughput", hour: int = 1) -> Header:
    """The header of a run of one unit, on a machine with this GPU or none, begun at this hour."""
    one = Unit(contract="c", claim=claim, workload=workload, runs=[RUN_ID])
    described = header(one, started_at=f"2026-11-20T0{hour}:00:00Z")
    environment = described.environment.model_copy(
        update={"gpu": GpuFacts(name=gpu), "cpu": CpuFacts(model="a processor")}
    )
    return described.model_copy(update={"runs": {RUN_ID: probe}, "environment": environment})


def rules(folder: Path, *headers: Header, first: int = 0) -> list[str]:
    for number, described in enumerate(headers, start=first):
        finished(folder / str(number), described)
    return [error.rule for error in differences([read_bundle(path) for path in sorted(folder.iterdir())])]


@pytest.mark.parametrize(
    ("other", "found"),
    [
        (timed("v", "H200"), []),
        (timed("v", "A100"), [RULE]),
        (timed("v", None), [RULE]),
        (timed("v", "A100", claim="D"), []),
        (timed("v", "A100", probe="paired"), []),
        (timed("w", "A100", hour=2), []),
    ],
    ids=["the same kind", "another GPU", "no GPU", "another claim", "not timed", "a repeat, which decides nothing"],
)
def test_timings_of_a_claim_must_come_from_one_kind_of_machine(tmp_path: Path, other: Header, found: list[str]) -> None:
    assert rules(tmp_path, timed("w", "H200"), other) == found


@pytest.mark.parametrize(("gpu", "found"), [("H200", []), ("A100", [RULE])])
def test_a_machine_that_could_not_time_a_workload_is_ignored(tmp_path: Path, gpu: str, found: list[str]) -> None:
    """For example, its memory was too small.

    A later part of the gate, from another machine, may have timed the workload.
    """
    could_not = BundleWriter(tmp_path / "0", timed("v", "H200"), [])
    directory = could_not.evidence_directory(RUN_ID)
    directory.mkdir(parents=True)
    run = stand_in_run("one_arm").model_copy(update={"id": RUN_ID, "probe": "throughput"})
    (directory / "run.json").write_text(dump_json(run.model_dump()))
    with Recorder(directory) as recorder:
        recorder.write(Unavailable(obstacle=Obstacle(reason="needs_memory", message="it has 80 GiB")))
        recorder.write(Complete(seconds=1.0))
    could_not.finish()
    assert rules(tmp_path, timed("w", "H200"), timed("v", gpu, hour=2), first=1) == found


def test_a_claim_timed_on_two_machines_is_reported_with_both_machines_and_directories(tmp_path: Path) -> None:
    for number, described in enumerate((timed("w", "H200"), timed("v", "A100", hour=2))):
        finished(tmp_path / str(number), described)
    [error] = differences([read_bundle(tmp_path / name) for name in "01"])
    assert (error.where, error.got) == (str(tmp_path / "1"), f"C on A100, but {tmp_path / '0'} has H200")

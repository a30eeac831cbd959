"""A system that takes its own directory away, or puts something else there, costs its own run alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_builders import stand_in_run

from harness.errors import EvidenceError
from harness.evidence.read_run import read_records, read_run
from harness.evidence.run_evidence import Death
from harness.evidence.run_records import ArmFailed
from harness.execution.sharing import without_the_arm
from harness.execution.supervisor import execute

pytestmark = pytest.mark.usefixtures("stand_in", "warm_commands")
GONE = {
    "removed": "nothing",
    "moved": "nothing",
    "all runs removed": "nothing",
    "everything removed": "nothing",
    "a file": "a file",
    "a link to nothing": "a link",
    "a link to a folder": "a link",
    "a link to itself": "a link",
    "a pipe": "something else",
    "a file in place of all runs": "nothing",
}
DAMAGED = [
    "emptied",
    "closed",
    "a pipe as its output",
    "a folder as its death",
    "a link as its death",
    "a pipe as its heartbeat",
    "a folder as its stack",
    "a pipe as its records",
    "a folder as its run",
    "a folder as its times",
]


def directory_of(tmp_path: Path) -> Path:
    return tmp_path / "report" / "evidence" / "c+w+takes_away"


@pytest.mark.parametrize("then_complete", [False, True])
@pytest.mark.parametrize("what", GONE)
def test_a_run_whose_worker_removed_the_run_directory_counts_as_dead(
    tmp_path: Path, what: str, *, then_complete: bool
) -> None:
    directory = directory_of(tmp_path)
    run = stand_in_run("takes_away", what=what, then_complete=then_complete)
    death = execute(run, directory)
    assert death is not None
    assert (death.cause, death.detail) == (
        "incomplete",
        f"the directory of the run was {GONE[what]} when its worker ended",
    )
    assert not directory.is_symlink()
    read, evidence = read_run(directory)
    assert (read, evidence.death) == (run, death)


@pytest.mark.parametrize("what", DAMAGED)
def test_special_files_in_a_run_directory_do_not_stop_the_supervisor(tmp_path: Path, what: str) -> None:
    """The supervisor must end, and its record of the run must be readable, whatever the verdict is."""
    directory = directory_of(tmp_path)
    death = execute(stand_in_run("takes_away", what=what, then_complete=True), directory)
    assert death is not None
    try:
        _, evidence = read_run(directory)
    except EvidenceError:
        return
    assert evidence.death is not None


def test_failures_of_earlier_arms_are_recorded_again_after_the_last_arm_removed_the_directory(tmp_path: Path) -> None:
    run = stand_in_run("removed")
    run = run.model_copy(update={"arms": dict.fromkeys(("plain", "first", "last"), run.arms["plain"])})
    run = run.model_copy(update={"groups": [["first", "plain"], ["last", "plain"]]})
    earlier = ArmFailed(arm="first", cause="signal", detail="SIGSEGV", phase="first.0: steps", stack="")
    death = Death(cause="incomplete", detail="the directory was nothing", phase="last.0: steps", stack="")
    failed = {"first": earlier}
    rest = without_the_arm(run, tmp_path, death, failed)
    assert rest is not None
    assert rest.without == list(failed) == ["first", "last"]
    assert read_records(tmp_path)[0] == list(failed.values())


def test_leftover_records_in_a_run_directory_do_not_disturb_the_run(tmp_path: Path) -> None:
    directory = directory_of(tmp_path)
    directory.mkdir(parents=True)
    (directory / "records.jsonl").write_text("not of this run\n")
    assert execute(stand_in_run("one_arm"), directory) is None
    assert read_run(directory)[1].death is None

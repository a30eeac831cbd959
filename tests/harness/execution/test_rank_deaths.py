"""A rank that comes to a bad end is told by its number, costs its own arm alone, and leaves nothing behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from planning import NO_GPU
from process_table import await_end
from run_builders import make_contract
from waiting import eventually

from harness.contract.schema import Contract
from harness.evidence.plan_records import Run
from harness.evidence.read_run import read_run
from harness.execution.supervisor import execute
from harness.execution.watched_worker import Progress, Stopped
from harness.judging.registry import judge_unit
from harness.judging.verdict import Verdict
from harness.planning.plan import plan
from harness.system.resolve import resolve

pytestmark = pytest.mark.usefixtures("warm", "ends_alone")

SYSTEM = "ranked_systems:Ranked"
SUPPORT = Path(__file__).parents[2] / "support"
WORKLOAD = {"model": "m", "batch_size": 4, "seq_len": 4, "steps": 5, "needs": {"device": "cpu"}}
# how: reason, what the message says of it
ENDS = {
    "raises": ("worker_exception", "rank 1 of 2: "),
    "killed": ("worker_signal", "rank 1 of 2 was ended by SIGKILL"),
    "garbles": ("worker_exception", "rank 1 of 2: it wrote something that is not a message on the harness's own line"),
    "stopped": ("worker_heartbeat", "rank 1 of 2 was stopped (SIGSTOP)"),
    "hangs": (
        "worker_heartbeat",
        (
            "other ranks have waited for rank 1 of 2 for 20 s: the rank is at step 2 and collective 8, but rank 0 is "
            "at step 2 and"
        ),
    ),
}


class Loaded:
    def __init__(self, contract: Contract) -> None:
        self.contract = contract


def planned(**arms: dict[str, Any]) -> tuple[Contract, Run]:
    """Each arm of two ranks has a claim that its replicas agree."""
    claims = [{"id": arm, "kind": "ranks_agree", "candidate": arm, "steps": 5} for arm in arms]
    ranked = {arm: {"ranks": 2, **settings} for arm, settings in arms.items()}
    contract = make_contract(*claims, system=SYSTEM, arms=ranked, workloads={"w": WORKLOAD})
    [run] = plan([Loaded(contract)], machine=NO_GPU, describe=lambda name: resolve(name).describe()).runs
    return contract, run


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Verdict]:
    """The verdict on an arm, of one run of all of them; and the phases of each rank's process, kept for the report.

    While a rank hangs, a second passes at each look at the ranks.
    """
    directory = tmp_path_factory.mktemp("ranks") / "run"
    note = directory.parent / "note"
    contract, run = planned(**{how: {"last_rank": how, "note": str(note)} for how in ENDS}, trains={"note": str(note)})
    (directory.parent / "hanging").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANKS_THAT_HANG", str(directory.parent / "hanging"))
        patch.syspath_prepend(str(SUPPORT / "hurried_ranks"))
        execute(run, directory)
    evidence = read_run(directory)[1]
    verdicts = {claim.id: judge_unit(contract, claim, "w", [evidence]) for claim in contract.claims}
    await_end(*map(int, note.read_text().split()))
    left = {path.relative_to(directory).as_posix() for path in directory.rglob("*") if "attempt" not in path.parts[-2]}
    kept = {name for name in left if not name.startswith("attempt.")}
    assert kept == {
        *("run.json", "process.json", "records.jsonl", "trains.0.csv"),
        *("rank.1", "rank.1/records.jsonl", "rank.1/trains.0.csv"),
    }
    return verdicts.__getitem__


@pytest.mark.parametrize("how", ENDS)
def test_the_rank_that_failed_is_named_with_its_reason(how: str, ended: Callable[[str], Verdict]) -> None:
    reason, message = ENDS[how]
    verdict = ended(how)
    assert verdict.reason == reason, verdict.message
    assert message in verdict.message


def test_an_arm_of_several_ranks_that_all_train_passes(ended: Callable[[str], Verdict]) -> None:
    assert ended("trains").reason == "held", ended("trains").message


def test_a_session_that_is_stopped_leaves_no_rank(tmp_path: Path) -> None:
    _, run = planned(hangs={"last_rank": "hangs", "note": str(tmp_path / "note")})
    stop = threading.Event()

    def stop_in_the_steps(progress: Progress) -> None:
        if progress.phase == "hangs.0: steps":
            eventually(lambda: (tmp_path / "note").read_text().count("\n") == 2, "both ranks are there")
            stop.set()

    with pytest.raises(Stopped):
        execute(run, tmp_path / "run", stop_in_the_steps, stop=stop)
    ranks = [int(line) for line in (tmp_path / "note").read_text().split()]
    assert len(ranks) == 2
    await_end(*ranks)

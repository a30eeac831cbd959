"""Ranks without their processes: where they may run, what each reads, how far each is, what becomes of records."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from planning import H200, NO_GPU
from run_builders import make_contract, stand_in_run

from harness.contract.schema import Contract, Needs
from harness.devices.environment import Machine
from harness.evidence.plan_records import PlannedArm
from harness.evidence.read_run import read_run
from harness.evidence.run_records import Complete
from harness.execution import ranks, turns
from harness.execution.rank_seat import Marks, Position, new_marks
from harness.execution.ranks import RankEnded
from harness.execution.recorder import Recorder
from harness.execution.sharing import lanes, write_run
from harness.execution.turns import gpu_locks
from harness.planning.obstacles import find_obstacle, gpus_of
from harness.system.protocol import Arm, SystemDescription
from harness.system.ranks import shared

AGREE = {"id": "A", "kind": "ranks_agree", "candidate": "two", "steps": 3}
RESUME = {
    "id": "R",
    "kind": "resume",
    "candidate": "two",
    "save_at": 1,
    "steps": 1,
    "equality": "bitwise",
    "max_abs_difference": 0.1,
}
PEAK = {"id": "P", "kind": "peak_memory", "candidate": "two", "baseline": "two", "at_most_gib": 1.0, "trajectory": "T"}
TWO_GPUS = dataclasses.replace(H200, gpus=(*H200.gpus, dataclasses.replace(H200.gpus[0], uuid="GPU-1")))
DESCRIBED = SystemDescription("s", "", [], {}, {}, capabilities=frozenset({"parameters", "inputs", "resume"}))


def obstacle(claim: dict[str, Any], machine: Machine, **needs: Any) -> tuple[str, str] | None:
    workload = {"model": "m", "batch_size": 4, "seq_len": 16, "steps": 3, "needs": needs}
    contract: Contract = make_contract(claim, arms={"two": {"ranks": 2}}, workloads={"w": workload})
    found = find_obstacle(contract, contract.claims[0], contract.workloads["w"], machine, lambda _: DESCRIBED)
    return None if found is None else (found.reason, found.message)


def here(machine: Machine) -> Machine:
    return dataclasses.replace(machine, has_module=lambda _: True)


def test_ranks_on_gpus_need_one_gpu_each_and_ranks_on_cpu_need_none() -> None:
    assert obstacle(AGREE, here(H200)) == (
        "needs_gpu",
        "needs 2 GPUs, one for each rank, but this machine has 1",
    )
    assert obstacle(AGREE, here(TWO_GPUS)) is None
    assert obstacle(AGREE, here(TWO_GPUS), gpus=4) is not None
    assert obstacle(AGREE, here(H200), device="cpu") is None
    assert obstacle(AGREE, here(NO_GPU)) is None
    assert obstacle(AGREE, here(NO_GPU), gpus=2) == ("needs_cuda", "needs CUDA: this machine has no CUDA device")


def test_a_claim_whose_probe_starts_its_own_processes_cannot_run_with_several_ranks() -> None:
    assert obstacle(RESUME, here(NO_GPU)) == (
        "one_rank_only",
        "resume can be judged only for arms with one rank, because its probe `resume` cannot start several ranks",
    )
    assert obstacle(PEAK, here(TWO_GPUS), device="cuda") is None


def test_ranks_use_one_gpu_each_and_lock_all_gpus_in_one_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = ranked("trains")
    needing = run.workload.model_copy(update={"needs": Needs(device="cuda")})
    assert gpus_of(run.model_copy(update={"workload": needing}), TWO_GPUS.gpus) == ["GPU-0", "GPU-1"]
    held: list[str] = []

    def path(uuid: str) -> Path:
        held.append(uuid)
        return tmp_path / uuid

    monkeypatch.setattr(turns, "lock_path", path)
    with gpu_locks(["GPU-1", "GPU-0", "GPU-1"], print):
        assert held == ["GPU-0", "GPU-1"]


def ranked(name: str, number: int = 2) -> Any:
    run = stand_in_run(name)
    return run.model_copy(update={"arms": {"two": PlannedArm(arm=Arm(ranks=number), system="s:S"), **run.arms}})


def test_a_run_has_as_many_ranks_as_its_largest_arm_and_is_not_split_into_lanes() -> None:
    """A lane is a part of a run with its own worker process."""
    run = ranked("trains", 3).model_copy(update={"compared": []})
    long = run.model_copy(update={"workload": run.workload.model_copy(update={"steps": 100_000})})
    assert run.ranks == 3
    assert lanes(long) == [long]


def test_each_rank_reads_its_rows_of_a_batch_and_all_tensors_without_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    group = SimpleNamespace(get_world_size=lambda: 2, get_rank=lambda: 1)
    monkeypatch.setattr("harness.system.ranks._group", lambda: group)
    whole = {"x": torch.arange(8).view(4, 2), "rate": torch.tensor(0.5), "table": torch.arange(3)}
    read = shared(lambda _index: whole, 4)(0)
    assert {name: tensor.tolist() for name, tensor in read.items()} == {
        "x": [[4, 5], [6, 7]],
        "rate": 0.5,
        "table": [0, 1, 2],
    }
    with pytest.raises(
        ValueError, match=r"ranks must take 2 equal shares of a batch, but its 3 rows are not a multiple of 2"
    ):
        shared(lambda _index: {"x": torch.zeros(3)}, 4)(0)


@pytest.mark.parametrize(("rank", "rows"), [(0, [0, 1]), (1, [0, 1]), (2, [2, 3]), (3, [2, 3])])
def test_ranks_that_share_a_model_read_equal_rows(monkeypatch: pytest.MonkeyPatch, rank: int, rows: list[int]) -> None:
    group = SimpleNamespace(get_world_size=lambda: 4, get_rank=lambda: rank)
    monkeypatch.setattr("harness.system.ranks._group", lambda: group)
    monkeypatch.setattr("harness.system.ranks._model_parallel", 2)
    assert shared(lambda _index: {"x": torch.arange(4)}, 4)(0)["x"].tolist() == rows


def test_rank_marks_written_by_one_process_are_read_by_another(tmp_path: Path) -> None:
    seen = new_marks(tmp_path / "marks")
    assert seen.read() == (Position(0, 0, 0, 0), False)
    written = Marks(tmp_path / "marks")
    written.enter()
    written.phase(waits=False)
    written.phase(waits=True)
    written.phase(waits=False)  # on with the phase before
    written.step()
    written.collectives(7)
    assert seen.read() == (Position(joined=1, phases=1, steps=1, collectives=7), True)
    written.leave()
    assert seen.read()[1] is False
    written.enter()
    assert seen.read() == (Position(joined=2), True)


def standing(number: int, *, awaited: float = 0.0, stopped: float = 0.0) -> Any:
    child = SimpleNamespace(resume=lambda: None, terminate=lambda _grace_s: None)
    own = {"position": Position(1, 2, 4, 5 - number), "awaited": awaited, "is_stopped": stopped, "number": number}
    return SimpleNamespace(**own, child=child, stack=lambda: "a stack")


@pytest.mark.parametrize(
    ("last", "message"),
    [
        (
            standing(1, awaited=20.1),
            "other ranks have waited for rank 1 of 2 for 20 s: the rank is at step 3 and collective 4",
        ),
        (standing(1, stopped=5.1), r"rank 1 of 2 was stopped \(SIGSTOP\)"),
    ],
)
def test_a_rank_that_stops_while_other_ranks_wait_is_reported_with_its_stack(
    last: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "usable_cores", lambda: 2)
    ranks._require_moving([standing(0), standing(1, awaited=19.9, stopped=4.9)])
    with pytest.raises(RankEnded, match=message) as caught:
        ranks._require_moving([standing(0), last])
    assert (caught.value.cause, caught.value.stack) == ("heartbeat", "a stack")


def test_the_time_limit_of_ranks_that_share_cores_grows_with_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ranks, "usable_cores", lambda: 2)
    others = [standing(number) for number in range(7)]
    ranks._require_moving([*others, standing(7, awaited=79.9)])
    with pytest.raises(RankEnded, match="other ranks have waited for rank 7 of 8 for 80 s"):
        ranks._require_moving([*others, standing(7, awaited=80.1)])


def test_a_rank_counts_as_awaited_only_if_it_stands_still_and_another_rank_is_ahead(tmp_path: Path) -> None:
    rank = ranks._Rank.__new__(ranks._Rank)
    rank.marks, rank.child = new_marks(tmp_path / "marks"), cast("Any", SimpleNamespace(pid=0))
    rank.position, rank.awaited, rank.is_stopped, rank.answer = Position(), 0.0, 0.0, None
    ahead = Position(1, 0, 1, 0)

    def awaited(farthest: Position) -> float:
        rank.look(1.0, farthest, lag=20.0)
        return rank.awaited

    assert awaited(ahead) == 0.0  # in no arm: what it does is its own
    rank.marks.enter()
    assert [awaited(ahead), awaited(ahead), awaited(ahead)] == [0.0, 1.0, 2.0]
    rank.marks.collectives(1)
    assert awaited(ahead) == 0.0  # it moved
    assert [awaited(ahead), awaited(Position(1, 0, 0, 1))] == [1.0, 0.0]  # nobody is before it any more
    rank.marks.phase(waits=True)
    assert [awaited(ahead), awaited(ahead)] == [0.0, 0.0]


def bad(number: int, *, at: float | None) -> Any:
    answer = None if at is None else SimpleNamespace(at=at, obstacle=None)
    cause = "signal" if at is None else "exception"
    how = "was ended by SIGKILL" if at is None else f"raised at {at:g}"
    own = {"number": number, "answer": answer, "ended_badly": True}
    return SimpleNamespace(**own, listen=lambda _: None, ending=lambda: (cause, how), stack=lambda: "")


@pytest.mark.parametrize(
    ("ended", "message"),
    [
        ([bad(0, at=5.0), bad(1, at=4.0)], "rank 1 of 2: raised at 4"),
        ([bad(0, at=3.0), bad(1, at=None)], "rank 1 of 2 was ended by SIGKILL"),  # which closed the first one's sockets
    ],
)
def test_if_several_ranks_fail_the_first_failure_is_reported(ended: list[Any], message: str) -> None:
    with pytest.raises(RankEnded, match=message):
        ranks._raise_first(ended, cast("Any", None))


def test_a_rank_without_records_counts_as_dead_and_is_not_replaced_by_the_first_rank(tmp_path: Path) -> None:
    run = ranked("trains")
    write_run(run, tmp_path)
    with Recorder(tmp_path) as recorder:
        recorder.complete()
    evidence = read_run(tmp_path)[1]
    assert evidence.death is None
    assert [one.death.cause for one in evidence.ranks if one.death is not None] == ["incomplete"]
    (tmp_path / "rank.1").mkdir()
    record = Complete(seconds=1.0, processor_seconds=1.0).model_dump()
    (tmp_path / "rank.1" / "records.jsonl").write_text(json.dumps(record) + "\n")
    assert [one.death for one in read_run(tmp_path)[1].ranks] == [None]

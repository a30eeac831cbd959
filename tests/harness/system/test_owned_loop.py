"""A loop that keeps control, executed one step at a time from outside."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from training_loops import CountingLoop, numbers

from harness.system.batches import LoaderBatches
from harness.system.owned_loop import LoopEndedError, OwnedLoop, OwnedLoopRun
from harness.system.replay.generators import seed_all


def run_of(trainer: CountingLoop, capture: str = "none") -> OwnedLoopRun:
    trainer.loop.start()
    parameters = {"total": trainer.total}
    given = lambda index: {"x": torch.tensor(100.0 + index)}
    return OwnedLoopRun(trainer.loop, given, parameters, dict, owner="CountingLoop.train", capture=capture)


def test_a_loop_that_its_user_wrote_runs_one_iteration_per_step_and_stops_in_between() -> None:
    trainer = CountingLoop(numbers(5))
    with run_of(trainer) as run:
        assert trainer.logged == []
        assert [run.step(index).item() for index in range(3)] == [0.0, 1.0, 3.0]
        assert trainer.logged == [0.0, 1.0, 3.0]


def test_a_loop_that_its_user_wrote_accepts_a_repeated_or_different_batch() -> None:
    """Planted faults request the same step again, or the batch of another step."""
    with run_of(CountingLoop(numbers(5))) as run:
        assert [run.step(index).item() for index in (0, 0, 2)] == [0.0, 100.0, 102.0]
        assert run.inputs()["x"].item() == 2.0


def test_a_loop_that_ends_early_raises_before_the_missing_step() -> None:
    with run_of(CountingLoop(numbers(2))) as run:
        assert [run.step(0).item(), run.step(1).item()] == [0.0, 1.0]
        with pytest.raises(LoopEndedError, match=r"CountingLoop\.train: .* found a loop that ended after 2 steps"):
            run.step(2)


def test_an_exception_of_the_users_loop_is_raised_where_the_step_was_requested() -> None:
    def fail() -> None:
        loop.take({})
        raise ZeroDivisionError("in the loop")

    loop = OwnedLoop(fail, "fail")
    loop.start()
    with pytest.raises(ZeroDivisionError, match="in the loop"):
        loop.step({})


def test_a_closed_loop_leaves_no_thread_behind() -> None:
    with run_of(CountingLoop(numbers(5))) as run:
        run.step(0)
        assert "CountingLoop.train" in {thread.name for thread in threading.enumerate()}
    assert "CountingLoop.train" not in {thread.name for thread in threading.enumerate()}


def test_capturing_a_loop_that_its_user_wrote_is_refused_with_the_lines_that_read_values() -> None:
    with run_of(CountingLoop(numbers(5)), capture="step") as run:
        for index in range(3):
            run.step(index)
        record = run.capture_record()
    assert (record.requested, record.captured, record.uncaptured_steps) == (True, False, 3)
    assert record.failure == (
        "CountingLoop.train keeps control of its loop, so its steps cannot be captured from outside; "
        "its steps read values on the host at training_loops.py:26 (3 times)"
    )


def test_watchers_of_the_step_see_the_operations_of_a_loop_that_its_user_wrote() -> None:
    from harness.execution.watchers.sync_detectors import by_dispatch_mode

    with run_of(CountingLoop(numbers(5))) as run:
        seen = by_dispatch_mode(lambda: run.step(0), "cpu")
    [sync] = seen
    assert (sync.place.line, sync.operation, seen[sync]) == (26, "aten._local_scalar_dense", 1)


@pytest.fixture
def loader() -> Iterator[DataLoader[tuple[Tensor, ...]]]:
    class Named(TensorDataset):
        def __getitem__(self, index: int) -> dict[str, Tensor]:  # type: ignore[override]
            return {"x": self.tensors[0][index]}

    order = torch.Generator().manual_seed(3)
    return DataLoader(Named(torch.arange(12)), batch_size=4, shuffle=True, generator=order)  # type: ignore[return-value]


def test_batches_read_by_index_equal_the_batches_of_the_loop_in_every_epoch(
    loader: DataLoader[dict[str, Tensor]],
) -> None:
    batches = LoaderBatches(loader)
    early = batches(1)["x"].tolist()
    read_by_the_loop = [batch["x"].tolist() for _ in range(2) for batch in loader]
    assert [batches(index)["x"].tolist() for index in range(6)] == read_by_the_loop
    assert early == read_by_the_loop[1] != read_by_the_loop[4]


def test_reading_batches_by_index_draws_no_random_numbers_of_the_process(loader: DataLoader[dict[str, Tensor]]) -> None:
    torch.manual_seed(0)
    expected = torch.rand(1).item()
    torch.manual_seed(0)
    LoaderBatches(DataLoader(loader.dataset, batch_size=4, shuffle=True))(5)
    assert torch.rand(1).item() == expected


class Noise(TensorDataset):
    """Draws each example anew from the process's generators, as augmentations do."""

    def __getitem__(self, index: int) -> dict[str, Tensor]:  # type: ignore[override]
        drawn = torch.rand(1), random.random(), float(np.random.rand())  # noqa: NPY002 - the global one is the point
        return {name: torch.as_tensor(each) for name, each in zip(("torch", "python", "numpy"), drawn, strict=True)}


def test_random_batches_of_a_data_set_differ_per_index_and_are_equal_for_every_reader() -> None:
    def loader() -> DataLoader[Any]:
        return DataLoader(Noise(torch.arange(12)), batch_size=4)

    seed_all(0)
    expected = torch.rand(1).item(), random.random(), float(np.random.rand())  # noqa: NPY002 - likewise
    seed_all(0)
    first, second = LoaderBatches(loader()), LoaderBatches(loader())
    read = [first(index) for index in range(4)]
    last = second(3)
    drawn = torch.rand(1).item(), random.random(), float(np.random.rand())  # noqa: NPY002 - likewise
    assert drawn == expected
    for name in ("torch", "python", "numpy"):
        assert len({float(each) for batch in read for each in batch[name]}) == 16
        assert torch.equal(read[3][name], last[name])

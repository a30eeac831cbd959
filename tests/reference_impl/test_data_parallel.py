"""Two processes with gloo train one model: as one process does on their batches joined, and recorded as plainly."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import forks
import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from reference_impl.config import TrainConfig
from reference_impl.cuda_graph import CapturingTrainer
from reference_impl.data_parallel import Ranks
from reference_impl.trainer import Trainer

RANKS, BATCH, STEPS = 2, 8, 4
# 2^-24 times the 6 sigma of a sum of some 10^4 terms: what another order of float32 additions may change.
ROUNDING = 4e-5

Seen = dict[str, Any]


class _Sums(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts sums over ranks, and the waits for them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "_c10d_functional":
            self.names.append(func.__name__.partition(".")[0])
        return func(*args, **(kwargs or {}))


def _seen(ranks: Ranks | None, scope: str = "none", **settings: Any) -> Seen:
    """Four steps of one trainer, step by step; `settings` are the configuration's."""
    count = 1 if ranks is None else ranks.count
    config = TrainConfig.preset("tiny", device="cpu", batch_size=BATCH // count, seq_len=16, steps=STEPS, **settings)
    trainer = Trainer(config, ranks)
    capturing = CapturingTrainer(trainer, scope)
    seen: Seen = {"steps": [], "sums": []}
    for index in range(STEPS):
        prepared = capturing.prepare(index)
        with _Sums() as sums:
            loss = trainer.body() if prepared is None else prepared.replay()
        seen["sums"].append(sums.names)
        seen["steps"].append(
            {
                "loss": loss.clone(),
                "tokens": trainer.static.tokens.flatten(0, -2).clone(),
                "norms": trainer.clip.norms.clone(),
                "gradients": {name: gradient.clone() for name, gradient in trainer.gradients().items()},
                "parameters": trainer.trainable.flat.clone(),
            }
        )
    seen["failure"] = capturing.failure
    return seen


RUNS: dict[str, Callable[[Ranks], Seen]] = {
    "plain": _seen,
    "traced": lambda ranks: _seen(ranks, "step"),
    "traced backward": lambda ranks: _seen(ranks, "backward"),
    "micro-batches": lambda ranks: _seen(ranks, micro_batches=2),
}


def _train(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    ranks = Ranks.of_this_process()
    assert ranks is not None
    torch.save({name: run(ranks) for name, run in RUNS.items()}, Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def by_rank(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Seen]]:
    """What each rank saw in each of `RUNS`."""
    folder = tmp_path_factory.mktemp("ranks")
    processes = [forks.begin(partial(_train, rank, str(folder))) for rank in range(RANKS)]
    assert [forks.end(process) for process in processes] == [0] * RANKS
    return [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]


@pytest.fixture(scope="module")
def joined() -> Seen:
    return _seen(None)


def test_ranks_read_the_rows_of_the_batch_in_their_order(by_rank: list[dict[str, Seen]], joined: Seen) -> None:
    for run in ("plain", "micro-batches"):
        for index, step in enumerate(joined["steps"]):
            rows = torch.cat([seen[run]["steps"][index]["tokens"] for seen in by_rank])
            assert torch.equal(rows, step["tokens"]), (run, index)


def test_the_mean_of_the_ranks_losses_equals_the_loss_of_one_batch_with_all_rows(
    by_rank: list[dict[str, Seen]], joined: Seen
) -> None:
    for run in RUNS:
        for index, step in enumerate(joined["steps"]):
            losses = [seen[run]["steps"][index]["loss"].item() for seen in by_rank]
            assert losses[0] != losses[1]
            assert sum(losses) / RANKS == pytest.approx(step["loss"].item(), rel=ROUNDING), (run, index)


@pytest.mark.parametrize("run", RUNS)
def test_data_parallel_gradients_and_norms_equal_those_of_one_batch_with_all_rows(
    by_rank: list[dict[str, Seen]], joined: Seen, run: str
) -> None:
    for step, theirs in zip(by_rank[0][run]["steps"], joined["steps"], strict=True):
        torch.testing.assert_close(step["norms"], theirs["norms"], rtol=ROUNDING, atol=0.0)
        for name, gradient in step["gradients"].items():
            reference = theirs["gradients"][name]
            assert float((gradient - reference).abs().max()) <= ROUNDING * float(reference.abs().max()), name


@pytest.mark.parametrize("run", RUNS)
def test_replicas_are_equal_in_bits_after_every_step(by_rank: list[dict[str, Seen]], run: str) -> None:
    ours, others = (seen[run]["steps"] for seen in by_rank)
    for step, other in zip(ours, others, strict=True):
        for kept in ("parameters", "norms"):
            assert torch.equal(step[kept], other[kept]), kept


@pytest.mark.parametrize("run", ["traced", "traced backward"])
def test_a_recorded_step_of_two_ranks_equals_the_plain_step_in_bits(by_rank: list[dict[str, Seen]], run: str) -> None:
    for seen in by_rank:
        assert seen[run]["failure"] is None
        for step, plain in zip(seen[run]["steps"], seen["plain"]["steps"], strict=True):
            for kept in ("loss", "parameters"):
                assert torch.equal(step[kept], plain[kept]), kept


def test_a_step_sums_over_the_ranks_once_and_its_recording_repeats_this_sum(by_rank: list[dict[str, Seen]]) -> None:
    for seen in by_rank:
        for run in RUNS:
            assert seen[run]["sums"] == [["all_reduce_", "wait_tensor"]] * STEPS, run


def test_a_training_with_a_single_rank_sums_nothing_over_ranks(joined: Seen) -> None:
    assert joined["sums"] == [[]] * STEPS

"""How far apart orders of one sum end: two ranks, one process that takes their shares in turn, and batches joined.

    python scripts/ranks_rounding.py [--seeds 6] [--steps 200]

Trains `tiny` in float32 on this machine's processors (gloo), and prints a row of the table of docs/ranks.md a seed:
the largest difference of any parameter at the end between two ranks and one process in turn, between two ranks and the
joined batch, and between two orders in one process alone (four micro-batches, the joined batch). Exit code 1 where
ranks and the process in turn differ in a bit.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import start_processes

from reference_impl.config import TrainConfig
from reference_impl.data_parallel import Ranks
from reference_impl.trainer import Trainer

RANKS, SEQUENCES, SEQ_LEN, WARMUP = 2, 8, 32, 5
HEAD = "| seed | ranks, in turn | ranks, joined | four parts, joined |\n| --- | --- | --- | --- |"


def trained(seed: int, steps: int, batch_size: int, micro_batches: int = 1, ranks: Ranks | None = None) -> Tensor:
    """All trainable parameters [n] at the end; by one thread, since the number of threads is an order of sums, too."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    config = TrainConfig.preset(
        "tiny",
        seed=seed,
        steps=steps,
        batch_size=batch_size,
        micro_batches=micro_batches,
        seq_len=SEQ_LEN,
        warmup_steps=WARMUP,
        device="cpu",
        dtype="float32",
    )
    trainer = Trainer(config, ranks)
    for index in range(steps):
        trainer.step(index)
    torch.set_num_threads(threads)
    return trainer.trainable.flat


def as_rank(rank: int, seed: int, steps: int, folder: Path) -> None:
    """One of the ranks; the first one writes what it ended with."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    ended = trained(seed, steps, SEQUENCES // RANKS, ranks=Ranks.of_this_process())
    if rank == 0:
        torch.save(ended, folder / "ended.pt")
    dist.destroy_process_group()


def differences(seed: int, steps: int) -> tuple[float, float, float]:
    """The three columns of the table."""
    with tempfile.TemporaryDirectory() as name:
        of_ranks = (seed, steps, Path(name))
        start_processes(as_rank, args=of_ranks, nprocs=RANKS, start_method="spawn")  # type: ignore[no-untyped-call]
        ranks = torch.load(Path(name) / "ended.pt")
    in_turn, joined, parts = (trained(seed, steps, SEQUENCES, number) for number in (RANKS, 1, 2 * RANKS))
    pairs = ((ranks, in_turn), (ranks, joined), (parts, joined))
    first, second, third = (float((one - other).abs().max()) for one, other in pairs)
    return first, second, third


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=200)
    asked = parser.parse_args()
    print(HEAD, flush=True)
    apart = 0
    for seed in range(asked.seeds):
        found = differences(seed, asked.steps)
        apart += found[0] != 0.0
        print(f"| {seed} | {' | '.join(f'{value:.1e}' if value else '0' for value in found)} |", flush=True)
    return int(apart > 0)


if __name__ == "__main__":
    raise SystemExit(main())

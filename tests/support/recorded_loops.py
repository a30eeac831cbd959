"""A user's training loop recorded by `harness.record`; under torchrun each rank averages gradients.

As a script it takes FOLDER and the arguments of `train` as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import zlib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import harness

STEPS = 12


def batches(seed: int) -> list[tuple[Tensor, Tensor]]:
    drawn = torch.Generator().manual_seed(seed)
    return [(torch.randn(8, 6, generator=drawn), torch.randn(8, 1, generator=drawn)) for _ in range(STEPS)]


def train(
    folder: Path,
    learning_rate: float = 0.1,
    dropped: int = 0,
    swapped_at: int = -1,
    noise: float = 0.0,
    given: tuple[str, ...] = ("start", "batch", "grad_norm", "model"),
    dies_at: int = -1,
    late: float = 0.0,
    seed: int = 0,
    warmup: int = 0,
) -> None:
    """Train and record.

    dropped: number of last batches that are left out. swapped_at: the rank that reads its first two batches in reverse
    order. noise: of a gradient, from a generator that the folder's name seeds. given: what is passed to the recorder.
    warmup: number of steps over which the learning rate grows.
    """
    rank = int(os.environ.get("RANK", "0"))
    torch.manual_seed(seed)
    first = nn.Linear(6, 5)
    model = nn.Sequential(first, nn.Tanh(), nn.Linear(5, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    own = torch.Generator()
    own.manual_seed(zlib.crc32(folder.name.encode()))
    read = batches(rank)
    read = read[: len(read) - dropped]
    if swapped_at == rank:
        read[0], read[1] = read[1], read[0]
    trained: dict[str, Any] = {"model": model, "optimizer": optimizer}
    with harness.record(folder, **(trained if "start" in given else {})) as recorder:
        for step, (inputs, targets) in enumerate(read):
            optimizer.param_groups[0]["lr"] = learning_rate * min(1.0, (step + 1) / max(warmup, 1))
            loss = (model(inputs) - targets).square().mean()
            loss.backward()
            for each in model.parameters():
                if dist.is_initialized():
                    dist.all_reduce(each.grad)
                if each.grad is not None and noise:
                    each.grad += noise * torch.randn(each.grad.shape, generator=own)
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if step == len(read) - 1:
                with torch.no_grad():
                    first.weight += late
            optimizer.zero_grad()
            if step == dies_at:
                raise RuntimeError("the loop died")
            more: dict[str, Any] = {"batch": (inputs, targets)} if "batch" in given else {}
            more |= {"grad_norm": norm} if "grad_norm" in given else {}
            recorder.step(loss, **more, **(trained if "model" in given else {}))


if __name__ == "__main__":
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    train(Path(sys.argv[1]), **json.loads(sys.argv[2]))
    if dist.is_initialized():
        dist.destroy_process_group()

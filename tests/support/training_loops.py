"""A small training loop that keeps control itself, as a library's trainer does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from harness.system.owned_loop import OwnedLoop


class CountingLoop:
    """Add each batch's `x` to `total`, draw no random number, and read the loss on the host in each step."""

    def __init__(self, batches: Iterable[dict[str, Tensor]]) -> None:
        self.batches = batches
        self.total = torch.zeros(())
        self.loop = OwnedLoop(self.train, "CountingLoop.train")
        self.logged: list[float] = []

    def train(self) -> None:
        for own in self.batches:
            batch = self.loop.take(own)
            self.total += batch["x"]
            self.logged.append(self.total.item())
            self.loop.report(self.total)


def numbers(count: int) -> Iterator[dict[str, Tensor]]:
    for number in range(count):
        yield {"x": torch.tensor(float(number))}

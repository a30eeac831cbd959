"""A loop that keeps control, as a library's trainer does, small enough to be read at a glance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from harness.system.owned_loop import OwnedLoop


class CountingLoop:
    """Adds each batch's `x` to `total`, draws no random number, and reads its loss on the host in each step."""

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

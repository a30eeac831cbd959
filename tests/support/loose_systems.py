"""Trainers that make tensors on the way: averages, copies and logs that a captured or optimized arm keeps, or not."""

from __future__ import annotations

import torch
from stateful_systems import Built, Stateful
from torch import Tensor

from harness.contract.schema import Arm

BEGINS = 4  # the step in which averages begin


class Makes(Stateful):
    """Counts its steps in Python. An arm with `drops` leaves out what it makes."""

    arm_options = {"learning_rate": float, "drops": bool}  # noqa: RUF012 - as the base class has it

    def prepare(self, built: Built, arm: Arm) -> None:
        built.more |= {"number": 0, "drops": arm.settings().get("drops", False)}

    def forward(self, built: Built, batch: dict[str, Tensor]) -> Tensor:
        loss = super().forward(built, batch)
        built.more["loss"] = loss.detach()
        return loss

    def after_update(self, built: Built) -> None:
        built.more["number"] += 1
        if not built.more["drops"]:
            with torch.no_grad():
                self.make(built)

    def make(self, built: Built) -> None:
        """What the step makes."""


class AveragesLater(Makes):
    """An average in a dictionary, which begins later."""

    def make(self, built: Built) -> None:
        if built.more["number"] >= BEGINS:
            for name, parameter in built.model.named_parameters():
                built.more.setdefault(f"average {name}", parameter.clone()).lerp_(parameter, 0.1)


class AveragesAnew(Makes):
    """An average that every step binds to a new tensor."""

    def make(self, built: Built) -> None:
        weight = next(built.model.parameters())
        built.more["average"] = 0.9 * built.more.get("average", weight) + 0.1 * weight


class TakesSnapshots(Makes):
    """Copies of the weights at every other step."""

    def make(self, built: Built) -> None:
        if built.more["number"] % 2:
            copies = [parameter.clone() for parameter in built.model.parameters()]
            built.more.setdefault("snapshots", []).append(copies)


class ListsItsLosses(Makes):
    def make(self, built: Built) -> None:
        built.more.setdefault("losses", []).append(built.more["loss"])


class MeansItsLosses(Makes):
    """A running mean that every step binds to a new tensor."""

    def make(self, built: Built) -> None:
        built.more["mean"] = 0.9 * built.more.get("mean", built.more["loss"]) + 0.1 * built.more["loss"]


class SumsItsLosses(Makes):
    """A sum that is there from the start."""

    def prepare(self, built: Built, arm: Arm) -> None:
        super().prepare(built, arm)
        built.more["sum"] = torch.zeros(())

    def make(self, built: Built) -> None:
        built.more["sum"].add_(built.more["loss"])


class LooksBack(Makes):
    """Trains on its last batch, too."""

    def forward(self, built: Built, batch: dict[str, Tensor]) -> Tensor:
        last = built.more.get("last", batch)
        built.more["last"] = batch
        return super().forward(built, batch) + 0.1 * super().forward(built, last)

"""Trainers that create tensors in steps (averages, copies, logs), which a captured or optimized arm may not keep."""

from __future__ import annotations

import torch
from stateful_systems import Built, Stateful
from torch import Tensor

from harness.contract.schema import Arm

BEGINS = 4  # the step in which averages begin


class Makes(Stateful):
    """Count steps in Python. An arm with `drops` does not create the tensors."""

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
        """Create the step's tensors; here none."""


class AveragesLater(Makes):
    """Keep averages in a dictionary, starting some steps later."""

    def make(self, built: Built) -> None:
        if built.more["number"] >= BEGINS:
            for name, parameter in built.model.named_parameters():
                built.more.setdefault(f"average {name}", parameter.clone()).lerp_(parameter, 0.1)


class AveragesAnew(Makes):
    """Bind the average to a new tensor in every step."""

    def make(self, built: Built) -> None:
        weight = next(built.model.parameters())
        built.more["average"] = 0.9 * built.more.get("average", weight) + 0.1 * weight


class TakesSnapshots(Makes):
    """Copy the weights in every other step."""

    def make(self, built: Built) -> None:
        if built.more["number"] % 2:
            copies = [parameter.clone() for parameter in built.model.parameters()]
            built.more.setdefault("snapshots", []).append(copies)


class ListsItsLosses(Makes):
    def make(self, built: Built) -> None:
        built.more.setdefault("losses", []).append(built.more["loss"])


class MeansItsLosses(Makes):
    """Bind the running mean of losses to a new tensor in every step."""

    def make(self, built: Built) -> None:
        built.more["mean"] = 0.9 * built.more.get("mean", built.more["loss"]) + 0.1 * built.more["loss"]


class SumsItsLosses(Makes):
    """Keep a sum that exists from the start."""

    def prepare(self, built: Built, arm: Arm) -> None:
        super().prepare(built, arm)
        built.more["sum"] = torch.zeros(())

    def make(self, built: Built) -> None:
        built.more["sum"].add_(built.more["loss"])


class LooksBack(Makes):
    """Train on the previous batch, too."""

    def forward(self, built: Built, batch: dict[str, Tensor]) -> Tensor:
        last = built.more.get("last", batch)
        built.more["last"] = batch
        return super().forward(built, batch) + 0.1 * super().forward(built, last)

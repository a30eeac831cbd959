"""Trainers whose captured arm trains wrongly where no loss shows it, or correctly except for rounding."""

from __future__ import annotations

from typing import Any

import torch
from stateful_systems import Averages, Built, Stateful
from torch import Tensor, nn

from harness.contract.schema import Arm, Workload
from harness.system.step_function import StepFunction


class ForgetsItsAverage(Averages):
    """Never update the averaged weights in the captured arm."""

    told = "tensors built.more.average.0"

    def prepare(self, built: Built, arm: Arm) -> None:
        super().prepare(built, arm)
        built.more["forgets"] = arm.capture == "step"

    def after_update(self, built: Built) -> None:
        if not built.more["forgets"]:
            super().after_update(built)


class OwnStatistics(nn.BatchNorm1d):
    """BatchNorm by its formula, as in a fused kernel; the running variance is divided by the rows minus `fewer`."""

    fewer = 1

    def forward(self, x: Tensor) -> Tensor:
        mean, variance = x.mean(dim=0), x.var(dim=0, unbiased=False)
        with torch.no_grad():
            self.num_batches_tracked.add_(1)  # type: ignore[union-attr]
            self.running_mean.lerp_(mean, 0.1)  # type: ignore[union-attr]
            self.running_var.lerp_(variance * len(x) / (len(x) - self.fewer), 0.1)  # type: ignore[union-attr]
        return (x - mean) * torch.rsqrt(variance + self.eps) * self.weight + self.bias


class DividesByItsRows(Stateful):
    """Use the biased running variance in the captured arm, which is too small by a sixteenth (16 rows)."""

    told = "buffers 1.running_var"

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 12, bias=False), OwnStatistics(12), nn.Tanh(), nn.Linear(12, 1))

    def prepare(self, built: Built, arm: Arm) -> None:
        built.model[1].fewer = 0 if arm.capture == "step" else 1


class LeavesOneOut(Stateful):
    """Leave one parameter out of the captured arm's optimizer, at a learning rate with which no loss shows it."""

    told = "parameters 3.weight"

    def prepare(self, built: Built, arm: Arm) -> None:
        built.optimizer.param_groups[0]["lr"].fill_(1e-6)
        if arm.capture == "step":
            group = built.optimizer.param_groups[0]
            group["params"] = [each for each in group["params"] if each is not built.model[3].weight]


class CountsTwice(Stateful):
    """Count what it has seen of each kind twice in the captured arm, in integers."""

    told = "buffers seen"

    def prepare(self, built: Built, arm: Arm) -> None:
        built.model.register_buffer("seen", torch.zeros(2, dtype=torch.int64))
        built.more["times"] = 2 if arm.capture == "step" else 1

    def forward(self, built: Built, batch: dict[str, Tensor]) -> Tensor:
        positive = (batch["x"][:, 0] > 0).long()
        with torch.no_grad():
            built.model.seen.add_(torch.stack([1 - positive, positive]).sum(dim=1) * built.more["times"])
        return super().forward(built, batch)


class RoundsOtherwise(Stateful):
    """Sum the first layer in two halves in the captured arm; its bias precedes a norm and moves by rounding alone."""

    def prepare(self, built: Built, arm: Arm) -> None:
        built.more["halves"] = arm.capture == "step"

    def forward(self, built: Built, batch: dict[str, Tensor]) -> Tensor:
        first, *rest = built.model
        x = batch["x"]
        if built.more["halves"]:
            found = x[:, :3] @ first.weight[:, :3].T + x[:, 3:] @ first.weight[:, 3:].T + first.bias
        else:
            found = first(x)
        return nn.functional.mse_loss(nn.Sequential(*rest)(found), batch["y"])


class Chaotic(Stateful):
    """Train by a map that doubles every rounding twice in each step; the loss is computed from the result."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 12, bias=False), nn.Tanh(), nn.Linear(12, 1, bias=False))

    def prepare(self, built: Built, arm: Arm) -> None:
        built.more["other"] = 1 + 2**-23 * (arm.capture == "step")  # one rounding of float32

    def after_update(self, built: Built) -> None:
        with torch.no_grad():
            for parameter in built.model.parameters():
                for _ in range(2):  # the logistic map on [0, 1], folded: chaotic for almost every start
                    parameter.copy_(4 * parameter.abs().remainder(1) * (1 - parameter.abs().remainder(1)))
                parameter.mul_(built.more["other"])


class ForgetsAnAverageOfItsOptimizer(Stateful):
    """Keep averages in the optimizer's state, which the captured arm never updates."""

    told = "optimizer 0.weight.average"

    def prepare(self, built: Built, arm: Arm) -> None:
        built.more["share"] = 0.0 if arm.capture == "step" else 0.1

    def after_update(self, built: Built) -> None:
        with torch.no_grad():
            for parameter in built.model.parameters():
                average = built.optimizer.state[parameter].setdefault("average", parameter.detach().clone())
                average.lerp_(parameter, built.more["share"])


class KeepsItFlat(Averages):
    """Keep the averages in one tensor in the captured arm; `state` names its parts as those of the plain arm."""

    named_alike = True

    def prepare(self, built: Built, arm: Arm) -> None:
        super().prepare(built, arm)
        if arm.capture == "step":
            each = built.more.pop("average")
            built.more["flat"] = torch.cat([average.flatten() for average in each])
            built.more["views"] = lambda: [
                part.view_as(average)
                for part, average in zip(built.more["flat"].split([a.numel() for a in each]), each, strict=True)
            ]

    def averages(self, built: Built) -> list[Tensor]:
        found: list[Tensor] = built.more["views"]() if "views" in built.more else built.more["average"]
        return found

    def after_update(self, built: Built) -> None:
        with torch.no_grad():
            for average, parameter in zip(self.averages(built), built.model.parameters(), strict=True):
                average.lerp_(parameter, 0.1)

    def build(self, workload: Workload, arm: Arm) -> Any:
        made = super().build(workload, arm)
        names = {f"average.{index}": index for index in range(len(self.averages(self.built)))}
        built = self.built
        if not self.named_alike:
            return StepFunction(*made)
        return StepFunction(*made, state=lambda: {name: self.averages(built)[index] for name, index in names.items()})


class KeepsItFlatUnsaid(KeepsItFlat):
    """Do the same as `KeepsItFlat`, but name no parts."""

    named_alike = False


class AveragesFaithfully(Averages):
    """Average the weights after each step in both arms, in the captured one by another formula."""

    share = 0.8
    falls = 0.5  # what each step multiplies the learning rate by: a lag in the last steps moves little then

    def prepare(self, built: Built, arm: Arm) -> None:
        super().prepare(built, arm)
        built.more["before"] = [parameter.detach().clone() for parameter in built.model.parameters()]
        built.more["count"] = torch.zeros((), dtype=torch.int64)
        built.more["other"] = arm.capture == "step"

    def after_update(self, built: Built) -> None:
        more, parameters = built.more, [parameter.detach() for parameter in built.model.parameters()]
        (self.average if more["other"] else self.lerp)(more["average"], parameters, built)
        torch._foreach_copy_(more["before"], parameters)
        more["count"].add_(1)
        built.optimizer.param_groups[0]["lr"].mul_(self.falls)

    def lerp(self, averages: list[Tensor], parameters: list[Tensor], built: Built) -> None:
        for average, parameter in zip(averages, parameters, strict=True):
            average.lerp_(parameter, self.share)

    def average(self, averages: list[Tensor], parameters: list[Tensor], built: Built) -> None:
        for average, parameter in zip(averages, parameters, strict=True):
            average.mul_(1 - self.share).add_(parameter, alpha=self.share)


class AveragesAllAtOnce(AveragesFaithfully):
    """Average with torch's functions for lists in the captured arm."""

    def average(self, averages: list[Tensor], parameters: list[Tensor], built: Built) -> None:
        torch._foreach_mul_(averages, 1 - self.share)
        torch._foreach_add_(averages, parameters, alpha=self.share)


class AveragesSlowly(AveragesFaithfully):
    """Average over so many steps that each formula's own rounding of the share adds up."""

    share = 0.001


class RoundsCoarsely(AveragesFaithfully):
    """Multiply in bfloat16 in the captured arm, like autocast."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))

    def forward(self, built: Built, batch: dict[str, Tensor]) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=built.more["other"]):
            found = built.model(batch["x"])
        return nn.functional.mse_loss(found.float(), batch["y"])


class AveragesLate(AveragesFaithfully):
    """Average the parameters of the previous step in the captured arm."""

    def average(self, averages: list[Tensor], parameters: list[Tensor], built: Built) -> None:
        self.lerp(averages, built.more["before"], built)


class AveragesEverySecond(AveragesFaithfully):
    """Average only in every second step in the captured arm."""

    def average(self, averages: list[Tensor], parameters: list[Tensor], built: Built) -> None:
        for average, parameter in zip(averages, parameters, strict=True):
            average.lerp_(parameter, self.share * (built.more["count"] % 2))


class AveragesFromTheSecond(AveragesFaithfully):
    """Skip the first update of the average in the captured arm, of which little remains at the end."""

    share, falls = 0.5, 1.0

    def average(self, averages: list[Tensor], parameters: list[Tensor], built: Built) -> None:
        for average, parameter in zip(averages, parameters, strict=True):
            average.lerp_(parameter, self.share * (built.more["count"] > 0))


WRONG = (ForgetsAnAverageOfItsOptimizer, ForgetsItsAverage, DividesByItsRows, LeavesOneOut, CountsTwice)
ROUNDED = (RoundsOtherwise,)
UNEXPLAINED = (AveragesLate, AveragesEverySecond, AveragesFromTheSecond)
AVERAGED = (AveragesFaithfully, AveragesAllAtOnce, AveragesSlowly, RoundsCoarsely)

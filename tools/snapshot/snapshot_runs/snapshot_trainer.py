"""A small trainer that `snapshot.py` drills in each commit. The option `ends` of an arm can make its run fail."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from harness.contract.schema import Arm, Workload
from harness.system.made_step import MadeStepSystem
from harness.system.ranks import world_size
from harness.system.step_function import StepFunction

FEATURES = 6
LAST_CALL = 3  # number (from 1) of the step's call in which the run ends as the arm's option `ends` requires


class Training:
    """A regression with momentum. torch.optim is not used, because its import takes a second in each worker."""

    def __init__(self, seed: int, rows: int, asked: Mapping[str, Any]) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(FEATURES, 12), nn.Tanh(), nn.Linear(12, 1))
        self.parameters: dict[str, Any] = dict(self.model.named_parameters())
        self.state = {name: torch.zeros_like(tensor) for name, tensor in self.parameters.items()}
        self.state["updates"] = torch.zeros(())
        self.seed, self.rows, self.calls = seed, rows, 0
        self.parts, self.rate, self.ends = (asked.get(name, default) for name, default in OPTIONS.items())

    def batch(self, index: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(1000 * self.seed + index)
        x = torch.randn(self.rows, FEATURES, generator=generator)
        x = x.view(self.parts, -1, FEATURES) if self.parts > 1 else x
        return {"x": x, "y": x.sum(dim=-1, keepdim=True)}

    def step(self, batch: dict[str, Tensor]) -> Tensor:
        self.model.zero_grad()
        x, y = batch["x"], batch["y"]
        losses = [self.backward(*part) for part in (zip(x, y, strict=True) if self.parts > 1 else [(x, y)])]
        self.come_to_an_end(losses[0])
        self.update()
        return torch.stack(losses).sum()

    def backward(self, x: Tensor, y: Tensor) -> Tensor:
        loss: Tensor = nn.functional.mse_loss(self.model(x), y) / self.parts
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    @torch.no_grad()
    def update(self) -> None:
        for name, parameter in self.parameters.items():
            if world_size() > 1:
                torch.distributed.all_reduce(parameter.grad)
                parameter.grad.div_(world_size())
            self.state[name].mul_(0.9).add_(parameter.grad)
            parameter.sub_(self.rate * self.state[name])
        self.state["updates"].add_(1)

    def come_to_an_end(self, loss: Tensor) -> None:
        self.calls += 1
        match self.ends if self.calls == LAST_CALL or self.ends == "reads" else "":
            case "reads":
                loss.item()  # a capture cannot contain this read of a device value
            case "raises":
                raise ValueError("this arm is broken")
            case "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            case "leaves":
                os._exit(0)

    @torch.no_grad()
    def evaluate(self) -> float:
        return float(self.model(torch.ones(4, FEATURES)).mean())

    def save(self, path: Path) -> None:
        torch.save([self.parameters, self.state], path)

    @torch.no_grad()
    def load(self, path: Path) -> None:
        for own, saved in zip([self.parameters, self.state], torch.load(path), strict=True):
            for name, tensor in own.items():
                tensor.copy_(saved[name])


OPTIONS: Mapping[str, Any] = {"micro_batches": 1, "rate": 0.05, "ends": ""}


class Trainer(MadeStepSystem):
    """The training above as a system. Options of its arms choose how a run ends."""

    name = "snapshot"
    arm_options = {  # noqa: RUF012 - as in adapters
        **MadeStepSystem.arm_options,
        **{name: type(default) for name, default in OPTIONS.items()},
        "seed": int,
    }

    def build(self, workload: Workload, arm: Arm) -> StepFunction:
        asked = arm.settings()
        own = Training(100 * workload.seed + int(asked.get("seed", 0)), workload.batch_size, asked)
        return StepFunction(
            own.step,
            own.batch,
            lambda: own.parameters,
            lambda: own.state,
            own.evaluate,
            own.save,
            own.load,
        )

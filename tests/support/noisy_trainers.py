"""Trainers whose steps do not repeat in bits: on a GPU by cuDNN and atomic additions, elsewhere by drawn noise.

All have averaged weights and a learning rate that warms up. Their noise must not hide the `faults`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from harness.contract.schema import Arm, Workload
from harness.system.protocol import Expectation
from harness.system.step_function import PlantedFault, StepFunction, StepFunctionSystem

RATE, WARM_UP, DECAY, ROWS = 0.02, 4, 0.9, 16
BEYOND = {"trajectory_match": Expectation("FAIL", "beyond_noise")}
Batch = dict[str, Tensor]


entropy: Callable[[int], bytes] = os.urandom  # a test may give bytes that it repeats: the rule errs once in 252 runs


def drawn_like(tensor: Tensor) -> Tensor:
    """Return normal numbers from the operating system's own entropy, which no seed repeats."""
    seed = int.from_bytes(entropy(16), "little")
    numbers = np.random.default_rng(seed).standard_normal(tuple(tensor.shape))
    return torch.from_numpy(numbers).to(tensor)


@dataclass
class NoisyStep:
    """One step of a regression under AdamW, with averaged weights; each fault changes one field."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    average: list[Tensor]
    noise: float  # drawn, of each gradient's elements
    scale: float  # of the batch's rate
    frozen_rate: float | None = None
    rows: int = ROWS
    is_stale: bool = False
    share: float = 1 - DECAY  # of the new weights in the average
    last: Batch | None = None

    def __call__(self, batch: Batch) -> Tensor:
        trained = self.last if self.is_stale and self.last is not None else batch
        self.last = batch if self.is_stale else None
        self.optimizer.zero_grad()
        found = self.model(trained["x"][: self.rows])
        loss = nn.functional.mse_loss(found, trained["y"][: self.rows])
        loss.backward()  # type: ignore[no-untyped-call]
        rate = batch["rate"] if self.frozen_rate is None else torch.full_like(batch["rate"], self.frozen_rate)
        with torch.no_grad():
            for parameter in self.model.parameters() if self.noise else ():
                gradient: Any = parameter.grad
                gradient.mul_(1 + self.noise * drawn_like(gradient))
            self.optimizer.param_groups[0]["lr"].copy_(rate * self.scale)
            self.optimizer.step()
            for average, parameter in zip(self.average, self.model.parameters(), strict=True):
                average.lerp_(parameter, self.share)
        return loss.detach()


def fault(summary: str, **changes: Any) -> PlantedFault:
    """Return a fault that changes fields of the step."""

    def plant(right: StepFunction) -> StepFunction:
        step: Any = right.step
        given = {name: value(step) if callable(value) else value for name, value in changes.items()}
        return replace(right, step=replace(step, **given))

    return PlantedFault(summary, plant, BEYOND)


class Noisy(StepFunctionSystem):
    """Change each element of a gradient by about 1e-7 of it, as another order of its sum does."""

    name = "noisy"
    noise = 1e-7
    device = "cpu"
    arm_options = {"learning_rate": float, "fused": [True, False]}  # noqa: RUF012
    faults = {  # noqa: RUF012
        "frozen_rate": fault("the rate stays what it is in the first step", frozen_rate=RATE / WARM_UP),
        "half_batch": fault("half of the rows are trained on", rows=ROWS // 2),
        "unsaid_stale_batch": fault("each step trains on the batch before its own, and shows its own", is_stale=True),
        "still_average": fault("the averaged weights are never updated", share=0.0),
        "noisier": fault(
            "gradients have noise of 1e-4, or a thousand times theirs", noise=lambda step: step.noise * 1e3 or 1e-4
        ),
    }

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 1))

    def rows(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return inputs [rows, ...] and targets [rows, 1]."""
        x = torch.randn(ROWS, 6, generator=generator)
        return x, x.sin().sum(dim=1, keepdim=True)

    def build(self, workload: Workload, arm: Arm) -> StepFunction:
        torch.manual_seed(workload.seed)
        model = self.model().to(self.device)
        rate = torch.zeros((), device=self.device)
        on_gpu = self.device == "cuda"
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, capturable=on_gpu)
        average = [parameter.detach().clone() for parameter in model.parameters()]
        scale = float(arm.settings().get("learning_rate", 1.0))
        step = NoisyStep(model, optimizer, average, 0.0 if on_gpu else self.noise, scale)

        def batch(index: int) -> Batch:
            x, y = self.rows(torch.Generator().manual_seed(1000 * workload.seed + index))
            warm = torch.tensor(RATE * min(1.0, (index + 1) / WARM_UP))
            return {name: each.to(self.device) for name, each in (("x", x), ("y", y), ("rate", warm))}

        def state() -> dict[str, Tensor]:
            return {f"average.{index}": tensor for index, tensor in enumerate(average)}

        return StepFunction(step, batch, model, state=state)


class Noisier(Noisy):
    """Change each element by about 1e-3 of it, as when sums cancel."""

    noise = 1e-3


class Drowned(Noisy):
    """Add noise of ten times the gradient, so that the training follows the noise."""

    noise = 10.0


class Quiet(Noisy):
    """Add no noise, so that every run repeats in bits."""

    noise = 0.0


class OnGpu(Noisy):
    """Use the GPU's own noise if there is a GPU, and drawn noise elsewhere."""

    @property
    def device(self) -> str:  # type: ignore[override]
        return "cuda" if torch.cuda.is_available() else "cpu"


class Convolutional(OnGpu):
    """Use convolutions, batch normalization and bilinear upsampling, whose backward passes add atomically."""

    name = "convolutional"

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Upsample(scale_factor=2.5, mode="bilinear"),
            nn.Conv2d(32, 32, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(32, 1),
        )

    def rows(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(ROWS, 3, 24, 24, generator=generator)
        return x, 10 * x.mean(dim=(1, 2, 3)).unsqueeze(1) + x[:, :1, 0, 0]


class Table(nn.Module):
    """A table whose rows are gathered and added up by segments, with `index_add` forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(64, 32))
        self.out = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Return the sums [rows, 1] for indices x [rows, N]."""
        gathered = torch.index_select(self.table, 0, x.flatten())
        segments = torch.arange(len(x), device=x.device).repeat_interleave(x.shape[1])
        summed = torch.zeros(len(x), gathered.shape[1], device=x.device).index_add(0, segments, gathered)
        return self.out(summed / x.shape[1] ** 0.5)  # type: ignore[no-any-return]


class Scattering(OnGpu):
    """Train a table with `index_add`, which adds atomically."""

    name = "scattering"

    def model(self) -> nn.Module:
        return Table()

    def rows(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randint(0, 64, (ROWS, 256), generator=generator)
        return x, x.double().mean(dim=1, keepdim=True).sub(31.5).div(2).float()

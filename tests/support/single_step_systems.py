"""Linear regression by hand in float32, and by torch in a higher precision from any state: for the step_match probe."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from harness.system.protocol import Arm, CaptureRecord, OptimizerState, SystemDescription, Workload
from harness.system.replay.traced import TracedStep

RATE, BETAS, EPS = 0.1, (0.9, 0.999), 1e-8
FEATURES = 6


def batch(index: int) -> tuple[Tensor, Tensor]:
    """Return inputs [4, FEATURES] and their targets [4], float32."""
    drawn = torch.randn(4, FEATURES + 1, generator=torch.Generator().manual_seed(index))
    return drawn[:, :-1], drawn[:, -1]


class _Run:
    """Hold the weights of the regression and the results of the last step."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.weights = torch.linspace(-1, 1, FEATURES, dtype=dtype)
        self.grad, self.index = torch.zeros_like(self.weights), 0

    def evaluate(self, index: int, parameters: Mapping[str, Tensor]) -> Tensor:
        self.index = index
        self.weights.copy_(parameters["w"])
        inputs, targets = (each.to(self.weights.dtype) for each in batch(index))
        errors = inputs @ self.weights - targets
        self.grad = 2 * inputs.t() @ errors / len(errors)
        return errors.square().mean()

    def facts(self) -> Mapping[str, str]:
        return {"device": "cpu"}

    def inputs(self) -> Mapping[str, Tensor]:
        return {"tokens": batch(self.index)[0]}

    def parameters(self) -> Mapping[str, Tensor]:
        return {"w": self.weights}

    def frozen(self) -> Mapping[str, Tensor]:
        return {}

    def gradients(self) -> Mapping[str, Tensor]:
        return {"w": self.grad}

    def gradient_norms(self) -> Mapping[str, Tensor]:
        return {"before": self.grad.norm().reshape(1), "max_norm": torch.tensor(1e9)}

    def gradient_groups(self) -> Mapping[str, list[str]]:
        return {"all": ["w"]}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class TrainedRun(_Run):
    """Train with Adam written by hand. changes: by step, a change made to the run before the step."""

    changes: Mapping[int, str] = {}

    def __init__(self) -> None:
        super().__init__(torch.float32)
        self.first, self.second = torch.zeros_like(self.weights), torch.zeros_like(self.weights)

    def step(self, index: int) -> Tensor:
        if index in self.changes:
            getattr(self, self.changes[index])()
        loss = self.evaluate(index, self.parameters())
        self.first = BETAS[0] * self.first + (1 - BETAS[0]) * self.grad
        self.second = BETAS[1] * self.second + (1 - BETAS[1]) * self.grad**2
        first, second = (
            each / (1 - beta ** (index + 1)) for each, beta in zip((self.first, self.second), BETAS, strict=True)
        )
        self.weights -= RATE * first / (second.sqrt() + EPS)
        return loss

    def reset(self) -> None:
        self.first = torch.zeros_like(self.first)

    def nudge(self) -> None:
        self.weights += 1e-3

    def moments(self) -> Mapping[str, Mapping[str, Tensor]]:
        return {"exp_avg": {"w": self.first}, "exp_avg_sq": {"w": self.second}}


class CapturedRun(TrainedRun):
    """Record the first step and replay it with each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.read = [torch.zeros_like(each) for each in (*batch(0), torch.zeros(2))]
        self.recorded: TracedStep | None = None

    def step(self, index: int) -> Tensor:
        self.index = index
        corrections = torch.tensor([1 - beta ** (index + 1) for beta in BETAS])
        for kept, given in zip(self.read, (*batch(index), corrections), strict=True):
            kept.copy_(given)
        if self.recorded is None:
            self.recorded = TracedStep(self.trained, self.changed)
            self.recorded.record()
        self.steps += 1
        return self.recorded.replay()

    def changed(self) -> dict[str, Tensor]:
        return {"w": self.weights, "grad": self.grad, "first": self.first, "second": self.second}

    def trained(self) -> Tensor:
        inputs, targets, corrections = self.read
        errors = inputs @ self.weights - targets
        self.grad.copy_(2 * inputs.t() @ errors / len(errors))
        self.first.mul_(BETAS[0]).add_(self.grad, alpha=1 - BETAS[0])
        self.second.mul_(BETAS[1]).addcmul_(self.grad, self.grad, value=1 - BETAS[1])
        self.weights.sub_(RATE * (self.first / corrections[0]) / ((self.second / corrections[1]).sqrt() + EPS))
        return errors.square().mean()

    def capture_record(self) -> CaptureRecord:
        operations = self.recorded.operations if self.recorded is not None else 0
        return CaptureRecord("traced", True, True, None, 1, 0, self.steps, 0, recorded_operations=operations)


class ReferenceRun(_Run):
    """Apply torch's AdamW to a given state; it never trains by itself."""

    def step(self, index: int) -> Tensor:
        raise NotImplementedError

    def update(self, index: int, before: OptimizerState, gradients: Mapping[str, Tensor]) -> OptimizerState:
        weights = before.parameters["w"].to(self.weights.dtype, copy=True).requires_grad_()
        weights.grad = gradients["w"].to(weights.dtype)
        optimizer = torch.optim.AdamW([weights], lr=RATE, betas=BETAS, eps=EPS, weight_decay=0.0)
        moments = {
            "exp_avg": before.exp_avg["w"].to(weights.dtype, copy=True),
            "exp_avg_sq": before.exp_avg_sq["w"].to(weights.dtype, copy=True),
        }
        optimizer.state[weights] = {"step": torch.tensor(float(index)), **moments}
        optimizer.step()
        return OptimizerState({"w": weights.detach()}, *({"w": each} for each in moments.values()))


def _described(name: str) -> SystemDescription:
    offered = frozenset({"parameters", "inputs", "gradients", "gradient_norms", "moments", "single_steps", "capture"})
    return SystemDescription(
        name, "a linear regression", (), {"dtype": str}, {}, offered, captures=frozenset({"none", "step"})
    )


class Trained:
    def describe(self) -> SystemDescription:
        return _described("trained")

    def open(self, workload: Workload, arm: Arm, **_: Any) -> TrainedRun:
        return TrainedRun()


class Captured(Trained):
    def open(self, workload: Workload, arm: Arm, **_: Any) -> CapturedRun:
        return CapturedRun()


class Reference:
    def describe(self) -> SystemDescription:
        return _described("reference")

    def open(self, workload: Workload, arm: Arm, **_: Any) -> ReferenceRun:
        return ReferenceRun(getattr(torch, str(arm.settings()["dtype"])))

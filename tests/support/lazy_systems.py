"""Small trainers whose optimizer creates state from the first step's gradients; each differs from `Lazy` in one way."""

from __future__ import annotations

from typing import Any

import torch
from step_function_systems import Regression
from torch import Tensor, nn

from harness.contract.schema import Arm, Workload
from harness.system.step_function import StepFunction
from harness.system.step_function_run import StepFunctionRun


class FromTheFirst(torch.optim.Optimizer):
    """Divide an update by the root of a running mean of squares, which starts with the first step's squares."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                squares = parameter.grad.square() + 1e-8
                mean = self.state[parameter].setdefault("mean", squares)
                if mean is not squares:
                    mean.lerp_(squares, 0.1)
                parameter.sub_(group["lr"] * parameter.grad / mean.sqrt())


class Lazy(Regression):
    """Train with `FromTheFirst`."""

    name = "lazy"

    def optimizer(self, model: nn.Module, rate: Tensor) -> Any:
        self.made = FromTheFirst(model.parameters(), float(rate))
        return self.made


class LazyWithFrozenRate(Lazy):
    """Halve the learning rate, a Python number, after each step: a replay continues with the rate at its capture."""

    name = "lazy, with a frozen rate"

    def build(self, workload: Workload, arm: Arm) -> Any:
        step, batch, parameters = super().build(workload, arm)
        group = self.made.param_groups[0]

        def after() -> None:
            group["lr"] *= 0.5

        return StepFunction(step=step, batch=batch, parameters=parameters, after=after)


class LazyWithLostUpdate(Lazy):
    """Undo the update of one step of the captured arm, the first replay, which follows one plain step."""

    name = "lazy, with a lost update"
    lost = 2

    def build(self, workload: Workload, arm: Arm) -> Any:
        step, batch, parameters = super().build(workload, arm)
        made, before = 0, dict[str, Tensor]()

        def after() -> None:
            nonlocal made
            made += 1
            for name, parameter in parameters().items():
                if arm.capture == "step" and made == self.lost:
                    parameter.data.copy_(before.get(name, torch.zeros_like(parameter)))
                before[name] = parameter.detach().clone()

        return StepFunction(step=step, batch=batch, parameters=parameters, after=after)


class LazyWithOtherWarmStep(LazyWithLostUpdate):
    """Undo the update of the plain step, although no replay differs."""

    name = "lazy, with another warm step"
    lost = 1


class LazyAndSlow(Lazy):
    """Run two more plain steps than the arm declares."""

    name = "lazy and slow"

    def open(self, workload: Workload, arm: Arm, **given: Any) -> StepFunctionRun:
        more = 2 if arm.capture == "step" else 0
        return super().open(workload, arm.model_copy(update={"warm_steps": arm.warm_steps + more}), **given)


class Counted(FromTheFirst):
    """Count steps in Python and keep each parameter's last norm; nothing reads either, as in CAME."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        super().step()
        for parameter, state in self.state.items():
            state["step"] = state.get("step", 0) + 1
            state["size"] = parameter.norm()


class LazyAndCounted(Lazy):
    """Train with `Counted`."""

    name = "lazy and counted"

    def optimizer(self, model: nn.Module, rate: Tensor) -> Any:
        self.made = Counted(model.parameters(), float(rate))
        return self.made

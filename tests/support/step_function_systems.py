"""Small systems with the step-function adapter, for tests of probes; each differs from the first in one way."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from harness.contract.schema import Arm, Workload
from harness.system.step_function import StepFunction, StepFunctionSystem


class Regression(StepFunctionSystem):
    """Two layers that learn a fixed linear map from noise; about 100 parameters."""

    name = "regression"
    layers = 2

    def build(self, workload: Workload, arm: Arm) -> tuple[Any, Any, Any]:
        device = workload.needs.device or "cpu"
        torch.manual_seed(workload.seed)
        model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1)).to(device)
        rate = torch.tensor(float(arm.settings().get("learning_rate", 1e-2)), device=device)
        optimizer = self.optimizer(model, rate)

        def step(batch: dict[str, Tensor]) -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(batch["x"]), batch["y"])
            loss.backward()  # type: ignore[no-untyped-call]
            self.before_update(loss, model)
            optimizer.step()
            return loss.detach()

        def batch(index: int) -> dict[str, Tensor]:
            generator = torch.Generator().manual_seed(1000 * workload.seed + index)
            lengths = workload.seq_len if isinstance(workload.seq_len, list) else [workload.seq_len]
            rows = workload.batch_size * lengths[index % len(lengths)]
            x = torch.randn(rows, 6, generator=generator)
            return {"x": x, "y": x.sum(dim=1, keepdim=True)}

        return step, batch, lambda: dict(model.named_parameters())

    def optimizer(self, model: nn.Module, rate: Tensor) -> Any:
        on_cuda = rate.is_cuda  # torch refuses `capturable` on a CPU, and to capture without it
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, fused=True, capturable=on_cuda)
        optimizer._warned_capturable_if_run_uncaptured = True  # the plain arm runs the same optimizer
        return optimizer

    def before_update(self, loss: Tensor, model: nn.Module) -> None:
        """Do nothing; subclasses wait for the device here."""


class Descent:
    """Gradient descent without `torch.optim`, whose first use imports torch._dynamo: half of a worker's cost."""

    def __init__(self, model: nn.Module, rate: Tensor) -> None:
        self._parameters, self._rate = list(model.parameters()), rate

    def zero_grad(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def step(self) -> None:
        with torch.no_grad():
            for parameter in self._parameters:
                if parameter.grad is not None:
                    parameter.sub_(self._rate * parameter.grad)


class Descending(Regression):
    """Train by `Descent`, for workers that are started in order to die."""

    name = "descending"

    def optimizer(self, model: nn.Module, rate: Tensor) -> Any:
        return Descent(model, rate)


class Waits(Regression):
    """Read the loss and each gradient's norm on the host: five syncs in each step."""

    name = "waits"

    def before_update(self, loss: Tensor, model: nn.Module) -> None:
        loss.item()  # the line that the detectors must name: WAITS_LINE
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.norm().item()


class Chooses(Regression):
    """Select by a mask, so that a shape depends on values: one sync in each step."""

    name = "chooses"

    def before_update(self, loss: Tensor, model: nn.Module) -> None:
        weight = next(model.parameters())
        weight.detach()[weight.detach() > 0].sum()


class DividesByWhatItReads(Regression):
    """Divide by a number read on the host minus one, as NAdam's first step does: one sync in each step."""

    name = "divides by what it reads"

    def before_update(self, loss: Tensor, model: nn.Module) -> None:
        1 / (1 - (loss.detach() * 0 + 3).item())


@torch.library.custom_op("harness_tests::negated", mutates_args=())
def negated(value: Tensor) -> Tensor:
    """Apply a custom operator that fake tensors do not know."""
    return -value


class OwnOperator(Regression):
    """Call a custom operator, which does not wait for the device."""

    name = "own operator"

    def before_update(self, loss: Tensor, model: nn.Module) -> None:
        negated(loss.detach())


class Rising(torch.optim.Optimizer):
    """An optimizer whose rate starts at 0.5 and rises, and whose momentum starts at 1."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["rate"] = torch.full((), 0.5, device=parameter.device)
                    state["momentum"] = torch.ones_like(parameter)
                state["momentum"].mul_(0.5).add_(parameter.grad)
                parameter.data.addcmul_(state["momentum"], state["rate"] / -100)
                state["rate"].add_(0.1)


class OwnOptimizer(Regression):
    """Use an optimizer whose state, created in the first step, does not start at zero."""

    name = "own optimizer"

    def optimizer(self, model: nn.Module, rate: Tensor) -> Any:
        return Rising(model.parameters())


class Ending(Regression):
    """Use a schedule that raises after a number of updates, in the arms that it names."""

    updates = 97
    arms: tuple[str, ...] = ("step", "none")

    def build(self, workload: Workload, arm: Arm) -> Any:
        made, ends = [0], arm.capture in self.arms

        def schedule() -> None:
            made[0] += 1
            if ends and made[0] > self.updates:
                raise ValueError(f"no rate for update {made[0]}")

        return StepFunction(*super().build(workload, arm), after=schedule)


class EndingAlone(Ending):
    arms = ("step",)


class EndingEarly(Ending):
    updates = 25


class EndingAtOnce(Ending):
    updates = 2

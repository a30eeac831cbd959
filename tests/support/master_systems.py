"""Trainers whose optimizers update copies of the trained parameters: correctly, or those of another model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from harness.contract.schema import Arm, Workload
from harness.system.step_function import StepFunctionSystem


def listed(model: nn.Module) -> list[Tensor]:
    return [each.detach().float().requires_grad_() for each in model.parameters()]


def flat(model: nn.Module) -> list[Tensor]:
    """Return one tensor for all parameters, as ZeRO has it."""
    return [torch.cat([each.detach().float().flatten() for each in model.parameters()]).requires_grad_()]


def same_type(model: nn.Module) -> list[Tensor]:
    """Return master weights in the parameters' data type, as an optimizer with weights in host memory has them."""
    return [each.detach().clone().requires_grad_() for each in model.parameters()]


class Mastered(StepFunctionSystem):
    """Train a bfloat16 model with master weights that only the optimizer holds."""

    made: Callable[[nn.Module], list[Tensor]]

    def build(self, workload: Workload, arm: Arm) -> tuple[Any, Any, Any]:
        torch.manual_seed(workload.seed)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).bfloat16()
        parameters = list(model.parameters())
        optimizer = torch.optim.AdamW(type(self).made(model), lr=torch.tensor(1e-2), fused=True)
        masters = optimizer.param_groups[0]["params"]
        sizes = [each.numel() for each in parameters] if len(masters) == 1 else None
        del masters  # the optimizer alone holds them

        def step(batch: dict[str, Tensor]) -> Tensor:
            masters: list[Tensor] = optimizer.param_groups[0]["params"]
            model.zero_grad()
            loss: Tensor = (model(batch["x"]).float() - batch["y"]).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            gradients = [each.grad for each in parameters if each.grad is not None]
            if sizes is not None:
                gradients = [torch.cat([each.flatten() for each in gradients])]
            for master, gradient in zip(masters, gradients, strict=True):
                master.grad = gradient.to(master.dtype)
            optimizer.step()
            with torch.no_grad():
                values = masters if sizes is None else torch.split(masters[0], sizes)
                for parameter, value in zip(parameters, values, strict=True):
                    parameter.copy_(value.view_as(parameter))
            return loss.detach()

        def batch(index: int) -> dict[str, Tensor]:
            x = torch.randn(16, 6, generator=torch.Generator().manual_seed(index))
            return {"x": x.bfloat16(), "y": x.sum(dim=1, keepdim=True)}

        return step, batch, model


class Listed(Mastered):
    made = staticmethod(listed)


class Flat(Mastered):
    made = staticmethod(flat)


class SameType(Mastered):
    made = staticmethod(same_type)


class OfAnother(Mastered):
    """Use an optimizer that was made for another model."""

    made = staticmethod(lambda model: [*listed(model), torch.zeros(3, requires_grad=True)])


class OfACopy(StepFunctionSystem):
    """Train a copy of the model whose parameters it names."""

    def build(self, workload: Workload, arm: Arm) -> tuple[Any, Any, Any]:
        torch.manual_seed(workload.seed)
        model = nn.Linear(6, 1)
        trained = copy.deepcopy(model)
        optimizer = torch.optim.SGD(trained.parameters(), lr=1e-2)

        def step(batch: dict[str, Tensor]) -> Tensor:
            trained.zero_grad()
            loss: Tensor = trained(batch["x"]).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            return loss.detach()

        return step, lambda index: {"x": torch.full((4, 6), 1.0 + index)}, model

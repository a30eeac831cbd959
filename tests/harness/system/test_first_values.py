"""State that an optimizer makes in its first step: known by what it was made of, so that a capture can begin before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from step_function_systems import Rising
from torch import Tensor, nn

from harness.contract.schema import Arm, Workload
from harness.system.replay.ledger import FirstValues
from harness.system.step_function import StepFunctionSystem

GRADIENT = torch.arange(6.0).view(2, 3)
MADE_OF_NUMBERS: dict[str, tuple[Callable[[], Tensor], Any]] = {
    "zeros_like": (lambda: torch.zeros_like(GRADIENT), [[0.0] * 3] * 2),
    "ones_like": (lambda: torch.ones_like(GRADIENT), [[1.0] * 3] * 2),
    "full_like": (lambda: torch.full_like(GRADIENT, 0.5), [[0.5] * 3] * 2),
    "zeros": (lambda: torch.zeros(2), [0.0] * 2),
    "ones": (lambda: torch.ones((), dtype=torch.float64), 1.0),
    "full": (lambda: torch.full((2,), -3.0), [-3.0] * 2),
    "new_zeros": (lambda: GRADIENT.new_zeros(2), [0.0] * 2),
    "new_ones": (lambda: GRADIENT.new_ones(2), [1.0] * 2),
    "new_full": (lambda: GRADIENT.new_full((2,), 7.0), [7.0] * 2),
    "empty, filled": (lambda: torch.empty(2).fill_(4.0), [4.0] * 2),
    "empty, zeroed": (lambda: torch.empty_like(GRADIENT).zero_(), [[0.0] * 3] * 2),
    "a number": (lambda: torch.tensor(2.5), 2.5),
    "numbers": (lambda: torch.tensor([1.0, 2.0]), [1.0, 2.0]),
    "a copy": (lambda: torch.ones(2).clone().detach(), [1.0] * 2),
    "another type": (lambda: torch.full((2,), 3).to(torch.float64), [3.0] * 2),
    "one for all": (lambda: torch.zeros(1).expand(1).unsqueeze(0), [[0.0]]),
}


@pytest.mark.parametrize("name", MADE_OF_NUMBERS)
def test_a_tensor_created_from_constants_is_restored_to_its_first_value(name: str) -> None:
    make, expected = MADE_OF_NUMBERS[name]
    with FirstValues() as seen:
        tensor = make()
        tensor.add_(1)
    tensor.mul_(3)
    assert seen.put_back(tensor)
    assert tensor.tolist() == expected


OTHERS: dict[str, Callable[[], Tensor]] = {
    "of the gradient": GRADIENT.clone,
    "drawn": lambda: torch.rand(2),
    "never filled": lambda: torch.empty(2),
    "filled by the gradient": lambda: torch.empty(()).fill_(GRADIENT.sum()),
    "a copy of what was changed": lambda: torch.zeros(2).add_(GRADIENT[0, :2]).clone(),
    "a copy of what a list was changed with": lambda: changed_in_a_list().clone(),
}


def changed_in_a_list() -> Tensor:
    tensor = torch.zeros(2)
    torch._foreach_add_([tensor], 1.0)
    return tensor


@pytest.mark.parametrize("name", OTHERS)
def test_a_tensor_created_by_other_operators_has_no_known_first_value(name: str) -> None:
    with FirstValues() as seen:
        tensor = OTHERS[name]()
    before = tensor.tolist()
    assert not seen.put_back(tensor)
    assert tensor.tolist() == before


def test_a_tensor_filled_in_later_steps_keeps_its_first_value() -> None:
    with FirstValues() as seen:
        tensor = torch.empty(2).fill_(1.0)
        tensor.fill_(5.0)
    assert seen.put_back(tensor)
    assert tensor.tolist() == [1.0] * 2


class Copying(Rising):
    """Its state begins as the first gradient."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                average = self.state[parameter].setdefault("average", parameter.grad.clone())
                average.lerp_(parameter.grad, 0.1)
                parameter.data.add_(average, alpha=-0.01)


class Learns(StepFunctionSystem):
    def __init__(self, optimizer: Callable[[Any], torch.optim.Optimizer]) -> None:
        self.optimizer = optimizer

    def build(self, workload: Workload, arm: Arm) -> tuple[Any, Any, Any]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 1, bias=False))
        optimizer = self.optimizer(list(model.parameters()))

        def step(batch: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            return loss.detach()

        return step, lambda index: torch.randn(8, 4, generator=torch.Generator().manual_seed(index)), model


def trained(optimizer: Callable[[Any], torch.optim.Optimizer], capture: str) -> tuple[list[float], str | None]:
    workload = Workload(model="any", batch_size=8, seq_len=4, steps=6)
    with Learns(optimizer).open(workload, Arm.model_validate({"capture": capture})) as run:
        return [float(run.step(index)) for index in range(6)], run.capture_record().failure


@pytest.mark.parametrize("kind", [torch.optim.Muon, torch.optim.Rprop, torch.optim.AdamW, Rising])
def test_a_captured_optimizer_starts_like_the_plain_optimizer(kind: Any) -> None:
    settings = {"fused": True} if kind is torch.optim.AdamW else {}
    plain, captured = (trained(lambda given: kind(given, **settings), capture) for capture in ("none", "step"))
    assert captured == plain
    assert captured[1] is None
    assert len(set(plain[0])) == 6


def test_state_that_begins_as_a_gradient_is_refused_and_trains_on_uncaptured() -> None:
    losses, failure = trained(Copying, "step")
    assert failure is not None
    assert "Copying: a captured optimizer must have its state before the first step; found state 'average'" in failure
    assert losses == trained(Copying, "none")[0]


class Lazy(StepFunctionSystem):
    """Keeps what it makes in its first step in an attribute, and changes it in each."""

    def __init__(self, make: Callable[[nn.Module], Tensor]) -> None:
        self.make = make

    def build(self, workload: Workload, arm: Arm) -> tuple[Any, Any, Any]:
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        kept: dict[str, Tensor] = {}

        def step(batch: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if not kept:
                kept["average"] = self.make(model)
            average = kept["average"].lerp_(loss.detach(), 0.1)
            return loss.detach() + average.sum()

        return step, lambda index: torch.randn(8, 4, generator=torch.Generator().manual_seed(index)), model


def lazily(make: Callable[[nn.Module], Tensor], capture: str) -> tuple[list[float], str | None]:
    workload = Workload(model="any", batch_size=8, seq_len=4, steps=6)
    with Lazy(make).open(workload, Arm.model_validate({"capture": capture})) as run:
        return [float(run.step(index)) for index in range(6)], run.capture_record().failure


def test_an_attribute_created_from_constants_starts_a_capture_with_its_first_value() -> None:
    plain, captured = (lazily(lambda _: torch.full((2,), 3.0), capture) for capture in ("none", "step"))
    assert captured == plain
    assert captured[1] is None


def test_an_attribute_created_from_other_tensors_prevents_capture_and_trains_uncaptured() -> None:
    plain, captured = (
        lazily(lambda model: next(model.parameters()).detach().clone(), capture) for capture in ("none", "step")
    )
    assert captured[0] == plain[0]
    assert captured[1] is not None
    assert "kept.average: a captured step must have its state before the first step; found a tensor " in captured[1]


def scaled(capture: str) -> tuple[list[float], str | None]:
    class Scaled(Learns):
        def build(self, workload: Workload, arm: Arm) -> tuple[Any, Any, Any]:
            _, batch, model = super().build(workload, arm)
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
            scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)

            def step(batch: Tensor) -> Tensor:
                optimizer.zero_grad()
                loss: Tensor = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
                scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
                scaler.step(optimizer)
                scaler.update()
                return loss.detach() + scaler._scale  # type: ignore[operator]

            return step, batch, model

    workload = Workload(model="any", batch_size=8, seq_len=4, steps=6)
    with Scaled(torch.optim.SGD).open(workload, Arm.model_validate({"capture": capture})) as run:
        return [float(run.step(index)) for index in range(6)], run.capture_record().failure


def test_a_captured_gradient_scaler_starts_and_grows_like_the_plain_scaler() -> None:
    plain, captured = scaled("none"), scaled("step")
    assert captured == plain
    assert captured[1] is None
    assert plain[0][-1] > 2**12

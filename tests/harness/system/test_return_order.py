"""Check the message about values that a build function returns in a wrong order."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from harness.system.adapter_checks import AdapterError
from harness.system.built import StepFunction, as_step_function

TITLE = "a torch.nn.modules.linear.Linear"


def step(data: Any) -> Tensor:
    return torch.zeros(()).mul(data)


def batch(i: int) -> Tensor:
    return torch.ones(2).mul(i)


def state() -> dict[str, Tensor]:
    return {}


def named() -> dict[str, Tensor]:
    return dict(MODEL.named_parameters())


class Loader:
    """A loader of another library, which can only be iterated."""

    def __iter__(self) -> Any:
        return itertools.repeat([torch.ones(2)])


MODEL = nn.Linear(2, 1)
LOADER = DataLoader(TensorDataset(torch.ones(4, 2)), batch_size=2)
SHOWN: list[tuple[object, str]] = [
    (step, "the function `step(data: 'Any') -> 'Tensor'`"),
    (batch, "the function `batch(i: 'int') -> 'Tensor'`"),
    (state, "the function `state() -> 'dict[str, Tensor]'`"),
    (MODEL, TITLE),
    (LOADER, "a torch.utils.data.dataloader.DataLoader"),
]
RIGHT: dict[str, tuple[Any, ...]] = {
    "model": (step, batch, MODEL),
    "loader": (step, LOADER, MODEL),
    "state": (step, batch, MODEL, state),
    "function": (step, batch, named),
    "list": (step, batch, list(MODEL.parameters())),
    "dictionary": (step, LOADER, dict(MODEL.named_parameters())),
}


def _shown(value: object) -> str:
    return next((text for each, text in SHOWN if each is value), "")


def build() -> None:
    pass


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("made", [tuple, lambda values: StepFunction(*values)], ids=["tuple", "StepFunction"])
def test_every_wrong_order_is_named_with_the_right_one(name: str, made: Callable[[Any], object]) -> None:
    right = RIGHT[name]
    for order in itertools.permutations(right):
        # `step` and `batch` both take one argument, so their order is not checked before they are called
        if all(each is there or each in (step, batch) for each, there in zip(order, right, strict=True)):
            as_step_function(made(order), build)
        else:
            with pytest.raises(AdapterError) as caught:
                as_step_function(made(order), build)
            error = caught.value
            assert "in this order: a function `step(batch)`, a function `batch(index)` or a data loader" in error.rule
            parts = [_shown(each) for each in order]
            assert error.remedy == "return step, batch, model"
            at = [error.got.index(part) for part in parts if part]
            assert at == sorted(at), error.got


WRONG = [None, 5, "text", 0.5, {"x": torch.ones(2)}, lambda: None]


@pytest.mark.parametrize(("place", "role"), [*enumerate(("step", "batch", "parameters"))])
def test_a_wrong_value_is_named_with_its_role_and_not_as_a_wrong_order(place: int, role: str) -> None:
    for wrong in WRONG:
        given: list[Any] = [step, batch, MODEL]
        given[place] = wrong
        if role == "parameters" and (isinstance(wrong, dict) or getattr(wrong, "__name__", "") == "<lambda>"):
            as_step_function(given, build)  # tensors by name, or a function without arguments, are allowed there
            continue
        with pytest.raises(AdapterError, match=role) as caught:
            as_step_function(given, build)
        assert "in this order" not in str(caught.value)
        assert "def " not in caught.value.got


def test_a_loader_in_place_of_the_model_is_named_even_if_it_never_ends() -> None:
    with pytest.raises(AdapterError, match="must be modules and tensors") as caught:
        as_step_function((step, MODEL, Loader()), build)
    assert caught.value.remedy == "return the trained model: `return step, batch, model`"


def test_a_module_may_be_the_step() -> None:
    class Step(nn.Module):
        def forward(self, batch: Tensor) -> Tensor:
            return batch

    module = Step()
    assert as_step_function((module, batch, [*MODEL.parameters()]), build).step is module


def test_a_function_of_another_name_is_quoted_by_its_own_name() -> None:
    def weights(model: nn.Module) -> None:
        """Take an argument that no caller gives."""

    with pytest.raises(AdapterError) as caught:
        as_step_function((step, batch, weights), build)
    assert caught.value.got == "`def weights(model: 'nn.Module') -> 'None'`"

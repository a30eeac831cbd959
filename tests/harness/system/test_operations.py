"""Recorded operations: repeated on the same tensors, results made anew, no value of the step given to the host."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import TensorWeakRef

from harness.system.replay.operations import Operations, record


def repeated(recorded: Operations, times: int) -> list[float]:
    return [float(recorded()[0]) for _ in range(times)]


def test_a_repeated_recording_reads_and_changes_the_original_tensors() -> None:
    weight = torch.ones(3)

    def double() -> list[Tensor]:
        return [weight.mul_(2.0).sum()]

    recorded = record(double)
    assert repeated(recorded, 2) == [12.0, 24.0]
    weight.fill_(1.0)
    assert repeated(recorded, 1) == [6.0]


def test_a_tensor_of_constants_is_created_again_in_each_repetition() -> None:
    def count() -> list[Tensor]:
        return [torch.tensor(5.0).add_(1.0)]

    assert repeated(record(count), 3) == [6.0, 6.0, 6.0]


def test_operations_may_have_lists_of_tensors_as_arguments_and_results() -> None:
    weights = [torch.ones(2), torch.ones(2)]

    def add() -> list[Tensor]:
        doubled = torch._foreach_mul(weights, 2.0)
        torch._foreach_add_(weights, doubled)
        return [torch.cat(weights).sum()]

    assert repeated(record(add), 2) == [36.0, 108.0]  # weights are threefold each time, the recording included


def test_operations_of_a_backward_pass_and_an_optimizer_are_recorded_and_repeated() -> None:
    layer, x = nn.Linear(1, 1, bias=False), torch.ones(1, 1)
    nn.init.zeros_(layer.weight)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.5)

    def step() -> list[Tensor]:
        optimizer.zero_grad()
        loss = (layer(x) - 4.0).square().sum()
        loss.backward()
        optimizer.step()
        return [loss.detach()]

    recorded = record(step)  # from 0 to the target, 4, in one step of this rate
    with torch.no_grad():
        layer.weight.fill_(2.0)
        assert repeated(recorded, 2) == [4.0, 0.0]


def _as_parameter(value: Tensor) -> Tensor:
    return nn.Parameter(value)


def _as_copied_module(value: Tensor) -> Tensor:
    layer = nn.Linear(3, 1, bias=False)
    layer.weight = nn.Parameter(value[None])
    return copy.deepcopy(layer).weight[0]


@pytest.mark.parametrize("wrapped", [_as_parameter, _as_copied_module, lambda value: _as_parameter(value[1:])])
def test_a_wrapped_parameter_is_recomputed_in_each_repetition(wrapped: Callable[[Tensor], Tensor]) -> None:
    """Such a parameter wraps a computed tensor, in a copied model or as a perturbation.

    No recorded operation creates the parameter.
    """
    weight = torch.ones(3)

    def double() -> list[Tensor]:
        inner = wrapped(weight * 2)
        with torch.no_grad():
            inner.add_(1.0)
        loss = (inner * inner).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return [loss.detach()]

    recorded = record(double)
    size = repeated(recorded, 1)[0] / 9
    weight.fill_(2.0)
    assert repeated(recorded, 2) == [25 * size] * 2


def test_a_step_that_passes_its_own_value_to_the_host_cannot_be_recorded() -> None:
    weight = torch.ones(3)
    with pytest.raises(
        RuntimeError, match=r"aten\._local_scalar_dense\.default makes the host read a value that the step computes"
    ):
        record(lambda: [weight * weight.sum().item()])


def test_tensors_of_constant_numbers_may_be_read_by_the_host_until_the_step_changes_them() -> None:
    weight = torch.ones(3)
    assert repeated(record(lambda: [weight.sum() * (torch.tensor(2.0) * 3.0).item()]), 1) == [18.0]
    with pytest.raises(RuntimeError, match="makes the host read a value that the step computes"):
        record(lambda: [weight.sum() * torch.tensor(2.0).add_(weight[0]).item()])


def test_values_computed_from_constants_may_be_read_by_the_host_and_random_values_may_not() -> None:
    """transformers, for example, reads whether the positions that it has just computed are consecutive."""
    weight = torch.ones(3)
    assert repeated(record(lambda: [weight.sum() * (torch.arange(4).diff() == 1).all().item()]), 1) == [3.0]
    drawn: list[Callable[[], Tensor]] = [
        lambda: torch.rand(()),
        lambda: torch.empty(()).uniform_(),
        lambda: torch.tensor(2.0).normal_(),
    ]
    for draw in drawn:
        with pytest.raises(RuntimeError, match="makes the host read a value that the step computes"):
            record(functools.partial(_times, weight, draw))


def _times(weight: Tensor, draw: Callable[[], Tensor]) -> list[Tensor]:
    return [weight.sum() * draw().item()]


class Living(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Before each operation, how many results of earlier ones are still there."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.results: list[TensorWeakRef] = []
        self.seen: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(sum(result() is not None for result in self.results))
        result = func(*args, **(kwargs or {}))
        self.results.append(TensorWeakRef(result))
        return result


def test_a_repetition_frees_each_result_after_its_last_use() -> None:
    """Otherwise a replay would keep all intermediate values of the step at the same time."""
    weight = torch.ones(3)
    recorded = record(lambda: [weight.exp().sin().cos().sum()])
    with Living() as living:
        recorded()
    assert living.seen == [0, 1, 1, 1]


def test_a_cast_whose_result_autocast_caches_is_repeated_in_each_replay() -> None:
    weight, x = torch.ones(2, 2, requires_grad=True), torch.ones(2, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        x @ weight  # keeps a converted weight until the block ends
        recorded = record(lambda: [(x @ weight).sum()])
        assert torch.is_autocast_cache_enabled()
    with torch.no_grad():
        weight.fill_(3.0)
        assert repeated(recorded, 1) == [24.0]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_repeated_recurrent_layer_saves_what_its_backward_kernel_needs(kind: Callable[..., nn.Module]) -> None:
    """On a CPU, torch's mode (with or without gradients) decides whether the kernel of an LSTM saves this."""
    torch.manual_seed(0)
    layer, x = kind(3, 4), torch.randn(5, 2, 3)

    def step() -> list[Tensor]:
        layer.zero_grad()
        loss = layer(x)[0].square().mean()
        loss.backward()
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.sub_(0.1 * parameter.grad)  # type: ignore[operator]
        return [loss.detach()]

    start = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    plain = [float(step()[0]) for _ in range(4)]
    layer.load_state_dict(start)
    recorded = record(step)
    layer.load_state_dict(start)
    assert repeated(recorded, 4) == plain
    assert len(set(plain)) == 4


def test_a_repetition_does_not_change_torchs_grad_mode() -> None:
    weight = torch.ones(2, requires_grad=True)
    recorded = record(lambda: [weight.mul(2.0).sum().detach()])
    for mode in (True, False):
        with torch.set_grad_enabled(mode):
            recorded()
            assert torch.is_grad_enabled() is mode


def test_gradients_of_a_weight_that_is_cast_once_are_added_as_in_the_plain_step() -> None:
    """Autocast casts the weight once for both products.

    Their gradients are added in bfloat16 and then cast back once.
    """
    torch.manual_seed(0)
    weight, x = torch.randn(8, 8, requires_grad=True), torch.randn(4, 8)

    def gradient() -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = (x @ weight).float().square().mean() + ((x + 1) @ weight).float().square().mean()
        [found] = torch.autograd.grad(loss, weight)
        return found

    plain = gradient()
    repeated = record(lambda: [gradient()])
    assert torch.equal(repeated()[0], plain)

"""The traced replay: bit for bit, no trace left by recording, and a host sync named by its line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from harness.system.replay.traced import HostSyncError, NotTraceableError, TracedStep, fake_pass


class Tiny:
    """A two-layer regression with clipping and fused AdamW; the batch and learning rate are static buffers."""

    def __init__(self) -> None:
        torch.manual_seed(7)
        self.model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
        self.rate = torch.tensor(1e-2)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.rate, fused=True)
        self.x, self.y = torch.zeros(5, 6), torch.zeros(5, 1)

    def prepare(self, index: int) -> None:
        generator = torch.Generator().manual_seed(100 + index)
        self.x.copy_(torch.randn(5, 6, generator=generator))
        self.y.copy_(torch.randn(5, 1, generator=generator))
        self.rate.fill_(1e-2 / (1 + index))

    def body(self) -> Tensor:
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(self.x), self.y)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.optimizer.step()
        return loss.detach()

    def state(self) -> dict[str, Tensor]:
        return dict(self.model.named_parameters())

    def gradients(self) -> dict[str, Tensor]:
        return {name: p.grad for name, p in self.model.named_parameters() if p.grad is not None}


def train(tiny: Tiny, step: Callable[[], Tensor], steps: int) -> list[float]:
    losses = []
    for index in range(steps):
        tiny.prepare(index)
        losses.append(step())
    return [float(loss) for loss in losses]


def test_replays_train_like_the_plain_step_with_every_bit_equal_from_step_zero() -> None:
    plain, other = Tiny(), Tiny()
    traced = TracedStep(other.body, other.state, other.gradients)
    assert train(other, traced.replay, 30) == train(plain, plain.body, 30)
    for name, parameter in plain.state().items():
        assert torch.equal(parameter, other.state()[name]), name
    for name, gradient in plain.gradients().items():
        assert torch.equal(gradient, traced.outputs[name]), name
    assert traced.replays == 30


def test_recording_a_step_leaves_state_and_random_numbers_unchanged() -> None:
    tiny = Tiny()
    tiny.prepare(0)
    before = {name: tensor.detach().clone() for name, tensor in tiny.state().items()}
    generator = torch.get_rng_state()
    TracedStep(tiny.body, tiny.state).record()
    for name, tensor in tiny.state().items():
        assert torch.equal(tensor, before[name]), name
        assert tensor.grad is None, name
    assert torch.equal(torch.get_rng_state(), generator)
    for entry in tiny.optimizer.state.values():
        assert float(entry["step"]) == 0
        assert entry["exp_avg"].abs().max() == 0


def test_recording_keeps_gradients_and_optimizer_state_of_earlier_steps() -> None:
    tiny = Tiny()
    train(tiny, tiny.body, 3)
    gradients = {name: gradient.clone() for name, gradient in tiny.gradients().items()}
    moments = [entry["exp_avg"].clone() for entry in tiny.optimizer.state.values()]
    TracedStep(tiny.body, tiny.state).record()
    for name, gradient in tiny.gradients().items():
        assert torch.equal(gradient, gradients[name]), name
    for entry, moment in zip(tiny.optimizer.state.values(), moments, strict=True):
        assert torch.equal(entry["exp_avg"], moment)
        assert float(entry["step"]) == 3


def test_tensors_created_in_inference_mode_may_be_read_and_changed_by_a_step() -> None:
    """Examples are a table of a frozen encoder's outputs, and an average updated under `torch.inference_mode`."""
    plain, other = Tiny(), Tiny()

    def with_average(tiny: Tiny) -> tuple[Callable[[], Tensor], Tensor]:
        with torch.inference_mode():
            average = torch.zeros(8)

        def step() -> Tensor:
            loss = tiny.body() + average.sum()
            with torch.inference_mode():
                average.lerp_(next(tiny.model.parameters())[:, 0], 0.1)
            return loss.detach()

        return step, average

    (step, average), (body, averaged) = with_average(plain), with_average(other)
    traced = TracedStep(body, lambda: {**other.state(), "average": averaged})
    assert train(other, traced.replay, 5) == train(plain, step, 5)
    assert traced.fake_pass_clean
    assert torch.equal(average, averaged)
    assert type(other.optimizer.state[next(other.model.parameters())]["exp_avg"]) is Tensor


def test_a_learning_rate_that_is_a_host_number_is_frozen_by_the_recording() -> None:
    weight, host = torch.zeros(1), {"rate": 1.0}

    def body() -> Tensor:
        weight.add_(host["rate"])
        return weight.sum()

    traced = TracedStep(body, lambda: {"weight": weight})
    traced.record()
    host["rate"] = 100.0
    assert float(traced.replay()) == 1.0
    assert float(traced.replay()) == 2.0


def test_a_returned_loss_is_not_overwritten_by_the_next_replay() -> None:
    loss = torch.zeros(())
    traced = TracedStep(lambda: loss.add_(1), lambda: {"loss": loss})
    assert [float(value) for value in [traced.replay(), traced.replay()]] == [1.0, 2.0]


def test_operations_are_counted_without_the_recordings_own_bookkeeping() -> None:
    weight = torch.ones(3)

    def body() -> Tensor:
        weight.mul_(2.0)
        return weight.sum()

    traced = TracedStep(body, lambda: {"weight": weight})
    traced.record()
    assert traced.operations == 3  # mul_, sum, detach


@pytest.mark.parametrize(
    ("sync", "operation"),
    [
        pytest.param(lambda t: t.sum().item(), "aten._local_scalar_dense.default", id="item"),
        pytest.param(lambda t: bool(t.sum() > 0), "aten._local_scalar_dense.default", id="bool"),
        pytest.param(lambda t: t[0].tolist(), "Tensor.tolist", id="tolist"),
        pytest.param(lambda t: t.nonzero(), "aten.nonzero.default", id="nonzero"),
        pytest.param(lambda t: t[t > 0], "aten.nonzero.default", id="mask"),
        pytest.param(lambda t: torch.equal(t, t + 1), "aten.equal.default", id="equal"),
    ],
)
def test_a_host_sync_fails_the_fake_pass_with_its_place(sync: Callable[[Tensor], object], operation: str) -> None:
    weight = torch.ones(3)

    def body() -> Tensor:
        weight.mul_(2.0)
        sync(weight)
        return weight.sum()

    traced = TracedStep(body, lambda: {"weight": weight})
    with pytest.raises(HostSyncError) as caught:
        traced.record()
    assert traced.fake_pass_clean is False
    assert weight.tolist() == [1.0, 1.0, 1.0]
    assert caught.value.operation == operation
    assert Path(caught.value.file).name == "test_traced.py"
    assert caught.value.line == inspect.getsourcelines(sync)[1]
    assert f"in <lambda> `pytest.param({inspect.getsource(sync).strip()[13:40]}" in caught.value.got


def test_a_sync_inside_a_backward_function_is_found() -> None:
    class Waits(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: object, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(_ctx: object, grad: Tensor) -> Tensor:
            return grad * float(grad.sum())

    weight = torch.ones(3, requires_grad=True)

    def body() -> Tensor:
        loss: Tensor = Waits.apply(weight).sum()  # type: ignore[no-untyped-call]
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    with pytest.raises(HostSyncError, match=r"test_traced\.py"):
        fake_pass(body, lambda: {"weight": weight})
    assert weight.grad is None


def test_a_failed_recording_restores_the_state() -> None:
    weight = torch.ones(3)
    fake = []

    def body() -> Tensor:
        weight.mul_(2.0)
        fake.append(1)
        if len(fake) > 1:  # the fake pass is over
            message = "no such operator"
            raise RuntimeError(message)
        return weight.sum()

    with pytest.raises(NotTraceableError, match="no such operator"):
        TracedStep(body, lambda: {"weight": weight}).record()
    assert weight.tolist() == [1.0, 1.0, 1.0]

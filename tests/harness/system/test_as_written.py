"""A step that calls torch.compile is watched, tried on fake tensors and recorded as it is written, and says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from harness.contract.schema import Arm, Workload
from harness.execution.watchers.host_sync import observe_syncs
from harness.execution.watchers.sync_detectors import DispatchWatch
from harness.system.replay.cpu_as_device import Waits
from harness.system.replay.launches import as_written
from harness.system.replay.ledger import FirstValues
from harness.system.replay.observer import Observer
from harness.system.step_function import StepFunctionSystem

WORKLOAD = Workload(model="any", batch_size=4, seq_len=1, steps=3)
# compiled as any other code is, and executed by torch's own kernels: no bit is another one
compiled = torch.compile(fullgraph=True, backend="aot_eager")
Training = tuple[nn.Module, Callable[[dict[str, Tensor]], Tensor]]


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)

    @compiled
    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.inner(x))


class Sine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    @compiled
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient * ctx.saved_tensors[0].cos()


def training(
    model: nn.Module, forward: Callable[[Tensor], Tensor], update: Callable[..., None] | None = None
) -> Training:
    parameters, changed = list(model.parameters()), update or _update

    def step(batch: dict[str, Tensor]) -> Tensor:
        model.zero_grad()
        loss = forward(batch["x"]).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            gradients = [parameter.grad for parameter in parameters]
            changed(parameters, gradients)
        return loss.detach()

    return model, step


def _update(parameters: Any, gradients: Any) -> None:
    torch._foreach_add_(parameters, gradients, alpha=-0.1)


def a_model() -> Training:
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
    return training(model, compiled(model))


def a_forward_of_a_module() -> Training:
    model = Part()
    return training(model, model)


def an_update() -> Training:
    model = nn.Linear(4, 3)
    return training(model, model, compiled(_update))


def anew_in_each_step() -> Training:
    model = nn.Linear(4, 3)

    def forward(x: Tensor) -> Tensor:
        result: Tensor = compiled(lambda y: model(y).exp())(x)
        return result

    return training(model, forward)


def nested() -> Training:
    model = nn.Linear(4, 3)
    inner = compiled(lambda x: x.sin() + x)
    return training(model, compiled(lambda x: inner(model(x))))


def a_backward_pass() -> Training:
    model = nn.Linear(4, 3)
    return training(model, lambda x: Sine.apply(model(x)))  # type: ignore[no-untyped-call]


def of_any_shape() -> Training:
    model = nn.Linear(4, 3)
    return training(model, torch.compile(model, dynamic=True, fullgraph=True, backend="aot_eager"))


def in_a_stance_of_its_own() -> Training:
    model = nn.Linear(4, 3)
    forward = torch.compile(model, backend="aot_eager")

    def standing(x: Tensor) -> Tensor:
        with torch.compiler.set_stance("default"):
            result: Tensor = forward(x)
            return result

    return training(model, standing)


class System(StepFunctionSystem):
    name = "compiled"

    def __init__(self, make: Callable[[], Training]) -> None:
        self._make = make

    def build(self, workload: Workload, arm: Arm) -> Any:
        torch.manual_seed(0)
        model, step = self._make()
        return step, lambda index: {"x": torch.randn(4, 4, generator=torch.Generator().manual_seed(index))}, model


MEMBERS = [
    *(a_model, a_forward_of_a_module, an_update, anew_in_each_step, nested),
    *(a_backward_pass, of_any_shape, in_a_stance_of_its_own),
]


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # a warning of the compiler's own
@pytest.mark.parametrize("make", MEMBERS)
def test_compiled_code_is_watched_and_recorded_uncompiled(make: Callable[[], Training]) -> None:
    system = System(make)
    with system.open(WORKLOAD, Arm()) as run:
        plain = [run.step(index).item() for index in range(3)]
    seen = observe_syncs(lambda: system.open(WORKLOAD, Arm()), "plain", 0, announced=WORKLOAD.steps)
    assert [(reading.detector, reading.count) for reading in seen.readings] == [("dispatch_mode", 0), ("fake_pass", 0)]
    with system.open(WORKLOAD, Arm(capture="step")) as run:
        assert [run.step(index).item() for index in range(3)] == plain
        record = run.capture_record()
    assert record.failure is None
    assert list(record.host_changes) == []
    assert record.as_written
    assert all(place.startswith("tests/harness/system/test_as_written.py:") for place in record.as_written)


def test_no_call_of_compiled_code_is_noted_for_a_step_without_compiled_code() -> None:
    with System(lambda: training(model := nn.Linear(4, 3), model)).open(WORKLOAD, Arm(capture="step")) as run:
        run.step(0)
        assert list(run.capture_record().as_written) == []


@pytest.mark.parametrize("mode", [DispatchWatch("cpu"), Waits(torch.device("cpu")), FirstValues()])
def test_observing_a_step_keeps_its_compiled_code_compiled(mode: TorchDispatchMode) -> None:
    assert isinstance(mode, Observer)
    with mode:
        assert torch.equal(compiled(torch.sin)(torch.ones(2)), torch.ones(2).sin())


def test_two_nested_blocks_that_run_code_uncompiled_both_note_a_call_of_compiled_code() -> None:
    double = compiled(lambda x: x + x)
    with as_written() as outer, as_written() as inner:
        double(torch.ones(2))
    assert outer == inner
    assert len(outer) == 1

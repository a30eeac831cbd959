"""What torch looks up on a CPU alone: left out where somebody watches, and untouched where nobody does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from harness.contract.schema import Arm, Workload
from harness.execution.watchers.sync_detectors import DispatchWatch, by_dispatch_mode, by_fake_pass
from harness.system.protocol import CaptureRecord, HasCapture
from harness.system.replay.cpu_as_device import OnADevice
from harness.system.replay.sites import made_to_wait
from harness.system.replay.traced import HostSyncError, NotTraceableError, TracedStep, fake_pass
from harness.system.step_function import StepFunction, StepFunctionSystem

WORKLOAD = Workload(model="any", batch_size=1, seq_len=1, steps=4)


class Looking(StepFunctionSystem):
    """Marks classes, and looks at what is between it and torch."""

    name = "looking"
    seen: list[tuple[list[type], list[type]]]

    def build(self, workload: Workload, arm: Arm) -> tuple[Any, Any, Any]:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.seen = []

        def step(batch: dict[str, Tensor]) -> Tensor:
            dispatch = [type(mode) for mode in _get_current_dispatch_mode_stack()]
            functions = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
            self.seen.append(([type(mode) for mode in functions], dispatch))
            optimizer.zero_grad()
            loss: Tensor = model(nn.functional.one_hot(batch["x"], 4).float()).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            return loss.detach()

        return step, lambda index: {"x": (torch.arange(8) + index) % 4}, model


def test_an_unwatched_step_calls_torch_without_interception() -> None:
    system = Looking()
    with system.open(WORKLOAD, Arm()) as run:
        run.step(0)
    assert system.seen == [([], [])]


def test_sync_and_operator_counts_on_cpu_run_the_step_as_on_a_device() -> None:
    """While operations and host syncs are counted, the step takes the same branches as on a GPU."""
    system = Looking()
    with system.open(WORKLOAD, Arm()) as run:
        assert not by_dispatch_mode(lambda: run.step(0), "cpu")
    assert system.seen == [([OnADevice], [DispatchWatch])]


@pytest.mark.parametrize("classes", [4, -1])
def test_recording_a_step_on_cpu_refuses_what_a_gpu_would_refuse(classes: int) -> None:
    """Steps that capture themselves, without `StepFunctionRun`, are refused, too.

    `one_hot` waits if it reads the number of classes.
    """
    marked = torch.arange(4)
    traced = TracedStep(lambda: nn.functional.one_hot(marked, classes).float().sum(), dict)
    if classes < 0:
        with pytest.raises(HostSyncError):
            traced.record()
        return
    traced.record()
    marked.fill_(0)
    assert traced.replay().item() == 4.0


def on_the_host(number: int) -> Tensor:
    return torch.full(
        (number,),
        2.0,
        device="cpu",
    )


def written(values: Tensor) -> Tensor:
    """A tensor of the host's, of which a view gets a value of the device."""
    total = torch.zeros(3)
    total[1:].copy_(values[1:])
    return total


WAITS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "float": lambda x: float(x[0]),
    "bool": lambda x: bool((x > 0).all()),
    "format": lambda x: f"{x.mean():.2f}",
    "tolist": lambda x: x.tolist(),
    "numpy": lambda x: x.numpy(),
    "array": np.asarray,
    "cpu": lambda x: x.cpu(),
    "cpu, and then as often as one likes": lambda x: [y for y in [x.cpu()] for _ in (y.numpy(), y.sum().item())],
    "a shape": lambda x: x[x > 0],
    "constants that met a value": lambda x: (torch.arange(3) + x).tolist(),
    "constants that were written to": lambda x: written(x).tolist(),
    "constants that were moved to the device": lambda x: torch.arange(3).to(x.device).tolist(),
    "constants that were made on the device": lambda x: torch.arange(3, device=x.device).tolist(),
    "numbers that were put on the device": lambda x: torch.as_tensor([x.dim(), 2], device=x.device)[0].item(),
    "constants like a value's": lambda x: torch.arange(3).type_as(x).tolist(),
    "numbers that a value's own method made": lambda x: x.new_tensor([1.0, 2.0]).tolist(),
    "to the host by name": lambda x: x.to("cpu"),
    "like a tensor of the host": lambda x: x.type_as(torch.arange(3)),
}
DOES_NOT_WAIT: dict[str, Callable[[Tensor], object]] = {
    "constants": lambda x: torch.arange(1, x.dim() + 1).tolist(),
    "constants on the host by name": lambda x: torch.arange(x.dim(), device="cpu").to("cpu").tolist(),
    "constants on the host by a name in a later line": lambda x: on_the_host(x.dim()).tolist(),
    "a number of the code": lambda x: torch.tensor(x.shape).prod().item(),
    "computed constants": lambda x: (torch.tensor([1.0, 3.0]).cumsum(0) * x.dim())[1].item(),
    "a shape of constants": lambda x: torch.arange(len(x))[torch.arange(3) > 0].numpy(),
    "constants of which a copy was moved": lambda x: [y.tolist() for y in [torch.arange(3)] for _ in [y.to(x.device)]],
    "values that stay": lambda x: written(x) + torch.arange(3),
}


@pytest.mark.parametrize("name", WAITS)
def test_reading_a_device_value_counts_as_a_sync(name: str) -> None:
    values = torch.tensor([1.0, 2.0, 3.0])
    read = WAITS[name]
    assert by_dispatch_mode(lambda: read(values), "cpu").total() == 1
    assert by_fake_pass(lambda: read(values), "cpu").total() == 1
    with pytest.raises(HostSyncError):
        TracedStep(lambda: (read(values), values.mul_(1).sum())[1], lambda: {"values": values}).record()


@pytest.mark.parametrize("name", DOES_NOT_WAIT)
def test_reading_a_value_independent_of_the_step_is_not_a_sync(name: str) -> None:
    values = torch.tensor([1.0, 2.0, 3.0])
    read = DOES_NOT_WAIT[name]
    assert by_dispatch_mode(lambda: read(values), "cpu").total() == 0
    assert by_fake_pass(lambda: read(values), "cpu").total() == 0
    traced = TracedStep(lambda: (read(values), values.mul_(2).sum())[1], lambda: {"values": values})
    traced.record()
    losses: list[Tensor] = []
    assert not by_dispatch_mode(lambda: losses.extend(traced.replay() for _ in range(2)), "cpu")
    assert [loss.item() for loss in losses] == [12.0, 24.0]


def test_recording_a_watched_step_that_reads_constants_is_not_a_sync() -> None:
    values = torch.ones(3)
    traced = TracedStep(lambda: (torch.arange(2).tolist(), values.mul_(2).sum())[1], lambda: {"values": values})
    assert not by_dispatch_mode(traced.record, "cpu")


def test_reading_a_random_number_is_not_a_sync_but_cannot_be_recorded() -> None:
    values = torch.ones(3)
    drawn = lambda: values.sum() if torch.rand(1).item() < 0.5 else values.mean()
    assert by_fake_pass(drawn, "cpu").total() == 0
    with pytest.raises(NotTraceableError, match="makes the host read a value that the step computes"):
        TracedStep(drawn, lambda: {"values": values}).record()


@pytest.mark.parametrize("optimizer", [torch.optim.Adamax, torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adam])
def test_optimizer_counters_on_the_host_prevent_a_recording(optimizer: Any) -> None:
    """On a GPU torch does not wait for such counters either, and captures only `capturable` optimizers."""

    class Trains(Looking):
        def build(self, workload: Workload, arm: Arm) -> tuple[Any, Any, Any]:
            model = nn.Linear(4, 1)
            chosen = optimizer(model.parameters())

            def step(batch: dict[str, Tensor]) -> Tensor:
                chosen.zero_grad()
                loss: Tensor = model(batch["x"]).square().mean()
                loss.backward()  # type: ignore[no-untyped-call]
                chosen.step()
                return loss.detach()

            return step, lambda index: {"x": torch.ones(8, 4) + index}, model

    with Trains().open(WORKLOAD, Arm()) as run:
        for index in range(2):
            assert by_dispatch_mode(partial(run.step, index), "cpu").total() == 0
    with Trains().open(WORKLOAD, Arm(capture="step")) as run:
        run.step(0)
        assert not run.capture_record().captured


def test_reading_one_element_of_a_real_tensor_is_a_sync() -> None:
    """Within a pass on fake tensors torch itself would compute this value, so the wait could be missed."""
    weight = torch.ones(1)
    with pytest.raises(HostSyncError):
        fake_pass(lambda: torch.full((), (weight * 2).item()), dict)


class OwnUpdate(torch.optim.SGD):
    """Reads its parameter on the host."""

    takes_fused = False

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        if not self.takes_fused:
            self.defaults.pop("fused", None)
        self.param_groups[0]["params"][0].sum().item()


class OwnFused(OwnUpdate):
    takes_fused = True


@pytest.mark.parametrize("made", [OwnUpdate, OwnFused])
def test_an_optimizer_that_waits_reports_whether_it_has_a_fused_form(made: type[OwnUpdate]) -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = made([weight], lr=0.1)

    def body() -> torch.Tensor:
        optimizer.step()
        return weight.sum()

    with pytest.raises(HostSyncError) as caught:
        fake_pass(body, lambda: {"weight": weight}, [optimizer])
    way = "OwnUpdate always reads values on the host, so it cannot be captured; train with another optimizer"
    way = way if made is OwnUpdate else "make OwnFused with `fused=True`"
    assert f"; {way}" in str(caught.value)


class Refused(torch.optim.Optimizer):
    def __init__(self) -> None:
        raise RuntimeError("no parameters")


def test_a_reading_closure_is_not_blamed_on_the_optimizer_that_calls_it() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def closure() -> Any:
        return weight.item()

    for raises in (partial(optimizer.step, closure), Refused):
        with pytest.raises(RuntimeError) as caught:
            raises()
        said = made_to_wait(caught.value)
        assert not said or said.startswith("; Refused always reads values on the host")


class Trained(StepFunctionSystem):
    """Trains a layer by any optimizer, and keeps an average of it."""

    name = "trained"
    inside = True  # the average is updated in the step
    updates = True  # and so are the weights

    def __init__(self, optimizer: Callable[..., torch.optim.Optimizer] | None = None, dtype: Any = None) -> None:
        self.optimizer, self.dtype = optimizer or partial(torch.optim.SGD, lr=0.1), dtype

    def build(self, workload: Workload, arm: Arm) -> StepFunction:
        torch.manual_seed(workload.seed)
        model = nn.Linear(4, 2, bias=False, dtype=self.dtype)
        optimizer, average = self.optimizer(model.parameters()), AveragedModel(model)

        def averages() -> None:
            average.update_parameters(model)

        def step(batch: dict[str, Tensor]) -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = model(batch["x"]).abs().square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            if self.updates:
                optimizer.step()
            if self.inside:
                averages()
            return loss.detach()

        def after() -> None:
            if not self.updates:
                optimizer.step()
            if not self.inside:
                averages()

        def batch(index: int) -> dict[str, Tensor]:
            generator = torch.Generator().manual_seed(index)
            return {"x": torch.randn(3, 4, generator=generator, dtype=self.dtype)}

        return StepFunction(step, batch, model, after=after)


def losses_of(system: Trained, capture: str) -> tuple[list[float], CaptureRecord]:
    with system.open(WORKLOAD, Arm.model_validate({"capture": capture})) as run:
        losses = [run.step(index).item() for index in range(4)]
        return losses, cast("HasCapture", run).capture_record()


@pytest.mark.parametrize("kind", ["NAdam", "RAdam", "Adamax", "ASGD"])
def test_a_capturable_optimizer_is_recorded_on_a_cpu(kind: str) -> None:
    system = Trained(partial(getattr(torch.optim, kind), lr=0.1, capturable=True))
    system.inside = False
    losses, record = losses_of(system, "step")
    assert (record.failure, record.replays) == (None, 4)
    assert losses == losses_of(system, "none")[0]


@pytest.mark.parametrize(
    ("kind", "dtype", "flag"),
    [("NAdam", None, "capturable"), ("Adam", None, "fused"), ("Adam", torch.complex64, "capturable")],
)
def test_a_capture_stopped_by_an_optimizers_count_names_the_flag_to_set(kind: str, dtype: Any, flag: str) -> None:
    system = Trained(partial(getattr(torch.optim, kind), lr=0.1), dtype)
    system.inside = False
    _, record = losses_of(system, "step")
    assert f"; make {kind} with `{flag}=True`;" in str(record.failure)


def test_a_weight_average_that_reads_its_count_gets_the_advice_to_run_after_the_step() -> None:
    system = Trained()
    _, record = losses_of(system, "step")
    assert "do it after the step: `StepFunction(…, after=…)`" in str(record.failure)
    system.inside = False
    losses, record = losses_of(system, "step")
    assert (record.failure, record.replays) == (None, 4)
    assert losses == losses_of(system, "none")[0]
    with system.open(WORKLOAD, Arm()) as run, DispatchWatch("cpu") as watch:  # as a judged step is watched
        run.step(0)
    assert not watch.seen


def test_code_after_the_step_can_read_the_gradients_of_a_replay() -> None:
    system = Trained(partial(torch.optim.RAdam, lr=0.1, capturable=True))
    system.updates = system.inside = False
    assert losses_of(system, "step")[0] == losses_of(system, "none")[0]

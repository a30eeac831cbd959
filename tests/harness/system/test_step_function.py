"""The smallest adapter, shown whole; captured on a CPU it trains bitwise like plain."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from step_function_systems import Regression, Waits
from torch import Tensor, nn

from harness.contract.schema import Arm, Workload
from harness.system.adapter_checks import AdapterError
from harness.system.built import as_step_function
from harness.system.protocol import (
    HasCapture,
    HasGradients,
    HasInputs,
    HasParameters,
    HasStepBody,
    TrainingRun,
)
from harness.system.step_function import StepFunction, StepFunctionSystem
from harness.system.users_code import message_of, relative


class Example(StepFunctionSystem):
    """The whole of an adapter."""

    name = "example"

    def build(self, workload: Workload, arm: Arm) -> tuple[Any, Any, Any]:
        torch.manual_seed(workload.seed)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(batch: dict[str, Tensor]) -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = (model(batch["x"]) - batch["x"].sum(1, keepdim=True)).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            return loss.detach()

        def batch(index: int) -> dict[str, Tensor]:
            return {"x": torch.randn(8, 4, generator=torch.Generator().manual_seed(index))}

        return step, batch, lambda: dict(model.named_parameters())


HERE = relative(__file__)
WORKLOAD = Workload(model="any", batch_size=2, seq_len=4, steps=12)


def losses_of(system: StepFunctionSystem, capture: str, steps: int = 12) -> tuple[list[float], TrainingRun]:
    arm = Arm.model_validate({"capture": capture})
    with system.open(WORKLOAD, arm) as run:
        losses = [run.step(index) for index in range(steps)]
        values = [float(loss) for loss in losses]
        state = {name: tensor.clone() for name, tensor in run.parameters().items()}
        gradients = {name: tensor.clone() for name, tensor in run.gradients().items()}
        run.final = (state, gradients, run.capture_record())  # type: ignore[attr-defined]
    return values, run


@pytest.mark.parametrize("system", [Example(), Regression()], ids=["sgd", "adamw"])
def test_the_captured_and_the_plain_arm_of_a_step_function_are_equal_in_bits(system: StepFunctionSystem) -> None:
    plain, plain_run = losses_of(system, "none")
    captured, captured_run = losses_of(system, "step")
    assert captured == plain
    assert plain[-1] < plain[0]
    for theirs, ours in zip(plain_run.final[:2], captured_run.final[:2], strict=True):  # type: ignore[attr-defined]
        assert theirs.keys() == ours.keys()
        assert all(torch.equal(theirs[name], ours[name]) for name in theirs)
        assert len(ours) > 0


class Named(Regression):
    """Hands its functions over by name, and a tensor that nobody finds from the step."""

    def build(self, workload: Workload, arm: Arm) -> Any:
        step, batch, parameters = super().build(workload, arm)
        return StepFunction(parameters=parameters, batch=batch, step=step, state=lambda: {"seen": torch.ones(2)})


class Listed(Regression):
    def build(self, workload: Workload, arm: Arm) -> Any:
        return [*super().build(workload, arm), lambda: {"seen": torch.ones(2)}]


@pytest.mark.parametrize("system", [Named(), Listed()], ids=["by name", "by position"])
def test_a_builder_may_return_its_functions_by_name_or_by_position(system: StepFunctionSystem) -> None:
    plain, _ = losses_of(Regression(), "none")
    captured, _ = losses_of(system, "step")
    assert captured == plain
    with system.open(WORKLOAD, Arm()) as run:
        assert run.state()["tensors"]["seen"].tolist() == [1.0, 1.0]


def test_the_capture_record_states_its_mechanism_captures_and_replays() -> None:
    _, run = losses_of(Regression(), "step")
    record = run.final[2]  # type: ignore[attr-defined]
    assert (record.mechanism, record.captured, record.captures) == ("traced", True, 1)
    assert (record.replays, record.uncaptured_steps, record.fake_pass_clean) == (12, 0, True)
    assert record.recorded_operations > 20


def test_the_capture_record_of_a_plain_arm_states_that_no_capture_was_requested() -> None:
    _, run = losses_of(Example(), "none", steps=3)
    record = run.final[2]  # type: ignore[attr-defined]
    assert (record.requested, record.captured, record.mechanism, record.uncaptured_steps) == (False, False, None, 3)


class Classes(Example):
    """Its step makes vectors of classes: of as many as it says, or of as many as the greatest one has."""

    def __init__(self, classes: int) -> None:
        self._classes = classes

    def build(self, workload: Workload, arm: Arm) -> tuple[Any, Any, Any]:
        step, _, parameters = super().build(workload, arm)

        def of_classes(batch: dict[str, Tensor]) -> Tensor:
            vectors = nn.functional.one_hot(batch["x"], self._classes).float()
            loss: Tensor = step({"x": vectors})
            return loss

        return of_classes, lambda index: {"x": (torch.arange(8) + index) % 4}, parameters


def test_one_hot_with_a_given_number_of_classes_can_be_captured_on_cpu_and_gpu() -> None:
    plain, _ = losses_of(Classes(4), "none")
    captured, run = losses_of(Classes(4), "step")
    assert (captured, run.final[2].captured) == (plain, True)  # type: ignore[attr-defined]


def test_one_hot_that_reads_its_number_of_classes_from_data_is_not_captured() -> None:
    _, run = losses_of(Classes(-1), "step", steps=2)
    assert not run.final[2].captured  # type: ignore[attr-defined]


class Attacked(Example):
    """Each batch wants gradients; the step moves it against them first."""

    def build(self, workload: Workload, arm: Arm) -> tuple[Any, Any, Any]:
        step, batch, parameters = super().build(workload, arm)

        def attacked(given: dict[str, Tensor]) -> Tensor:
            step(given)
            assert given["x"].grad is not None
            loss: Tensor = step({"x": given["x"].detach() + given["x"].grad.sign()})
            return loss

        return attacked, lambda index: {"x": batch(index)["x"].requires_grad_()}, parameters


def test_a_batch_that_requires_gradients_gets_them_in_each_step() -> None:
    plain, run = losses_of(Attacked(), "none")
    captured, _ = losses_of(Attacked(), "step")
    assert plain == captured
    assert isinstance(run, HasInputs)
    assert not run.inputs()["x"].requires_grad


def test_a_step_that_waits_for_the_device_runs_uncaptured_and_the_reason_is_recorded() -> None:
    captured, run = losses_of(Waits(), "step")
    plain, _ = losses_of(Waits(), "none")
    record = run.final[2]  # type: ignore[attr-defined]
    assert captured == plain
    assert (record.captured, record.captures, record.uncaptured_steps) == (False, 0, 12)
    assert "step_function_systems.py" in record.failure
    assert "aten._local_scalar_dense" in record.failure


class LeftHalfMade(Waits):
    """What a trial execution leaves behind, as a library may, lets no step be made any more."""

    def build(self, workload: Workload, arm: Arm) -> tuple[Any, Any, Any]:
        step, batch, parameters = super().build(workload, arm)
        made = iter(range(workload.steps))

        def once(read: dict[str, Tensor]) -> Tensor:
            if next(made):
                raise RuntimeError("half made")
            return step(read)  # type: ignore[no-any-return]

        return once, batch, parameters


def test_a_step_that_raises_after_a_failed_capture_reports_both_errors() -> None:
    with LeftHalfMade().open(WORKLOAD, Arm(capture="step")) as run, pytest.raises(RuntimeError) as raised:
        run.step(0)
    told = message_of(raised.value)
    assert "RuntimeError: half made; the capture of this step had failed before: " in told
    assert "aten._local_scalar_dense" in told


def test_every_shape_of_batches_is_captured_once() -> None:
    workload = WORKLOAD.model_copy(update={"seq_len": [4, 8, 12]})
    with Regression().open(workload, Arm(capture="step")) as run:
        for index in range(9):
            run.step(index)
        assert run.capture_record().captures == 3
        assert run.capture_record().replays == 9
        assert run.inputs()["x"].shape == (24, 6)
        recorded = run.capture_record().recorded_operations
    with Regression().open(WORKLOAD, Arm(capture="step")) as run:
        run.step(0)
        assert recorded == 3 * run.capture_record().recorded_operations


def test_the_run_of_a_step_function_offers_its_capabilities() -> None:
    with Example().open(WORKLOAD, Arm()) as run:
        for capability in (TrainingRun, HasInputs, HasParameters, HasGradients, HasCapture, HasStepBody):
            assert isinstance(run, capability), capability


def test_a_fault_or_option_that_a_step_function_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="example does not have the fault 'stale_batch'"):
        Example().open(WORKLOAD, Arm(), fault="stale_batch")
    with pytest.raises(ValueError, match="must be run without --data and --model"):
        Example().open(WORKLOAD, Arm(), data="text")


class Frozen(Example):
    """The example beside a frozen layer, which its parameters name too."""

    def build(self, workload: Workload, arm: Arm) -> tuple[Any, Any, Any]:
        step, batch, parameters = super().build(workload, arm)
        self.layer = nn.Linear(4, 4).requires_grad_(False)

        def frozen_first(given: dict[str, Tensor]) -> Tensor:
            loss: Tensor = step({"x": self.layer(given["x"])})
            return loss

        return frozen_first, batch, lambda: {**parameters(), "layer.weight": self.layer.weight}


def test_a_frozen_parameter_is_watched_and_not_trained() -> None:
    system = Frozen()
    with system.open(WORKLOAD, Arm()) as run:
        assert set(run.parameters()) == {"weight", "bias"}
        run.step(0)
        assert set(run.gradients()) == {"weight", "bias"}
        watched = run.state()["parameters"].values()
        assert any(tensor is system.layer.weight for tensor in watched)
        assert not any(tensor is run.parameters()["weight"] for tensor in watched)


def two_models() -> tuple[nn.Module, nn.Module]:
    return nn.Linear(2, 2, bias=False), nn.Sequential(nn.Linear(2, 1))


GIVEN: dict[str, tuple[Any, set[str]]] = {
    "modules": (lambda a, b: [a, b], {"0.weight", "1.0.weight", "1.0.bias"}),
    "modules by name": (lambda a, b: {"first": a, "second": b}, {"first.weight", "second.0.weight", "second.0.bias"}),
    "a module and a tensor": (lambda a, b: (a, b[0].bias), {"0.weight", "1"}),
    "the parameters themselves": (lambda _a, b: b.parameters(), {"0", "1"}),
    "a function": (lambda a, _b: lambda: dict(a.named_parameters()), {"weight"}),
}


@pytest.mark.parametrize("how", GIVEN)
def test_trained_parameters_may_be_given_as_modules_or_tensors(how: str) -> None:
    given, names = GIVEN[how]
    models = two_models()
    function = as_step_function((lambda _batch: torch.zeros(()), lambda index: index, given(*models)), two_models)
    assert set(function.parameters()) == names
    again, tensors = function.parameters(), {id(tensor) for model in models for tensor in model.parameters()}
    assert {id(tensor) for tensor in again.values()} <= tensors


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ([1, 2], "must be modules and tensors; found the int 1 under `0`; return the trained model: "),
        ({"a": nn.Linear(1, 1), "b": "c"}, "must be modules and tensors; found the str 'c' under `b`; "),
        ([], "must be modules and tensors; found no parameter; "),
        ("weights", "must be a function; found the str 'weights'; "),
        (torch.zeros(2), "must be a function; found a tensor of 2 (float32); "),
    ],
)
def test_an_invalid_parameters_value_of_a_builder_is_refused_with_its_place(given: object, found: str) -> None:
    class Wrong(Example):
        def build(self, workload: Workload, arm: Arm) -> tuple[Any, Any, Any]:
            step, batch, _ = super().build(workload, arm)
            return step, batch, given

    with pytest.raises(AdapterError) as refused, Wrong().open(WORKLOAD, Arm()) as run:
        run.parameters()
    assert str(refused.value).startswith(
        f"{HERE}:{inspect.getsourcelines(Wrong.build)[1] + 2}: `parameters`, as returned by build"
    )
    assert found in str(refused.value)

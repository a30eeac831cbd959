"""Metrics of a step: those that a replay wrote, wherever the step keeps them, and none that a capture froze."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from step_function_systems import Regression
from torch import Tensor

from harness.contract.schema import Arm, Workload
from harness.execution.watchers.state_watch import StateWatch
from harness.judging.end_state import differing
from harness.system.adapter_checks import AdapterError, require_metrics
from harness.system.protocol import HasMetrics
from harness.system.step_function import StepFunction
from harness.system.wrappers import wrap

WORKLOAD = Workload(model="any", batch_size=2, seq_len=[4, 8], steps=8)
Metrics = Callable[[], Mapping[str, Tensor]]


class Attribute(Regression):
    """Keeps the largest loss of a batch on itself, bound anew by each step."""

    largest: Tensor | None = None

    def build(self, workload: Workload, arm: Arm) -> Any:
        step, batch, parameters = super().build(workload, arm)
        self.begin()

        def measured(given: dict[str, Tensor]) -> Tensor:
            loss: Tensor = step(given)
            self.keep(given["y"].abs().max() + loss)
            return loss

        return StepFunction(measured, batch, parameters, metrics=self.reported)

    def begin(self) -> None:
        """Nothing: the attribute comes to be in the first step."""

    def keep(self, value: Tensor) -> None:
        self.largest = value

    def reported(self) -> dict[str, Any]:
        return {"largest": self.largest}


class Rebound(Attribute):
    """The attribute is there before the first step, too."""

    def begin(self) -> None:
        self.largest = torch.zeros(())


class Listed(Attribute):
    """Keeps it in a list."""

    def begin(self) -> None:
        self.kept: list[Any] = [torch.zeros(())]

    def keep(self, value: Tensor) -> None:
        self.kept[0] = value

    def reported(self) -> dict[str, Any]:
        return {"largest": self.kept[0].detach()}


class InPlace(Attribute):
    """Writes into a tensor that stays."""

    def begin(self) -> None:
        self.kept = torch.zeros(())

    def keep(self, value: Tensor) -> None:
        self.kept.copy_(value)

    def reported(self) -> dict[str, Any]:
        return {"largest": self.kept}


class InClosure(Regression):
    """Keeps it in a variable of the enclosing function."""

    def build(self, workload: Workload, arm: Arm) -> Any:
        step, batch, parameters = super().build(workload, arm)
        largest = torch.zeros(())

        def measured(given: dict[str, Tensor]) -> Tensor:
            nonlocal largest
            loss: Tensor = step(given)
            largest = given["y"].abs().max() + loss
            return loss

        return StepFunction(measured, batch, parameters, metrics=lambda: {"largest": largest})


def trained(system: Regression, capture: str) -> tuple[list[float], Any]:
    """The metric of every step, and the state at the end."""
    with system.open(WORKLOAD, Arm.model_validate({"capture": capture})) as run:
        assert isinstance(run, HasMetrics)
        watch = StateWatch(run)
        watch.at_start()
        found = []
        for index in range(WORKLOAD.steps):
            run.step(index)
            found.append(float(run.metrics()["largest"]))
        assert run.capture_record().captured is (capture != "none")
        return found, watch.at_end()


@pytest.mark.parametrize("system", [Attribute, Rebound, Listed, InPlace, InClosure])
def test_a_replay_reports_the_metrics_that_it_computed(system: type[Regression]) -> None:
    """Two shapes take turns, so a replay must report the metric of its own graph and not that of the other graph."""
    plain, plain_end = trained(system(), "none")
    captured, captured_end = trained(system(), "step")
    assert captured == plain
    assert len(set(plain)) == WORKLOAD.steps
    assert differing(captured_end, plain_end) == []


class Computes(Attribute):
    """Makes a tensor in `metrics` itself, from a number of the host's: a replay would never write it."""

    steps = 0

    def reported(self) -> dict[str, Any]:
        self.steps += 1
        return {"rate": torch.tensor(0.1 / self.steps)}


@pytest.mark.parametrize("capture", ["none", "step"])
def test_a_metric_whose_tensor_the_step_does_not_keep_is_refused(capture: str) -> None:
    with (
        Computes().open(WORKLOAD, Arm.model_validate({"capture": capture})) as run,
        pytest.raises(AdapterError) as caught,
    ):
        run.step(0)
        run.metrics()
    assert str(caught.value).endswith(
        ": metrics() must return tensors that the step keeps, each of one number, under the same names at every step; "
        "found a new tensor at each call under `rate`; "
        "compute the tensor in the step and keep it, `self.accuracy = …`, because a replay does not execute metrics()"
    )


NAMED = (
    "metrics() must return tensors that the step keeps, each of one number, under the same names at every step; found "
)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            None,
            'metrics() must return a dictionary of tensors by name; found None; return `{"accuracy": self.accuracy}`',
        ),
        ({"a": 0.5}, "metrics() must return a dictionary of tensors by name; found a float under `a`; return"),
        (
            {"a b": torch.zeros(())},
            NAMED + "the name 'a b'; use only letters, digits, `_`, `.` and `-`, and none of",
        ),
        ({"loss": torch.zeros(())}, NAMED + "the name 'loss'; use only letters, digits"),
        ({"a": torch.zeros(2)}, NAMED + "a tensor of 2 (float32) under `a`; reduce the tensor to one number"),
        ({"b": torch.zeros(())}, NAMED + "`b` only at this step and `a` only at the first step; return the same names"),
    ],
)
def test_an_invalid_metric_is_refused_with_its_place(given: Any, told: str) -> None:
    def metrics() -> Any:
        return given

    with pytest.raises(AdapterError) as caught:
        require_metrics(metrics(), metrics, known=("a",) if "only at" in told else ())
    place, _, message = str(caught.value).partition(": ")
    assert "test_metrics.py:" in place
    assert message.startswith(told)


@pytest.mark.parametrize(
    ("fault", "changed"),
    [
        ("nan_metric", lambda values: [*values[:5], *[float("nan")] * 3]),
        ("constant_metric", lambda values: [values[0]] * 8),
        ("doubled_metric", lambda values: [*values[:5], *(2 * value for value in values[5:])]),
        ("halved_metric", lambda values: [*values[:5], *(value / 2 for value in values[5:])]),
    ],
)
def test_the_fault_of_a_metric_changes_the_metric_and_no_loss(
    fault: str, changed: Callable[[list[float]], list[float]]
) -> None:
    plain, _ = trained(Attribute(), "none")
    with wrap(Attribute().open(WORKLOAD, Arm()), fault, steps=8) as run:
        found = []
        for index in range(8):
            run.step(index)
            found.append(float(run.metrics()["largest"]))  # type: ignore[attr-defined]
    assert repr(found) == repr(changed(plain))


def test_a_run_of_a_system_without_metrics_reports_no_metrics() -> None:
    with Regression().open(WORKLOAD, Arm()) as run:
        run.step(0)
        assert run.metrics() == {}

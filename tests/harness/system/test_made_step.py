"""A made step's arms, and its planted faults, each changed by one thing against the plain run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harness.contract.schema import Arm, Workload
from harness.errors import HarnessError
from harness.execution.watchers.sync_detectors import by_dispatch_mode
from harness.system.built import StepFunction
from harness.system.made_step import MadeStepSystem
from harness.system.protocol import CaptureRecord
from harness.system.step_function_run import StepFunctionRun

STEPS = 12
WORKLOAD = Workload(model="any", batch_size=2, seq_len=4, steps=STEPS)


class Made(MadeStepSystem):
    """As a user's function gives it: the model in the place of its parameters, a batch that needs a value."""

    name = "made"

    def build(self, workload: Workload, arm: Arm) -> tuple[Any, Any, Any]:
        torch.manual_seed(workload.seed)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

        def step(batch: dict[str, Tensor]) -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = (model(batch["x"]) - batch["x"].sum(1, keepdim=True)).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            return loss

        def batch(index: int) -> dict[str, Tensor]:
            x = torch.randn(8, 4, generator=torch.Generator().manual_seed(index))
            return {"x": x * (1.0 if x.sum().item() > 0 else -1.0)}

        return step, batch, model


def opened(settings: dict[str, Any], fault: str | None = None) -> Any:
    return Made().open(WORKLOAD, Arm.model_validate({"capture": "none"} | settings), fault=fault)


def losses(run: StepFunctionRun) -> list[float]:
    return [float(run.step(index)) for index in range(STEPS)]


def weights(run: StepFunctionRun) -> Tensor:
    return run.parameters()["weight"].detach().clone()


def test_creating_a_batch_is_not_a_sync_and_a_read_by_the_control_arm_is_a_sync() -> None:
    plain, waiting = opened({}), opened({"waits": True})
    assert sum(by_dispatch_mode(lambda: plain.step(0), "cpu").values()) == 0
    assert sum(by_dispatch_mode(lambda: waiting.step(0), "cpu").values()) == 1


def test_the_untrained_control_starts_like_the_plain_arm_and_never_changes() -> None:
    plain, untrained = opened({}), opened({"trains": False})
    before = weights(untrained)
    assert torch.equal(before, weights(plain))
    ours, theirs = losses(untrained), losses(plain)
    assert torch.equal(weights(untrained), before)
    assert ours[0] == theirs[0]
    assert ours[-1] > theirs[-1]


def test_a_compiled_step_keeps_the_state_names_of_the_users_model(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def compiled(step: Callable[[Any], Tensor], **_options: Any) -> Callable[[Any], Tensor]:
        return lambda batch: calls.append(step) or step(batch)  # type: ignore[func-returns-value]

    monkeypatch.setattr("torch.compile", compiled)
    plain, run = opened({}), opened({"compile": True})
    assert losses(run) == losses(plain)
    assert len(calls) == STEPS
    assert {kind: set(found) for kind, found in run.state().items()} == {
        kind: set(found) for kind, found in plain.state().items()
    }


def test_the_stopped_training_fault_stops_in_the_middle() -> None:
    right, stopped = losses(opened({})), losses(opened({}, "stopped_training"))
    assert [a == b for a, b in zip(right, stopped, strict=True)] == [True] * 7 + [False] * 5


def test_the_fault_of_different_losses_gives_different_losses_in_each_run() -> None:
    first, second = losses(opened({}, "other_losses")), losses(opened({}, "other_losses"))
    assert all(a != b for a, b in zip(first, second, strict=True))
    assert first == pytest.approx(losses(opened({})), rel=1e-3)


def test_the_capture_record_contains_a_second_capture_and_a_skipped_update() -> None:
    again = opened({"capture": "step"}, "second_capture")
    assert losses(again) == losses(opened({"capture": "step"}))
    assert again.capture_record().captures == 2
    assert opened({}, "skipped_update").skipped_steps() == 1


def test_the_capture_record_contains_a_capture_in_each_step() -> None:
    again = opened({"capture": "step"}, "capture_each_step")
    assert losses(again) == losses(opened({"capture": "step"}))
    assert again.capture_record().captures == STEPS


@pytest.mark.parametrize(("settings", "counted"), [({}, 1), ({"optimized": True}, 2), ({"capture": "step"}, 2)])
def test_the_fault_of_doubled_statistics_makes_an_optimized_arm_update_them_twice(
    settings: dict[str, Any], counted: int
) -> None:
    run = opened(settings, "statistics_updated_twice")
    assert losses(run) == losses(opened(settings))
    buffers = run.state()["buffers"]
    assert int(buffers["planted.num_batches_tracked"]) == counted * STEPS
    assert float(buffers["planted.running_mean"]) != 0


@pytest.mark.parametrize("steps", [20, 200])
def test_doubled_statistics_differ_by_more_than_a_tenth_after_short_and_long_trainings(steps: int) -> None:
    means = []
    for settings in ({}, {"optimized": True}):
        run = opened(settings, "statistics_updated_twice")
        for index in range(steps):
            run.step(index)
        means.append(float(run.state()["buffers"]["planted.running_mean"]))
    once, twice = means
    assert twice / once > 1.1


def test_the_faults_of_gradients_enlarge_gradients_by_a_millionth_or_twofold() -> None:
    plain, other, twice = opened({}), opened({}, "other_gradients"), opened({}, "doubled_gradients")
    for run in (plain, other, twice):
        run.step(0)
    right = plain.gradients()["weight"]
    assert 0 < float((other.gradients()["weight"] / right - 1).abs().max()) < 2e-6
    assert torch.equal(twice.gradients()["weight"], 2 * right)


RECORD = CaptureRecord("traced", True, True, None, 1, 3, STEPS, 0)


class CapturesItself(Made):
    captures_itself = True
    says: Callable[[], CaptureRecord] | None = staticmethod(lambda: RECORD)

    def build(self, workload: Workload, arm: Arm) -> Any:
        made = StepFunction(*super().build(workload, arm))
        buffers: list[Tensor] = []

        def step(batch: dict[str, Tensor]) -> Tensor:
            if arm.capture != "none" and not buffers:
                buffers.append(torch.zeros(3))
            return made.step(batch)

        return replace(made, step=step, captured=self.says)


def test_a_self_capturing_step_is_not_captured_again_and_reports_its_own_record() -> None:
    run = CapturesItself().open(WORKLOAD, Arm.model_validate({"capture": "step"}))
    assert losses(run) == losses(opened({}))
    assert run._captures == 0
    assert run.capture_record() is RECORD


@pytest.mark.parametrize(("fault", "captures"), [("second_capture", 2), ("capture_each_step", STEPS)])
def test_extra_captures_by_the_step_are_reported(fault: str, captures: int) -> None:
    run = CapturesItself().open(WORKLOAD, Arm.model_validate({"capture": "step"}), fault=fault)
    losses(run)
    assert run.capture_record() == replace(RECORD, captures=captures)


@pytest.mark.parametrize(("capture", "says"), [("step", True), ("none", None)])
def test_a_self_capturing_arm_lists_all_tensors_and_records_its_capturing(capture: str, says: bool | None) -> None:
    """Only a comparison with the plain arm shows which of these tensors are buffers of the capture."""
    run = CapturesItself().open(WORKLOAD, Arm.model_validate({"capture": capture}))
    assert set(run.state()["tensors"]) == set()
    run.step(0)
    assert set(run.state()["tensors"]) == ({"buffers.0"} if says else set())
    assert run.facts().get("captures_itself") is says


def test_a_self_capturing_step_without_a_capture_record_is_refused() -> None:
    class Silent(CapturesItself):
        says = None

    with pytest.raises(
        HarnessError,
        match=r"a function with the argument `captured` must also return a function that reports .* capture; found no",
    ):
        Silent().open(WORKLOAD, Arm.model_validate({"capture": "none"}))


class Pair(MadeStepSystem):
    def build(self, workload: Workload, arm: Arm) -> Any:
        return 1, 2


def test_a_builder_that_returns_no_step_is_refused_with_its_place() -> None:
    with pytest.raises(
        HarnessError, match=r"test_made_step\.py:\d+: build must return StepFunction\(step, batch, parameters\)"
    ):
        Pair().open(WORKLOAD, Arm.model_validate({"capture": "none"}))

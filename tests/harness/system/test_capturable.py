"""A captured step under a scheduler: its learning rate is a tensor, and a number where nothing is captured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from step_function_systems import Regression
from torch import nn

from harness.contract.schema import Arm, Workload
from harness.system.capturable import make_capturable
from harness.system.protocol import HasCapture, HasState, TrainingRun
from harness.system.step_function import StepFunction

WORKLOAD = Workload(model="any", batch_size=4, seq_len=2, steps=12)
STEPS = 12


class Scheduled(Regression):
    """The same regression, whose learning rate halves with every step."""

    arm_options: Mapping[str, Any] = {"learning_rate": float, "schedule": bool}

    def build(self, workload: Workload, arm: Arm) -> Any:
        _, batch, _ = super().build(workload, arm)
        torch.manual_seed(workload.seed)
        model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        if arm.settings().get("learning_rate") is None:
            make_capturable(optimizer)

        def step(batch: Any) -> Any:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(batch["x"]), batch["y"])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            return loss.detach()

        after = (lambda: None) if arm.settings().get("schedule") is False else scheduler.step
        return StepFunction(step, batch, lambda: dict(model.named_parameters()), after=after)


def trained(**settings: Any) -> tuple[list[float], TrainingRun]:
    run = Scheduled().open(WORKLOAD, Arm.model_validate(settings))
    return [run.step(index).item() for index in range(STEPS)], run


def test_a_captured_step_uses_each_learning_rate_of_the_scheduler() -> None:
    plain, _ = trained(learning_rate=0.1)
    captured, run = trained(capture="step")
    assert isinstance(run, HasCapture)
    assert run.capture_record().replays == STEPS
    assert captured == plain


def test_a_captured_step_without_its_scheduler_trains_differently() -> None:
    plain, _ = trained(learning_rate=0.1)
    captured, _ = trained(capture="step", schedule=False)
    assert captured[:2] == plain[:2]
    assert captured[2] != plain[2]


def test_a_learning_rate_as_a_tensor_or_as_a_number_is_recorded_as_equal_state() -> None:
    """A capture requires the tensor. Otherwise arms that differ only in this would start from different state."""
    states = []
    for settings in ({"learning_rate": 0.1}, {"capture": "step"}):
        _, run = trained(**settings)
        assert isinstance(run, HasState)
        optimizer = run.state()["optimizer"]
        states.append({name: bytes(tensor.numpy().tobytes()) for name, tensor in optimizer.items()})
    assert states[0] == states[1]
    assert {"group0.lr", "0.weight.exp_avg"} < set(states[0])
    assert not {"group0.fused", "group0.capturable"} & set(states[0])


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD])
def test_an_optimizer_made_capturable_can_be_recorded_without_a_gpu(optimizer: Any) -> None:
    from harness.system.replay.operations import record

    weight = nn.Parameter(torch.ones(3))
    made = optimizer([weight], lr=0.1)
    weight.grad = torch.ones(3)
    make_capturable(made)
    made.step()  # its state comes to be

    def update() -> list[torch.Tensor]:
        made.step()
        return [weight.sum()]

    assert len(record(update)) > 0

"""A nudged start: every parameter a rounding away, alike in every process, and nothing else changed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from harness.contract.schema import Arm, Workload
from harness.runners.nudge import nudge
from harness.system.step_function import StepFunctionSystem
from harness.system.step_function_run import StepFunctionRun


class Norm(StepFunctionSystem):
    dtype = torch.float32

    def build(self, workload: Workload, arm: Arm) -> tuple[object, object, object]:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(40, 30), nn.BatchNorm1d(30)).to(self.dtype)
        torch.nn.init.zeros_(self.model.get_parameter("0.bias"))

        def step(batch: dict[str, Tensor]) -> Tensor:
            loss: Tensor = self.model(batch["x"]).sum()
            return loss

        return step, lambda _index: {"x": torch.ones(2, 40)}, self.model


def opened(dtype: torch.dtype = torch.float32) -> StepFunctionRun:
    system = Norm()
    system.dtype = dtype
    run = system.open(Workload(model="any", batch_size=2, seq_len=1, steps=8), Arm())
    assert isinstance(run, StepFunctionRun)
    return run


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        (torch.float32, 2**-20),
        (torch.float64, 2**-20),
        (torch.bfloat16, 2**-7),
        (torch.float16, 2**-10),
    ],
)
def test_every_element_is_multiplied_by_a_little_more_or_less_than_one(dtype: torch.dtype, size: float) -> None:
    run = opened(dtype)
    before = {name: tensor.detach().clone() for name, tensor in run.parameters().items()}
    nudge(run)
    for name, tensor in run.parameters().items():
        changed = (tensor.double() / before[name].double() - 1)[before[name] != 0]
        assert changed.abs().tolist() == pytest.approx([size] * len(changed), rel=0.6)  # the type rounds it once more
    ratio = (run.parameters()["0.weight"].double() / before["0.weight"].double() - 1).sign()
    assert abs(ratio.mean()) < 0.1, "as many up as down"


def test_zeros_stay_and_buffers_are_not_touched() -> None:
    run = opened()
    buffers = {name: tensor.clone() for name, tensor in run.state()["buffers"].items()}
    nudge(run)
    assert run.parameters()["0.bias"].tolist() == [0.0] * 30
    assert all(torch.equal(tensor, buffers[name]) for name, tensor in run.state()["buffers"].items())


def test_two_processes_nudge_alike_and_no_random_number_is_spent() -> None:
    one, other = opened(), opened()
    drawn = torch.get_rng_state()
    nudge(one)
    nudge(other)
    assert torch.equal(torch.get_rng_state(), drawn)
    for name, tensor in one.parameters().items():
        assert torch.equal(tensor, other.parameters()[name])

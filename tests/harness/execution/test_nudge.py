"""A nudged start: every parameter a rounding away, alike in every process, and nothing else changed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from harness.contract.schema import Arm, Workload
from harness.execution.opening import _alike, _multiply, nudge
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
    ("dtype", "size", "share"),
    [
        (torch.float32, 2**-20, 1.0),
        (torch.float64, 2**-20, 1.0),
        (torch.bfloat16, 2**-7, 1 / 16),
        (torch.float16, 2**-10, 1 / 16),
    ],
)
def test_a_nudge_multiplies_elements_by_factors_close_to_one(dtype: torch.dtype, size: float, share: float) -> None:
    """A nudge changes the start of an arm by about one rounding."""
    run = opened(dtype)
    before = run.parameters()["0.weight"].detach().clone()
    nudge(run)
    change = run.parameters()["0.weight"].double() / before.double() - 1
    changed = change[change != 0]
    assert len(changed) / change.numel() == pytest.approx(share, rel=0.3)
    assert changed.abs().tolist() == pytest.approx([size] * len(changed), rel=0.6)  # the type rounds it once more
    assert abs(changed.sign().mean()) < 0.3, "as many up as down"


class Mastered(Norm):
    """Parameters in bfloat16, and what the optimizer steps on in float32: a list, one flat tensor, or its own alone."""

    dtype = torch.bfloat16
    held = "list"

    def build(self, workload: Workload, arm: Arm) -> tuple[object, object, object]:
        _, batch, model = super().build(workload, arm)
        parameters = [each.detach().float() for each in self.model.parameters()]
        if self.held == "flat":
            parameters = [torch.cat([each.flatten() for each in parameters])]
        masters = [each.requires_grad_() for each in parameters]
        optimizer = self.optimizer = torch.optim.SGD(masters, lr=0.1)
        listed = None if self.held == "alone" else masters

        def step(batch: dict[str, Tensor]) -> Tensor:
            optimizer.step()
            loss: Tensor = self.model(batch["x"]).sum() if listed is None or listed else torch.zeros(())
            return loss

        return step, batch, model


@pytest.mark.parametrize("held", ["list", "flat", "alone"])
def test_a_nudge_changes_master_weights_and_updates_the_parameters_from_them(held: str) -> None:
    """A nudge changes the start of an arm by about one rounding."""
    system = Mastered()
    system.held = held
    run = system.open(Workload(model="any", batch_size=2, seq_len=1, steps=8), Arm())
    assert isinstance(run, StepFunctionRun)

    def masters() -> Tensor:
        return torch.cat([each.detach().flatten() for each in system.optimizer.param_groups[0]["params"]])

    before = masters().clone()
    nudge(run)
    changed = (masters().double() / before.double() - 1)[(before != 0) & (before != 1)]
    assert changed.abs().tolist() == pytest.approx([2**-20] * len(changed), rel=0.6)
    trained = torch.cat([each.flatten() for each in run.parameters().values()])
    assert torch.equal(trained, masters().bfloat16())


def test_a_nudge_leaves_zeros_and_buffers_unchanged() -> None:
    """A nudge changes the start of an arm by about one rounding."""
    run = opened()
    buffers = {name: tensor.clone() for name, tensor in run.state()["buffers"].items()}
    nudge(run)
    assert run.parameters()["0.bias"].tolist() == [0.0] * 30
    assert all(torch.equal(tensor, buffers[name]) for name, tensor in run.state()["buffers"].items())


def test_two_processes_nudge_the_start_equally_without_drawing_random_numbers() -> None:
    """A nudge changes the start of an arm by about one rounding."""
    one, other = opened(), opened()
    drawn = torch.get_rng_state()
    nudge(one)
    nudge(other)
    assert torch.equal(torch.get_rng_state(), drawn)
    for name, tensor in one.parameters().items():
        assert torch.equal(tensor, other.parameters()[name])


def test_a_nudge_also_changes_a_flat_parameter_copy_in_a_different_memory_format() -> None:
    """A nudge changes the start of an arm by about one rounding.

    In the format `channels_last` a weight has no view of one dimension.
    """
    weight = torch.rand(4, 3, 2, 2).to(memory_format=torch.channels_last)
    other, flat = torch.rand(5), weight.contiguous().view(-1).clone()
    [(_, tensors), _] = _alike({"weight": weight, "other": other}, [flat])
    assert len(tensors) == 2
    before = weight.clone()
    with torch.no_grad():
        _multiply("weight", tensors)
    assert not torch.equal(weight, before)
    assert torch.equal(flat.view(weight.shape), weight)

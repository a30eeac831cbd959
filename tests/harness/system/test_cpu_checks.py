"""What torch looks up on a CPU alone: left out where somebody watches, and untouched where nobody does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from harness.contract.schema import Arm, Workload
from harness.runners.sync_detectors import DispatchWatch, by_dispatch_mode
from harness.system.replay.cpu_checks import WithoutCpuChecks
from harness.system.replay.traced import HostSyncError, TracedStep
from harness.system.step_function import StepFunctionSystem

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


def test_a_step_that_nobody_watches_calls_torch_itself() -> None:
    system = Looking()
    with system.open(WORKLOAD, Arm()) as run:
        run.step(0)
    assert system.seen == [([], [])]


def test_what_a_watch_counts_is_what_a_gpu_would_do() -> None:
    """A count of operations, and of waits, is of the step as a GPU executes it."""
    system = Looking()
    with system.open(WORKLOAD, Arm()) as run:
        assert not by_dispatch_mode(lambda: run.step(0), "cpu")
    assert system.seen == [([WithoutCpuChecks], [DispatchWatch])]
    assert by_dispatch_mode(lambda: nn.functional.one_hot(torch.arange(4), 4), "cpu").total() > 0


@pytest.mark.parametrize("classes", [4, -1])
def test_whoever_records_a_step_records_it_as_on_a_gpu(classes: int) -> None:
    """Steps that capture themselves record without `StepFunctionRun`; a number of classes that is read waits."""
    marked = torch.arange(4)
    traced = TracedStep(lambda: nn.functional.one_hot(marked, classes).float().sum(), dict)
    if classes < 0:
        with pytest.raises(HostSyncError):
            traced.record()
        return
    traced.record()
    marked.fill_(0)
    assert traced.replay().item() == 4.0

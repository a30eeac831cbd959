"""What torch cannot execute on fake tensors is executed on zeros, and named where nothing says whether it waits."""

from __future__ import annotations

import gc
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import run_fallback_kernel

from harness.execution.watchers.sync_detectors import FakePassError, by_fake_pass
from harness.system.replay import fake_step
from harness.system.replay.fake_step import FakeStepMode
from harness.system.replay.traced import HostSyncError, NotTraceableError, TracedStep


@torch.library.custom_op("strangers::doubled", mutates_args=())
def doubled(values: Tensor) -> Tensor:
    if values.dim() == 0:
        raise RuntimeError("one value is no row")
    return values * 2


def step_of(weight: Tensor) -> TracedStep:
    def body() -> Tensor:
        weight.mul_(2)
        total: Tensor = doubled(weight).sum()
        return total

    return TracedStep(body, lambda: {"weight": weight})


def test_a_custom_operator_is_recorded_and_named_as_unseen() -> None:
    weight = torch.tensor([1.0, 2.0])
    step = step_of(weight)
    assert [float(step.replay()) for _ in range(3)] == [12.0, 24.0, 48.0]
    assert (step.unseen_operators, step.fake_pass_clean) == (["strangers::doubled"], None)


def test_a_step_whose_custom_operator_has_no_fake_kernel_is_not_traceable() -> None:
    with pytest.raises(NotTraceableError, match="There was no fake impl registered"):
        step_of(torch.ones(())).record()


def test_a_fake_pass_keeps_objects_frozen_for_the_garbage_collector() -> None:
    """Each arm ends with a garbage collection.

    If objects were not frozen, it would search all of torch for half a second.
    """
    gc.freeze()
    frozen = gc.get_freeze_count()
    ones = torch.ones(2)
    TracedStep(ones.sum, dict).record()
    with pytest.raises(HostSyncError):
        TracedStep(lambda: ones * ones.sum().item(), dict).record()
    assert gc.get_freeze_count() > frozen * 0.9  # what dies leaves
    assert gc.isenabled()


def test_an_operator_of_torch_that_exists_only_for_other_devices_is_not_reported_as_unseen() -> None:
    rows, weights, ends = torch.ones(4, 8), torch.ones(2, 8, 8), torch.tensor([2, 4], dtype=torch.int32)
    expected = torch._grouped_mm(rows, weights, ends)
    with FakeStepMode() as mode:
        found = torch._grouped_mm(rows, weights, ends)
    assert (found.shape, found.dtype, mode.unseen) == (expected.shape, expected.dtype, [])


def test_a_fake_pass_that_cannot_run_a_custom_operator_raises_an_error() -> None:
    weight = torch.ones(2)
    with pytest.raises(FakePassError, match="RuntimeError: There was no fake impl registered"):
        by_fake_pass(lambda: doubled(weight), "cpu")
    assert by_fake_pass(lambda: doubled(weight).sum().item(), "cpu").total() == 1


def test_fallback_kernels_are_executed_only_on_host_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    executed = mock.Mock(side_effect=run_fallback_kernel)
    monkeypatch.setattr(fake_step, "run_fallback_kernel", executed)
    with FakeStepMode(), pytest.raises(RuntimeError, match="There was no fake impl registered"):
        doubled(torch.empty(2, device="cuda"))
    assert executed.call_count == 0
    value = torch.empty(2)
    with FakeStepMode():
        doubled(value)
    assert executed.call_count == 1


@pytest.mark.parametrize(("drawn", "replaced", "waits"), [(1, False, True), (1, True, True), (2, True, False)])
def test_a_random_draw_that_reads_its_probabilities_is_a_sync(drawn: int, replaced: bool, waits: bool) -> None:
    """torch marks this operator with no tag, and on a GPU a capture of the operator fails."""
    chances = torch.ones(2, 3)

    def body() -> Tensor:
        return torch.multinomial(chances.mul_(1), drawn, replacement=replaced).float().sum()

    step = TracedStep(body, lambda: {"chances": chances})
    if waits:
        with pytest.raises(HostSyncError, match="multinomial"):
            step.record()
        assert by_fake_pass(lambda: (body(), body()), "cpu").total() == 2
    else:
        step.record()

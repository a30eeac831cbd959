"""On a machine without CUDA every way into a CUDA graph is a clear error."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from harness.devices.graphs import CaptureMode, CudaGraph, CudaGraphError, MemPoolId, capture, graph_pool_handle
from harness.system.replay.captured_step import CapturedStep, CaptureFailedError

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="shows what a machine without CUDA says")


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(CudaGraph, id="graph"),
        pytest.param(graph_pool_handle, id="pool"),
        pytest.param(lambda: capture(1, None, lambda: None), id="capture"),
        pytest.param(lambda: CapturedStep(lambda: None, dict), id="step"),
    ],
)
def test_a_cuda_graph_without_cuda_reports_the_missing_device_and_the_alternative(use: Callable[[], object]) -> None:
    with pytest.raises(CudaGraphError) as caught:
        use()
    assert "CUDA graphs need a CUDA device" in str(caught.value)
    assert "use the traced replay" in str(caught.value)


def test_capture_modes_and_pool_ids_are_plain_values_without_cuda() -> None:
    assert [mode.value for mode in CaptureMode] == ["global", "thread_local", "relaxed"]
    assert MemPoolId(1, 2) == MemPoolId(1, 2) != MemPoolId(2, 1)


def test_a_failed_capture_gives_its_reason_and_place() -> None:
    def fails() -> None:
        raise ZeroDivisionError("in the step\nand more")

    with pytest.raises(ZeroDivisionError) as caught:
        fails()
    error = CaptureFailedError("the capture", caught.value)
    assert error.reason == (
        'ZeroDivisionError: in the step, in fails `raise ZeroDivisionError("in the step\\nand more")`'
    )
    assert "test_graph_without_cuda.py:" in str(error)

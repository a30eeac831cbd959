"""The harness's own count of captures that begin, of either mechanism, and none of it left behind."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from harness.runners.capture_attempts import CaptureAttempts
from harness.system.replay.traced import HostSyncError, TracedStep


def waiting_step() -> TracedStep:
    value = torch.ones(2)

    def body() -> Tensor:
        return value * value.sum().item()

    return TracedStep(body, lambda: {"value": value})


def test_a_traced_recording_that_fails_is_an_attempt_each_time() -> None:
    step = waiting_step()
    with CaptureAttempts() as attempts:
        for _ in range(2):
            with pytest.raises(HostSyncError):
                step.record()
    assert attempts.count == 2


def test_a_graph_of_torch_is_an_attempt_though_it_cannot_begin() -> None:
    """Without a graph it raises, on any machine."""
    with CaptureAttempts() as attempts, pytest.raises(TypeError):
        torch.cuda.CUDAGraph.capture_begin()  # type: ignore[call-arg]
    assert attempts.count == 1


def test_nothing_is_counted_after_the_block() -> None:
    begin, record = torch.cuda.CUDAGraph.capture_begin, TracedStep.record
    with CaptureAttempts() as attempts:
        pass
    assert attempts.count == 0
    assert (torch.cuda.CUDAGraph.capture_begin, TracedStep.record) == (begin, record)

"""The harness's own count of captures that begin, of either mechanism, how they fail, and none of it left behind."""

from __future__ import annotations

import gc
import weakref
from contextlib import suppress

import pytest
import torch
from torch import Tensor

from harness.execution.watchers.capture_attempts import CaptureAttempts
from harness.system.replay.traced import HostSyncError, TracedStep


def waiting_step() -> TracedStep:
    value = torch.ones(2)

    def body() -> Tensor:
        return value * value.sum().item()

    return TracedStep(body, lambda: {"value": value})


def test_each_failed_recording_of_operators_counts_as_a_capture_attempt() -> None:
    step = waiting_step()
    with CaptureAttempts() as attempts:
        for _ in range(2):
            with pytest.raises(HostSyncError):
                step.record()
    assert attempts.count == 2


def test_a_cuda_graph_that_cannot_begin_counts_as_a_capture_attempt() -> None:
    """`capture_begin` is called without a graph, so it raises an error on every machine."""
    with CaptureAttempts() as attempts, pytest.raises(TypeError):
        torch.cuda.CUDAGraph.capture_begin()  # type: ignore[call-arg]
    assert attempts.count == 1


def test_a_caught_capture_failure_is_recorded_with_the_users_line() -> None:
    step = waiting_step()
    with CaptureAttempts() as attempts, suppress(HostSyncError):
        step.record()
    (error,) = attempts.errors
    assert error.startswith("tests/harness/execution/test_capture_attempts.py:")
    assert "host sync by aten._local_scalar_dense" in error


def test_a_capture_error_reports_the_exception_of_the_captured_code() -> None:
    """An exception in a `with` block also ends the capture. Without a graph, ending the capture fails, too."""
    with CaptureAttempts() as attempts:
        with suppress(TypeError):
            torch.cuda.CUDAGraph.capture_begin()  # type: ignore[call-arg]
        try:
            raise ValueError("no room in the pool")  # noqa: TRY301 - as a library does
        except ValueError:
            with suppress(TypeError):
                torch.cuda.CUDAGraph.capture_end()  # type: ignore[call-arg]
    assert [error.rpartition("found ")[2].partition(", in ")[0] for error in attempts.errors[1:]] == [
        "ValueError: no room in the pool"
    ]


def test_an_exception_raised_before_a_capture_is_not_a_capture_error() -> None:
    """The code tries the capture within an `except` block, so an older exception is being handled."""
    with CaptureAttempts() as attempts:
        try:
            raise ValueError("something else")  # noqa: TRY301 - likewise
        except ValueError:
            with suppress(TypeError):
                torch.cuda.CUDAGraph.capture_begin()  # type: ignore[call-arg]
            with suppress(TypeError):
                torch.cuda.CUDAGraph.capture_end()  # type: ignore[call-arg]
    assert not [error for error in attempts.errors if "something else" in error]


def test_a_capture_attempt_after_the_watched_block_of_code_is_not_counted() -> None:
    methods = (torch.cuda.CUDAGraph.capture_begin, torch.cuda.CUDAGraph.capture_end, TracedStep.record)
    with CaptureAttempts() as attempts:
        pass
    assert attempts.count == 0
    assert (torch.cuda.CUDAGraph.capture_begin, torch.cuda.CUDAGraph.capture_end, TracedStep.record) == methods


def test_the_loss_returned_by_a_replay_is_released_with_its_recording() -> None:
    value = torch.ones(2)
    step = TracedStep(value.sum, lambda: {"value": value})
    with CaptureAttempts():
        loss = weakref.ref(step.replay())
        assert loss() is not None  # a replay that is left out returns it
        del step
        gc.collect()
        assert loss() is None

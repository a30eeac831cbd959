"""The CUDA graph API on a device: capture and replay, training in a graph, pools, reset, and clean failures."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from harness.devices.graphs import (
    CaptureMode,
    CudaGraph,
    CudaGraphError,
    MemPoolId,
    capture,
    graph_pool_handle,
    node_count,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def on_device(*shape: int, value: float = 1.0) -> Tensor:
    return torch.full(shape, value, device="cuda")


def test_copying_a_device_tensor_fills_the_target_tensor() -> None:
    target = on_device(3, 4, value=0.0)
    target.copy_(on_device(3, 4))
    assert target.tolist() == [[1.0] * 4] * 3


def test_capturing_executes_nothing_and_each_replay_executes_the_graph_once() -> None:
    a, b, c = on_device(4, 4), on_device(4, 4), on_device(4, 4, value=0.0)
    graph = capture(0, None, lambda: c.add_(a + b))
    assert c.sum().item() == 0.0
    graph.replay()
    assert c.tolist() == [[2.0] * 4] * 4
    a.fill_(10.0)  # the graph reads its buffers anew
    graph.replay()
    assert c.tolist() == [[13.0] * 4] * 4


@pytest.mark.parametrize("mode", list(CaptureMode))
def test_a_graph_can_be_captured_in_every_capture_mode(mode: CaptureMode) -> None:
    a, c = on_device(4), on_device(4, value=0.0)
    graph = capture(1, None, lambda: c.copy_(a * 3), mode)
    c.zero_()
    graph.replay()
    assert c.tolist() == [3.0] * 4


def test_a_captured_model_trains_like_the_uncaptured_model() -> None:
    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(1)
        model = nn.Linear(4, 2).cuda()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, capturable=True)
        optimizer._warned_capturable_if_run_uncaptured = True  # it warms up, and its twin runs, uncaptured
        return model, optimizer

    x, y = torch.randn(8, 4, device="cuda"), torch.randn(8, 2, device="cuda")

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    plain, captured = build(), build()
    graph = capture(3, None, lambda: step(*captured))
    for _ in range(5):
        graph.replay()
    for _ in range(8):  # three warm-up steps count, the capture does not
        step(*plain)
    for ours, theirs in zip(captured[0].parameters(), plain[0].parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_graphs_can_share_a_memory_pool_whose_handle_is_not_zero() -> None:
    pool = graph_pool_handle()
    assert pool != MemPoolId(0, 0)
    a, c, d = on_device(4), on_device(4, value=0.0), on_device(4, value=0.0)
    first = capture(1, pool, lambda: c.copy_(a + 1))
    second = capture(1, pool, lambda: d.copy_(c * 2))
    assert first.pool() == second.pool() == pool
    first.replay()
    second.replay()
    assert (c.tolist(), d.tolist()) == ([2.0] * 4, [4.0] * 4)


def test_a_reset_graph_can_be_captured_again() -> None:
    a, b, c = on_device(4), on_device(4), on_device(4, value=0.0)
    graph = capture(1, None, lambda: c.copy_(a + b))
    graph.replay()
    assert c.tolist() == [2.0] * 4
    with pytest.raises(CudaGraphError, match="captured once"):
        graph.capture_begin()
    graph.reset()
    with pytest.raises(CudaGraphError, match="must be captured before it is replayed"):
        graph.replay()
    graph.capture_begin()
    c.copy_(a * 3)
    graph.capture_end()
    graph.replay()
    assert c.tolist() == [3.0] * 4


def test_capturing_an_empty_graph_is_an_error_and_makes_the_previous_stream_current_again() -> None:
    graph, stream = CudaGraph(), torch.cuda.current_stream()
    graph.capture_begin()
    assert torch.cuda.current_stream() == graph.stream != stream
    with pytest.raises(CudaGraphError, match="empty graph"):
        graph.capture_end()
    assert torch.cuda.current_stream() == stream


def test_ending_a_capture_that_never_began_is_an_error() -> None:
    with pytest.raises(CudaGraphError, match="before it has begun"):
        CudaGraph().capture_end()


def test_an_exception_in_the_captured_code_ends_the_capture() -> None:
    a, c = on_device(4), on_device(4, value=0.0)
    graph = CudaGraph()
    with pytest.raises(ZeroDivisionError), graph.capturing():
        c.copy_(a + 1)
        _ = 1 / 0
    assert not torch.cuda.is_current_stream_capturing()
    with graph.capturing():
        c.copy_(a + 4)
    graph.replay()
    assert c.tolist() == [5.0] * 4


def test_the_raw_graph_has_the_nodes_that_were_captured() -> None:
    a, c = on_device(4), on_device(4, value=0.0)
    graph = capture(1, None, lambda: c.copy_((a + 1) * 2))
    assert node_count(graph.raw()) == 3
    assert graph.raw() != 0


SYNC_IN_CAPTURE = """
    import torch
    from harness.system.replay.captured_step import CaptureFailedError, CapturedStep

    weight, waits = torch.ones(4, device="cuda"), [True]

    def body():
        weight.mul_(2.0)
        if waits[0]:
            weight.sum().item()
        return weight.sum()

    torch.manual_seed(5)
    step = CapturedStep(body, lambda: {"weight": weight})
    try:
        step.capture()
    except CaptureFailedError as error:
        print("reason:", error.reason)
    assert weight.tolist() == [1.0] * 4, weight
    assert not torch.cuda.is_current_stream_capturing()
    assert torch.rand(3, device="cuda").shape == (3,)      # the generator is no longer capturing
    waits[0] = False
    again = CapturedStep(body, lambda: {"weight": weight})
    again.capture()
    assert float(again.replay()) == 8.0
    print("recovered")
"""


def test_a_sync_inside_a_capture_fails_and_the_process_continues() -> None:
    """The test starts its own process, because a failed capture leaves its memory pool behind."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SYNC_IN_CAPTURE)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
        timeout=300,
    )
    assert done.stdout.splitlines()[-1:] == ["recovered"], done.stderr
    assert "reason: " in done.stdout

"""Faults of capture and replay that need a GPU to break a claim: what each changes, on stand-ins."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any, cast
from weakref import WeakSet

import pytest

from reference_impl.cuda_graph import GraphKey
from reference_impl.faults import REPLAY, plant


class Buffer:
    """A tensor in name only: it can be watched for being kept alive."""


def test_the_wrong_batch_graph_fault_removes_only_the_shape_from_the_graph_key() -> None:
    key = GraphKey(4, 64, 16, "torch.bfloat16", "fused", "per_layer", "nf4", "dtype")
    capturing = cast("Any", SimpleNamespace(key=lambda: key))
    plant("wrong_batch_graph", REPLAY, capturing)
    assert capturing.key() == key._replace(batch_size=0, seq_len=0)


def test_the_growing_memory_fault_keeps_one_buffer_per_step() -> None:
    alive: WeakSet[Buffer] = WeakSet()

    def new_empty(elements: int) -> Buffer:
        assert elements == 4 * 2**20
        alive.add(buffer := Buffer())
        return buffer

    trainer = SimpleNamespace(trainable=SimpleNamespace(flat=SimpleNamespace(new_empty=new_empty)))
    capturing = cast("Any", SimpleNamespace(trainer=trainer, step=lambda index: 10 * index))
    plant("growing_memory", REPLAY, capturing)
    assert [capturing.step(index) for index in range(3)] == [0, 10, 20]
    gc.collect()
    assert len(alive) == 3


def test_the_leaking_recapture_fault_keeps_dropped_captures_in_new_pools(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("harness.devices.graphs.graph_pool_handle", lambda: "a new pool")
    capturing = cast("Any", SimpleNamespace(_pool="the old pool", _drop=None))
    plant("leaking_recapture", REPLAY, capturing)
    captured: WeakSet[Buffer] = WeakSet([dropped := Buffer()])
    capturing._drop(dropped)
    del dropped
    gc.collect()
    assert (capturing._pool, len(captured)) == ("a new pool", 1)


def test_the_unended_capture_fault_begins_a_capture_on_a_gpu_without_ending_it(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []

    class Graph:
        def __init__(self, stream: str) -> None:
            happened.append(f"graph on {stream}")

        def capture_begin(self, pool: str, mode: object) -> None:
            happened.append(f"begin in {pool}, {mode}")

    monkeypatch.setattr("harness.devices.graphs.CudaGraph", Graph)
    trainer = SimpleNamespace(forward_body=lambda: happened.append("forward"))
    capturing = cast("Any", SimpleNamespace(trainer=trainer, _stream="the stream", _pool="the pool"))
    plant("unended_capture", REPLAY, capturing)
    capturing._captured_on_gpu()
    assert happened == ["graph on the stream", "begin in the pool, thread_local", "forward"]

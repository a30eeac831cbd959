"""The device as the harness asks torch for it: without CUDA there is none, and with it each call is torch's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from harness.devices import device, device_memory
from harness.devices.device_memory import Growth

without_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="shows what a machine without CUDA does")


@without_cuda
def test_device_functions_without_cuda_do_nothing() -> None:
    device.synchronize()
    device.wait_for(torch.ones(1))
    device_memory.empty_cache()
    assert (device.has_cuda(), device.select(0), device.generators()) == (False, None, {})
    assert (device_memory.reserved_bytes(), device_memory.memory_sample(0)) == (0, None)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Calls of a CUDA that is there, in order."""
    made: list[str] = []

    def noted(name: str, answer: Callable[..., Any] = lambda *_: None) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            made.append(" ".join([name, *map(str, arguments)]))
            return answer(*arguments)

        return call

    monkeypatch.setattr(device, "has_cuda", lambda: True)
    monkeypatch.setattr(device, "_synchronize", noted("synchronize"))
    answers: dict[str, Callable[..., Any]] = {
        "is_initialized": lambda: True,
        "device_count": lambda: 2,
        "get_rng_state": lambda index: torch.tensor([index]),
    }
    for name in ("set_device", "set_rng_state", "empty_cache", "reset_peak_memory_stats", *answers):
        monkeypatch.setattr(torch.cuda, name, noted(name, answers.get(name, lambda *_: None)))
    return made


def test_a_rank_selects_and_synchronizes_its_own_cuda_device(calls: list[str]) -> None:
    assert device.select(1) == torch.device("cuda", 1)
    device.synchronize()
    assert calls == ["set_device cuda:1", "synchronize"]


def test_each_cuda_device_has_its_own_random_generator(calls: list[str]) -> None:
    found = device.generators()
    calls.clear()
    assert [int(get()) for get, _ in found.values()] == [0, 1]
    found["torch.cuda:1"][1](torch.tensor(7))
    assert (list(found), calls[-1]) == (["torch.cuda:0", "torch.cuda:1"], "set_rng_state tensor(7) 1")


def test_memory_growth_is_measured_from_an_empty_cache_and_counts_only_new_large_segments(
    calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments that existed before the measured work do not count, and neither do new segments of the small pool."""
    segments = [{"address": 1, "total_size": 20, "segment_type": "large"}]
    free = [1000, 900]
    stats = {"large_pool.current": 20, "large_pool.peak": 20, "small_pool.current": 2, "small_pool.peak": 2}

    def work() -> None:
        calls.append("work")
        stats.update({"large_pool.peak": 70, "small_pool.peak": 5, "all.current": 62})
        segments.append({"address": 2, "total_size": 40, "segment_type": "large"})
        segments.append({"address": 3, "total_size": 2, "segment_type": "small"})

    stats["all.current"] = 22
    monkeypatch.setattr(
        torch.cuda, "memory_stats", lambda: {f"reserved_bytes.{name}": size for name, size in stats.items()}
    )
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (free.pop(0), 2000))
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: list(segments))
    assert device_memory.growth(work) == Growth(large=50, small=3, reserved=40, taken=100, segments=[40])
    assert calls == ["synchronize", "empty_cache", "reset_peak_memory_stats", "work"]

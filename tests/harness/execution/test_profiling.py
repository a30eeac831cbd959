"""Each profile is shown a sync after its steps; what that sync did is no work of the steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from harness.devices import profiler as profiling
from harness.devices.profiler import (
    PLANTED,
    Watched,
    busy_seconds,
    device_work,
    graph_launches,
    launches_in,
    sees_sync,
    without_planted,
)
from harness.execution import rank_seat


class Event:
    """A raw event of Kineto, as far as it is read."""

    def __init__(
        self, name: str, start: int, duration: int, number: int = 0, *, device: str = "CPU", is_range: bool = False
    ) -> None:
        self._name, self._start, self._duration, self._number, self._device = name, start, duration, number, device
        self._range = is_range

    def name(self) -> str:
        return self._name

    def start_ns(self) -> int:
        return self._start

    def duration_ns(self) -> int:
        return self._duration

    def correlation_id(self) -> int:
        return self._number

    def device_type(self) -> str:
        return f"DeviceType.{self._device}"

    def is_user_annotation(self) -> bool:
        return self._range


STEP = [
    Event("cudaGraphLaunch", 10, 5, number=1),
    Event("gemm", 20, 30, number=1, device="CUDA"),
    Event("add", 55, 5, number=104, device="CUDA"),  # an operator of the planted range has its number
]
SYNC = [
    Event(PLANTED, 100, 100, is_range=True),
    Event("aten::sum", 105, 20, number=104),
    Event("cudaLaunchKernel", 110, 5, number=7),
    Event("sum", 120, 10, number=7, device="CUDA"),
    Event("cudaMemcpyAsync", 130, 5, number=8),
    Event("Memcpy DtoH (Device -> Pageable)", 140, 5, number=8, device="CUDA"),
    Event("cudaStreamSynchronize", 150, 5, number=9),
    Event(PLANTED, 120, 25, device="CUDA", is_range=True),
]


def test_a_planted_sync_is_recognized_and_not_counted() -> None:
    assert sees_sync([*STEP, *SYNC])
    rest = without_planted([*STEP, *SYNC])
    assert [event.name() for event in rest if event.device_type().endswith("CUDA") and event.name() != PLANTED] == [
        "gemm",
        "add",
    ]
    assert launches_in(rest) == 1
    assert busy_seconds(rest, ranks=1) == pytest.approx(35e-9)


def test_a_profiler_range_of_a_library_is_not_counted_as_a_kernel() -> None:
    step = [
        Event("harness.step", 0, 100, is_range=True),
        Event("Optimizer.step#AdamW.step", 60, 30, number=2, is_range=True),
        Event("cudaLaunchKernel", 65, 5, number=3),
        Event("adam", 70, 10, number=3, device="CUDA"),
        Event("Optimizer.step#AdamW.step", 70, 10, number=2, device="CUDA", is_range=True),
    ]
    work = device_work([*STEP, *step], 1, [])
    assert work.outside_kernel_seconds == pytest.approx(10e-9)
    assert [each.name for each in work.outside] == ["adam"]


def test_device_work_started_after_a_step_is_counted_separately() -> None:
    """In the test's events, an operator after the step has the same number as a call within the step."""
    events = [
        Event("harness.step", 0, 100, is_range=True),
        Event("cudaLaunchKernel", 5, 5, number=3),
        Event("copy", 10, 10, number=3, device="CUDA"),
        Event("harness.after_the_step", 50, 40, is_range=True),
        Event("aten::lerp_", 52, 5, number=3),
        Event("cudaLaunchKernel", 55, 5, number=4),
        Event("average", 95, 30, number=4, device="CUDA"),
    ]
    work = device_work([*STEP, *events], 1, [])
    assert work.outside_kernel_seconds == pytest.approx(10e-9)
    assert work.after_kernel_seconds == pytest.approx(30e-9)
    assert [each.name for each in work.outside] == ["copy"]


def test_host_work_after_a_step_does_not_count_to_the_step_even_if_the_device_still_computes() -> None:
    events = [
        Event("harness.step", 10, 20, is_range=True),
        Event("cudaGraphLaunch", 12, 5, number=1),
        Event("gemm", 20, 60, number=1, device="CUDA"),
        Event("harness.step", 20, 60, device="CUDA", is_range=True),  # as the device shows it
        Event("cudaLaunchKernel", 40, 5, number=2),  # the harness keeps the loss
        Event("copy", 85, 4, number=2, device="CUDA"),
    ]
    assert device_work(events, 1, []).outside == []


def test_a_graph_replayed_by_an_evaluation_is_not_a_launch_of_a_step() -> None:
    events = [
        *(Event("harness.step", start, 20, is_range=True) for start in (10, 100)),
        *(Event("cudaGraphLaunch", start + 2, 5, number=start) for start in (10, 50, 100)),
        *(Event("gemm", start + 10, 5, number=start, device="CUDA") for start in (10, 50, 100)),
    ]
    work = device_work(events, 2, [])
    assert [each.launches for each in work.launched] == [2]
    assert work.launched_seconds == pytest.approx(10e-9)
    assert work.outside == []


def test_a_copy_by_the_harness_is_not_attributed_to_an_operator_of_the_step() -> None:
    """The profiler numbers operators and calls separately, so an operator and a later call of the harness may have
    equal numbers.
    """
    events = [
        Event("harness.step", 10, 20, number=2, is_range=True),
        Event("aten::mul", 11, 1, number=3),
        Event("cudaLaunchKernel", 12, 1, number=1),
        Event("mul", 14, 6, number=1, device="CUDA"),
        Event("cudaLaunchKernel", 40, 5, number=2),
        Event("copy", 45, 4, number=2, device="CUDA"),
        Event("cudaMemcpyAsync", 50, 5, number=3),
        Event("Memcpy DtoD", 55, 4, number=3, device="CUDA"),
    ]
    assert [each.name for each in device_work(events, 1, []).outside] == ["mul"]


@pytest.mark.parametrize(
    "name",
    [
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclSymkDevKernel_AllGather_LL",
        "void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 16, 2>(c10::BFloat16**)",
        "void (anonymous namespace)::one_shot_all_reduce_kernel<float, 16, 2, false>(float**)",
        "void (anonymous namespace)::multimem_all_gather_kernel<16>(char*)",
        "void c10d::symmetric_memory::barrier_kernel(unsigned int**)",
    ],
)
def test_a_kernel_that_waits_for_other_ranks_is_not_counted_as_device_work(name: str) -> None:
    waits = Event(name, 60, 1000, device="CUDA")
    assert busy_seconds([*STEP, waits], ranks=2) == busy_seconds(STEP, ranks=2)
    assert busy_seconds([*STEP, waits], ranks=1) == pytest.approx(busy_seconds(STEP, ranks=1) + 1000e-9)


def test_a_fused_kernel_named_after_an_all_reduce_is_counted_as_device_work() -> None:
    local = Event("triton_poi_fused_all_reduce_wait_tensor_add_0", 60, 1000, device="CUDA")
    assert busy_seconds([*STEP, local], ranks=2) == pytest.approx(busy_seconds(STEP, ranks=2) + 1000e-9)


@pytest.mark.parametrize("gone", ["cudaStreamSynchronize", "CUDA", PLANTED])
def test_a_planted_sync_without_its_wait_its_work_or_its_range_counts_as_not_detected(gone: str) -> None:
    left = [event for event in SYNC if event.name() != gone and not event.device_type().endswith(gone)]
    assert not sees_sync([*STEP, *left])


@pytest.fixture
def profiles(monkeypatch: pytest.MonkeyPatch) -> list[list[Event]]:
    """The profiles that are taken, one after the other."""
    coming: list[list[Event]] = []

    @contextmanager
    def profiler() -> Iterator[Any]:
        events = coming.pop(0)
        yield SimpleNamespace(profiler=SimpleNamespace(kineto_results=SimpleNamespace(events=lambda: events)))

    monkeypatch.setattr(profiling, "profiler", profiler)
    monkeypatch.setattr(profiling, "planted_sync", lambda _device: None)
    return coming


def watch(profiles: list[list[Event]], *taken: list[Event], over: Callable[[], object] = lambda: None) -> Watched:
    watched = Watched()
    for events in taken:
        profiles.append(events)
        with graph_launches(watched, 1, ranks=rank_seat.ranks(), replays=True, over=over):
            pass
    return watched


def test_the_watch_of_device_work_counts_only_events_within_steps(profiles: list[list[Event]]) -> None:
    watched = watch(profiles, [*STEP, *SYNC], [*STEP, *SYNC])
    assert (watched.steps, watched.graph_launches, watched.sees_planted) == (2, 2, True)
    assert watched.device_seconds == pytest.approx(70e-9)


@pytest.mark.parametrize(("opened", "ranks", "seconds"), [(0, 2, 1035e-9), (1, 1, 1035e-9), (1, 2, 35e-9)])
def test_kernels_can_wait_for_other_ranks_only_if_an_open_arm_has_several_ranks(
    profiles: list[list[Event]], monkeypatch: pytest.MonkeyPatch, opened: int, ranks: int, seconds: float
) -> None:
    seat = rank_seat.Seat(0, 0, object(), lambda _: None, ranks=ranks, opened=opened)  # type: ignore[arg-type]
    monkeypatch.setattr(rank_seat, "_seat", seat)
    watched = watch(profiles, [*STEP, Event("my_barrier_kernel", 60, 1000, device="CUDA"), *SYNC])
    assert watched.device_seconds == pytest.approx(seconds)


@pytest.mark.parametrize("blind", [0, 1])
def test_one_empty_profile_is_enough_to_report_that_device_work_was_not_observed(
    profiles: list[list[Event]], blind: int
) -> None:
    taken = [[*STEP, *SYNC], [*STEP, *SYNC]]
    taken[blind] = []
    assert watch(profiles, *taken).sees_planted is False


def test_the_end_of_profiled_steps_is_announced_before_the_profile_is_read(
    profiles: list[list[Event]], monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    monkeypatch.setattr(profiling, "synchronize", lambda: order.append("synchronized"))

    def read(_profile: object) -> list[Event]:
        order.append("read")
        return []

    monkeypatch.setattr(profiling, "raw_events", read)
    watch(profiles, [], over=lambda: order.append("over"))
    assert order == ["synchronized", "over", "read"]

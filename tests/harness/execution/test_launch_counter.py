"""The counter of graph launches, with libcupti played by a stand-in: what it counts, and why it could not."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from typing import Any

import pytest

from harness.devices.launch_counter import LaunchCounter, mapped_cupti

DRIVER, RUNTIME = 1, 2
NAMES = {
    (DRIVER, 307): b"cuLaunchKernel",
    (DRIVER, 514): b"cuGraphLaunch",
    (DRIVER, 515): b"cuGraphLaunch_ptsz",
    (RUNTIME, 211): b"cudaLaunchKernel_v7000",
    (RUNTIME, 311): b"cudaGraphLaunch_v10000",
    (RUNTIME, 312): b"cudaGraphLaunch_ptsz_v10000",
}


class Function:
    """A function of a library: ctypes lets its signature be set."""

    argtypes: Any = None
    restype: Any = None

    def __init__(self, body: Callable[..., int]) -> None:
        self.body = body

    def __call__(self, *arguments: Any) -> int:
        return self.body(*arguments)


class Cupti:
    """Calls back at the begin and the end of each enabled call, in the domains that it is told to."""

    def __init__(self, *, subscribed: int = 0, names: dict[tuple[int, int], bytes] = NAMES) -> None:
        self.status, self.names = subscribed, names
        self.enabled: set[tuple[int, int]] = set()
        self.ever_enabled: set[tuple[int, int]] = set()
        self.blind: set[int] = set()
        self.subscriptions: list[str] = []
        self.cuptiSubscribe = Function(self._subscribe)
        self.cuptiEnableCallback = Function(self._enable)
        self.cuptiGetCallbackName = Function(self._name)
        self.cuptiUnsubscribe = Function(self._unsubscribe)

    def _subscribe(self, handle: Any, callback: Any, _user: None) -> int:
        if self.status == 0:
            handle._obj.value, self.callback = 77, callback
            self.subscriptions.append("subscribed")
        return self.status

    def _enable(self, on: int, handle: Any, domain: int, identifier: int) -> int:
        assert handle.value == 77
        if on:
            self.enabled.add((domain, identifier))
            self.ever_enabled.add((domain, identifier))
        else:
            self.enabled.discard((domain, identifier))
        return 0

    def _name(self, domain: int, identifier: int, name: Any) -> int:
        found = self.names.get((domain, identifier))
        name._obj.value = found
        return 7 if found is None else 0

    def _unsubscribe(self, handle: Any) -> int:
        assert handle.value == 77
        self.subscriptions.append("unsubscribed")
        self.enabled.clear()
        return 0

    def call(self, *calls: tuple[int, int]) -> None:
        """Nested calls: entered in their order, left in the opposite one."""
        sites = [ctypes.c_int(0), ctypes.c_int(1)]
        for site, order in zip(sites, (calls, calls[::-1]), strict=True):
            for domain, identifier in order:
                if (domain, identifier) in self.enabled and domain not in self.blind:
                    self.callback(None, domain, identifier, ctypes.addressof(site))

    def replay(self) -> None:
        """What a replay of torch does: the runtime's launch calls the driver's."""
        self.call((RUNTIME, 311), (DRIVER, 514))

    def raw_launch(self) -> None:
        """A library that calls the driver itself, by the other of its two names."""
        self.call((DRIVER, 515))


def test_runtime_and_driver_graph_launches_are_counted_once_each() -> None:
    cupti = Cupti()
    with LaunchCounter(cupti, cupti.replay) as counter:
        assert counter.count() is not None
        before = counter.count() or 0
        for _ in range(3):
            cupti.replay()
        cupti.raw_launch()
        cupti.call((RUNTIME, 211), (DRIVER, 307))
        assert (counter.count() or 0) - before == 4
    assert (counter.sees_planted, counter.failure) == (True, None)
    assert cupti.subscriptions == ["subscribed", "unsubscribed"]


def test_the_launch_counter_enables_only_graph_launches_of_one_domain() -> None:
    cupti = Cupti()
    with LaunchCounter(cupti, cupti.replay):
        assert cupti.enabled == {(DRIVER, 514), (DRIVER, 515)}
    assert cupti.ever_enabled == {(DRIVER, 514), (DRIVER, 515), (RUNTIME, 311), (RUNTIME, 312)}


def test_graph_launches_are_counted_by_the_runtime_if_the_driver_sends_no_callbacks() -> None:
    cupti = Cupti()
    cupti.blind = {DRIVER}
    with LaunchCounter(cupti, cupti.replay) as counter:
        before = counter.count() or 0
        cupti.replay()
        cupti.replay()
        assert (counter.count() or 0) - before == 2
        assert cupti.enabled == {(RUNTIME, 311), (RUNTIME, 312)}
    assert counter.sees_planted


def unable(library: Any, planted: Callable[[], object] = lambda: None) -> str:
    """Why a counter does not count."""
    with LaunchCounter(library, planted) as counter:
        assert counter.count() is None
    assert not counter.sees_planted
    assert counter.failure is not None
    return counter.failure


def test_without_the_cupti_library_no_graph_launch_is_counted() -> None:
    assert unable(None) == "no libcupti is loaded in this process"


def test_a_cupti_library_that_lacks_a_function_counts_no_graph_launch() -> None:
    cupti = Cupti()
    del cupti.cuptiEnableCallback
    assert unable(cupti) == "libcupti has no function cuptiEnableCallback"


def test_a_second_cupti_subscriber_is_reported_as_the_reason_for_not_counting() -> None:
    cupti = Cupti(subscribed=39)
    assert unable(cupti) == "CUPTI already has a subscriber (status 39): a profiler ran in this process"
    assert cupti.subscriptions == []


def test_an_unknown_cupti_error_is_reported_with_its_status() -> None:
    assert unable(Cupti(subscribed=999)) == "CUPTI's function cuptiSubscribe failed with status 999"


def test_the_launch_counter_reports_that_it_cannot_count_without_graph_launch_callbacks() -> None:
    cupti = Cupti(names={(DRIVER, 307): b"cuLaunchKernel"})
    assert unable(cupti, cupti.replay) == "this version of CUPTI has no callback for graph launches"
    assert cupti.subscriptions == ["subscribed", "unsubscribed"]


def test_the_launch_counter_reports_that_it_cannot_count_if_a_callback_cannot_be_enabled() -> None:
    cupti = Cupti()
    cupti.cuptiEnableCallback = Function(lambda *_: 5)
    assert unable(cupti, cupti.replay) == "cuptiEnableCallback(1) failed with status 5 for callback 514 of domain 1"
    assert cupti.subscriptions == ["subscribed", "unsubscribed"]


def test_a_planted_graph_launch_that_the_counter_misses_is_reported() -> None:
    cupti = Cupti()
    assert unable(cupti, lambda: None) == (
        "the harness launched a graph once to test the counter, but the driver's callback saw 0 launches and the "
        "runtime's callback saw 0"
    )
    assert cupti.subscriptions == ["subscribed", "unsubscribed"]


def test_a_launch_counter_that_stops_counting_during_the_timing_reports_a_failure() -> None:
    cupti = Cupti()
    with LaunchCounter(cupti, cupti.replay) as counter:
        cupti.blind = {DRIVER}
    assert not counter.sees_planted
    assert counter.failure == "the counter saw a planted graph launch before the timed blocks, but none after them"


def test_an_exception_within_a_launch_counter_removes_its_subscriber() -> None:
    cupti = Cupti()
    with pytest.raises(RuntimeError, match="a step failed"), LaunchCounter(cupti, cupti.replay):
        raise RuntimeError("a step failed")
    assert cupti.subscriptions == ["subscribed", "unsubscribed"]


def test_a_planted_launch_that_raises_leaves_no_subscriber() -> None:
    cupti = Cupti()

    def broken() -> None:
        raise RuntimeError("the device is lost")

    with pytest.raises(RuntimeError, match="the device is lost"), LaunchCounter(cupti, broken):
        pass
    assert cupti.subscriptions == ["subscribed", "unsubscribed"]


def test_the_launch_counter_uses_functions_saved_before_a_system_replaces_them() -> None:
    cupti = Cupti()
    counter = LaunchCounter(cupti, cupti.replay)
    cupti.cuptiSubscribe = Function(lambda *_: 1)
    with counter:
        cupti.replay()
        assert counter.count() == 2
    assert counter.failure is None


MAPS = """\
7f10-7f20 r--p 00000000 08:01 1 /usr/lib/libcuda.so.1
7f20-7f30 r-xp 00000000 08:01 2 /opt/a folder/nvidia/cu13/lib/libcupti.so.13
7f30-7f40 r-xp 00000000 08:01 3 /opt/nvidia/lib/libcuptilike.so
"""


def test_the_loaded_cupti_library_is_found_in_the_memory_maps() -> None:
    assert mapped_cupti(MAPS) == "/opt/a folder/nvidia/cu13/lib/libcupti.so.13"
    assert mapped_cupti(re.sub("libcupti.so.13", "libother.so", MAPS)) is None

"""The cache on stand-in devices: what it refuses, that it compiles and loads once, and what its ledger says."""

from __future__ import annotations

import dataclasses
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.system.protocol import Kernel
from reference_impl.kernel_cache import (
    Device,
    KernelCache,
    KeyCollisionError,
    Ledger,
    PtxTargetError,
    cache_key,
    check_target,
    named_target,
)
from reference_impl.kernels import registry
from reference_impl.kernels.registry import KernelSpec

HOPPER = ".version 8.7\n.target sm_90a\n.address_size 64\n.visible .entry kernel() {}"


def spec(rows: int = 2) -> KernelSpec:
    found: KernelSpec = registry.load("softmax").backward_spec(rows, 8, "fp32")
    return found


class StandIn:
    """A device that hands out one PTX text and counts compiles and loads."""

    def __init__(self, ptx: str = HOPPER) -> None:
        self.ptx = ptx
        self.compiled: list[str] = []
        self.loaded: list[Any] = []

    def device(self, target: str = "sm_90") -> Device:
        return Device(target, self.compile, lambda _spec, compiled: self.loaded.append(compiled))

    def compile(self, spec: KernelSpec) -> Any:
        self.compiled.append(spec.key)
        return SimpleNamespace(asm={"ptx": self.ptx}, metadata=SimpleNamespace(shared=512, num_warps=4))


@pytest.mark.parametrize(
    ("ptx", "message"),
    [
        (HOPPER.replace(".target sm_90a", ""), "has no .target line"),
        (HOPPER.replace("sm_90a", "sm_80"), "is for sm_80, but the device is sm_90"),
        (HOPPER.replace("sm_90a", "sm_100a"), "is for sm_100a, but the device is sm_90"),
        (HOPPER.replace("sm_90a", "sm_ninety"), "cannot be read"),
        (HOPPER + "\n.target sm_80", "is for sm_80, but the device is sm_90"),
        ("// .target sm_90\n" + HOPPER.replace(".target sm_90a", ""), "has no .target line"),
    ],
)
def test_ptx_for_another_target_or_without_a_target_is_never_loaded(ptx: str, message: str) -> None:
    stand_in = StandIn(ptx)
    cache = KernelCache(stand_in.device())
    with pytest.raises(PtxTargetError, match=f"F-PTX-001: the PTX .*{message}"):
        cache.load(spec())
    with pytest.raises(PtxTargetError):
        cache.launch(spec(), ())
    assert stand_in.loaded == []
    assert cache.asked_for() == [spec()]


def test_ptx_for_the_target_of_the_device_can_be_loaded() -> None:
    check_target(Kernel("key", "name", HOPPER), "sm_90")
    check_target(Kernel("key", "name", HOPPER.replace("sm_90a", "compute_90")), "sm_90")


def test_a_kernel_is_compiled_and_loaded_once() -> None:
    stand_in = StandIn()
    cache = KernelCache(stand_in.device())
    for _ in range(2):
        cache.load(spec())
    kernel = cache.describe(spec())
    assert (len(stand_in.compiled), len(stand_in.loaded)) == (1, 1)
    assert kernel == Kernel(
        key="softmax.backward/2x8/fp32/-/w1s1@sm_90",
        name="_backward_kernel",
        ptx=HOPPER,
        load_route="cubin, cuModuleLoadData",
        shared_memory_bytes=512,
        threads=128,
    )


def test_a_kernel_under_the_key_of_a_different_kernel_is_refused() -> None:
    stand_in = StandIn()
    cache = KernelCache(stand_in.device())
    cache.load(spec(rows=8))
    wider: KernelSpec = registry.load("softmax").backward_spec(8, 16, "fp32")
    with pytest.raises(KeyCollisionError, match=r"share the key softmax\.backward/8x8/fp32/-/w1s1@sm_90"):
        cache.load(dataclasses.replace(wider, shape=(8, 8)))
    assert len(stand_in.loaded) == 1


def test_kernel_keys_contain_target_shape_dtype_epsilon_and_warps() -> None:
    rms_norm = registry.load("rms_norm")
    base: KernelSpec = rms_norm.forward_spec(6, 64, 1e-6, "bf16")
    specs = [
        base,
        rms_norm.forward_spec(7, 64, 1e-6, "bf16"),
        rms_norm.forward_spec(6, 64, 1e-6, "fp32"),
        rms_norm.forward_spec(6, 64, 1e-5, "bf16"),
        dataclasses.replace(base, num_warps=8),
        dataclasses.replace(base, num_stages=3),
    ]
    keys = {cache_key(one, target) for one in specs for target in ("sm_80", "sm_90")}
    assert len(keys) == 2 * len(specs)


def test_threads_that_request_the_same_kernel_compile_it_once() -> None:
    stand_in = StandIn()
    cache = KernelCache(stand_in.device())
    barrier = threading.Barrier(8)

    def work() -> None:
        barrier.wait()
        for rows in range(1, 6):
            cache.load(spec(rows))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(stand_in.compiled) == [f"softmax.backward/{rows}x8/fp32/-/w1s1" for rows in range(1, 6)]
    assert len(stand_in.loaded) == 5


def test_a_launch_of_a_kernel_that_is_not_loaded_loads_it_and_records_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    launches: list[str] = []
    monkeypatch.setattr(registry, "jit_launch", lambda spec, _arguments: launches.append(spec.key))
    stand_in = StandIn()
    cache = KernelCache(stand_in.device())
    p = torch.zeros(2, 8)
    with registry.launching_by(cache.launch):
        registry.load("softmax").backward(p, p)
        registry.load("softmax").backward(p, p)
    assert launches == ["softmax.backward/2x8/fp32/-/w1s1"] * 2
    assert len(stand_in.loaded) == 1
    assert [one.key for one in cache.asked_for()] == ["softmax.backward/2x8/fp32/-/w1s1"]


def test_the_ledger_separates_compiles_from_disk_hits_by_phase(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    wider = registry.load("softmax").backward_spec(2, 16, "fp32")
    for phase, event in (("prewarm", "compile"), ("train", "disk_hit")):
        cache = KernelCache(named_target("sm_90"))
        cache.ledger.watch()
        try:
            cache.ledger.phase(phase)
            cache.load(spec())
            registry.offline_compile(wider, 90)  # behind the cache's back
        finally:
            cache.ledger.unwatch()
        ledger = cache.ledger.as_evidence()
        assert [(one.key, one.event, one.phase) for one in ledger.events] == [
            ("softmax.backward/2x8/fp32/-/w1s1@sm_90", event, phase),
            ("unplanned/_backward_kernel", event, phase),
        ]
        assert 0 < ledger.phases[phase] <= ledger.events[0].seconds <= ledger.events[1].seconds
    registry.offline_compile(spec(rows=4), 90)
    assert len(cache.ledger.as_evidence().events) == 2


def test_a_second_key_for_a_loaded_module_is_recorded_as_loaded(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of rows only changes the grid, so Triton has one kernel for both keys and reports it once."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    stand_in = StandIn()
    cache = KernelCache(stand_in.device())
    cache.ledger.phase("prewarm")
    cache.load(spec(2))
    cache.load(spec(3))
    assert [(one.key, one.event) for one in cache.ledger.as_evidence().events] == [
        ("softmax.backward/2x8/fp32/-/w1s1@sm_90", "load"),
        ("softmax.backward/3x8/fp32/-/w1s1@sm_90", "load"),
    ]


def test_the_ledger_records_the_first_time_of_a_library_handle_and_kernel_loads() -> None:
    ledger = Ledger()
    ledger.handle("cublas")
    first = ledger.as_evidence().handles["cublas"]
    ledger.handle("cublas")
    ledger.phase("train")
    ledger._loaded(None, None, "kernel", {}, "hash")
    seen = ledger.as_evidence()
    assert seen.handles == {"cublas": first}
    assert [(one.key, one.event, one.phase) for one in seen.events] == [("unplanned/kernel", "load", "train")]


def test_two_watching_ledgers_both_record_a_kernel_event(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    ledgers = [Ledger(), Ledger()]
    for ledger in ledgers:
        ledger.watch()
    try:
        registry.offline_compile(spec(), 90)
        ledgers[0].unwatch()
        registry.offline_compile(spec(), 90)
    finally:
        for ledger in ledgers:
            ledger.unwatch()
    assert [len(ledger.as_evidence().events) for ledger in ledgers] == [1, 2]


@pytest.mark.parametrize(
    ("target", "written"), [("sm_80", "sm_80"), ("sm_90", "sm_90a"), ("sm_100", "sm_100a"), ("sm_120", "sm_120a")]
)
def test_a_cache_for_a_named_target_compiles_for_that_target(target: str, written: str) -> None:
    cache = KernelCache(named_target(target))
    cache.load(spec())
    assert f"\n.target {written}\n" in cache.describe(spec()).ptx

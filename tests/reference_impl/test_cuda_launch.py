"""Launches of CUDA C++ on a driver that stands in: what it is given, what is kept between launches, what it refuses."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cuda.bindings import driver
from scaled_copy import SHARED_MEMORY, scaled_copy_spec
from torch import Tensor

from reference_impl.kernel_cache import Device, KernelCache
from reference_impl.kernels import cuda_launch, cuda_source, registry
from reference_impl.kernels.nvrtc import CudaSourceError
from reference_impl.kernels.spec import KernelSpec

SUCCESS, REFUSED = driver.CUresult.CUDA_SUCCESS, driver.CUresult.CUDA_ERROR_INVALID_VALUE
MODULE, FUNCTION = 7, 9
LIBRARY = ctypes.CDLL


def read_attribute(attribute: Any) -> tuple[str, Any]:
    name, value = attribute.id.name.removeprefix("CU_LAUNCH_ATTRIBUTE_"), attribute.value
    if name == "CLUSTER_DIMENSION":
        return name, (value.clusterDim.x, value.clusterDim.y, value.clusterDim.z)
    assert name == "PROGRAMMATIC_STREAM_SERIALIZATION"
    return name, value.programmaticStreamSerializationAllowed


EARLY = ("PROGRAMMATIC_STREAM_SERIALIZATION", 1)


class StandIn:
    """A driver that loads anything and writes down what it is called with."""

    def __init__(self) -> None:
        self.stream = 0
        self.answer = SUCCESS
        self.encode_answer = 0
        self.maps: list[dict[str, Any]] = []
        self.launches: list[dict[str, Any]] = []
        self.attributes: list[int] = []
        self.modules: list[bytes] = []

    def load(self, cubin: bytes) -> tuple[object, int]:
        self.modules.append(cubin)
        return self.answer, MODULE

    def set_attribute(self, _function: int, _attribute: object, value: int) -> tuple[object]:
        self.attributes.append(value)
        return (SUCCESS,)

    def encode(self, place: Any, element: int, rank: int, address: Any, *form: Any) -> int:
        sizes, strides, box, steps, interleave, swizzle, promotion, _fill = form
        ctypes.memset(place.value, len(self.maps) + 1, 128)
        self.maps.append(
            {
                "place": place.value,
                "element": driver.CUtensorMapDataType(element).name.rpartition("_")[2],
                "address": address.value,
                "sizes": [*sizes],
                "strides": [*strides][: rank - 1],
                "box": [*box],
                "rest": ([*steps], interleave, driver.CUtensorMapSwizzle(swizzle).name.rpartition("_")[2]),
                "promotion": driver.CUtensorMapL2promotion(promotion).name.rpartition("_")[2],
            }
        )
        return self.encode_answer

    def library(self, name: str, *given: Any, **named: Any) -> Any:
        """The driver's, and any other as it is."""
        if name == "libcuda.so.1":
            return SimpleNamespace(cuTensorMapEncodeTiled=self.encode)
        return LIBRARY(name, *given, **named)

    def launch(self, configuration: Any, function: int, parameters: int, extra: int) -> tuple[object]:
        places = (ctypes.c_void_p * 3).from_address(parameters)
        attributes = [read_attribute(attribute) for attribute in configuration.attrs[: configuration.numAttrs]]
        self.launches.append(
            {
                "grid": (configuration.gridDimX, configuration.gridDimY, configuration.gridDimZ),
                "block": (configuration.blockDimX, configuration.blockDimY, configuration.blockDimZ),
                "shared": configuration.sharedMemBytes,
                "stream": int(configuration.hStream),
                "attributes": attributes,
                "function": (function, extra),
                "map": (places[0], ctypes.string_at(places[0] or 0, 128)),
                "addresses": [ctypes.c_uint64.from_address(place or 0).value for place in places[1:]],
            }
        )
        return (self.answer,)


@pytest.fixture
def stand_in(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    found = StandIn()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cuda_source, "_on_devices", {})
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _device: found.stream, raising=False)
    monkeypatch.setattr(ctypes, "CDLL", found.library)
    calls: dict[str, Callable[..., Any]] = {
        "cuCtxGetCurrent": lambda: (SUCCESS, 5),
        "cuModuleLoadData": found.load,
        "cuModuleGetFunction": lambda *_: (SUCCESS, FUNCTION),
        "cuFuncSetAttribute": found.set_attribute,
        "cuLaunchKernelEx": found.launch,
    }
    for name, call in calls.items():
        monkeypatch.setattr(driver, name, call)
    return found


def tensors(spec: KernelSpec) -> tuple[Tensor, Tensor, Tensor]:
    return torch.zeros(spec.shape), torch.zeros(spec.shape), torch.zeros(1, dtype=torch.int32)


def test_a_cuda_launch_passes_the_grid_and_tensor_maps_of_its_spec_to_the_driver(stand_in: StandIn) -> None:
    spec = scaled_copy_spec(100, 36, cluster=2, num_warps=3)
    x, out, blocks = tensors(spec)
    stand_in.stream = 77
    registry.launch(spec, x, out, blocks)
    [launch], [encoded] = stand_in.launches, stand_in.maps
    assert launch == {
        "grid": (2, 13, 1),
        "block": (96, 1, 1),
        "shared": SHARED_MEMORY,
        "stream": 77,
        "attributes": [EARLY, ("CLUSTER_DIMENSION", (2, 1, 1))],
        "function": (FUNCTION, 0),
        "map": (encoded["place"], b"\1" * 128),
        "addresses": [out.data_ptr(), blocks.data_ptr()],
    }
    assert encoded["place"] % 64 == 0
    del encoded["place"]
    assert encoded == {
        "element": "FLOAT32",
        "address": x.data_ptr(),
        "sizes": [36, 100],
        "strides": [36 * 4],
        "box": [32, 8],
        "rest": ([1, 1], 0, "128B"),
        "promotion": "128B",
    }
    assert (stand_in.attributes, len(stand_in.modules)) == ([SHARED_MEMORY], 1)


def test_a_kernel_without_clusters_has_only_the_early_start_attribute(stand_in: StandIn) -> None:
    spec = scaled_copy_spec(100, 36)
    registry.launch(spec, *tensors(spec))
    assert stand_in.launches[0]["attributes"] == [EARLY]


def test_launching_the_same_tensors_again_reuses_their_tensor_maps_and_uses_the_current_stream(
    stand_in: StandIn,
) -> None:
    spec = scaled_copy_spec(100, 36)
    first, second = tensors(spec), tensors(spec)
    for stream, given in ((1, first), (2, first), (1, second), (2, first)):
        stand_in.stream = stream
        registry.launch(spec, *given)
    assert [encoded["address"] for encoded in stand_in.maps] == [first[0].data_ptr(), second[0].data_ptr()]
    assert [launch["stream"] for launch in stand_in.launches] == [1, 2, 1, 2]
    assert [launch["map"][1][0] for launch in stand_in.launches] == [1, 1, 2, 1]
    assert len(stand_in.modules) == 1


def test_the_launch_parameter_cache_drops_its_oldest_entries_beyond_its_limit(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_launch, "_KEPT", 2)
    spec = scaled_copy_spec(100, 36)
    sets = [tensors(spec) for _ in range(3)]
    for place in (0, 1, 2, 1, 2, 0):
        registry.launch(spec, *sets[place])
    assert [encoded["address"] for encoded in stand_in.maps] == [sets[place][0].data_ptr() for place in (0, 1, 2, 0)]


def test_launches_with_different_grids_share_a_module_but_constants_of_another_type_need_another_kernel(
    stand_in: StandIn,
) -> None:
    spec = scaled_copy_spec(100, 36)
    for other in (spec, replace(spec, grid=(4, 13)), replace(spec, constexprs={**spec.constexprs, "BOX_ROWS": 8.0})):
        registry.launch(other, *tensors(spec))
    assert len(stand_in.modules) == 2


def test_the_ledger_records_kernel_loads_made_through_and_outside_of_the_cache(stand_in: StandIn) -> None:
    cache = KernelCache(Device("sm_90", registry.compile_for_device, registry.load_compiled))
    planned, unplanned = scaled_copy_spec(100, 36), scaled_copy_spec(8, 36)
    cache.ledger.watch()
    try:
        cache.ledger.phase("prewarm")
        cache.load(planned)
        cache.ledger.phase("train")
        with registry.launching_by(cache.launch):
            registry.launch(planned, *tensors(planned))
        registry.launch(unplanned, *tensors(unplanned))
    finally:
        cache.ledger.unwatch()
    assert [(one.key.partition("/")[0], one.event, one.phase) for one in cache.ledger.as_evidence().events] == [
        ("scaled_copy", "compile", "prewarm"),
        ("scaled_copy", "load", "prewarm"),
        ("unplanned", "compile", "train"),
        ("unplanned", "load", "train"),
    ]
    assert len(stand_in.launches) == 2


def test_a_kernel_refused_by_the_driver_is_named_in_the_error(stand_in: StandIn) -> None:
    spec = scaled_copy_spec(100, 36)
    stand_in.answer = REFUSED
    with pytest.raises(CudaSourceError, match=r"^scaled_copy: cuModuleLoadData succeeds; found CUDA_ERROR_INV"):
        registry.launch(spec, *tensors(spec))
    stand_in.answer, stand_in.encode_answer = SUCCESS, int(REFUSED)
    with pytest.raises(CudaSourceError, match=r"scaled_copy/100x36/.*: x: cuTensorMapEncodeTiled succeeds; found CUD"):
        registry.launch(spec, *tensors(spec))
    stand_in.answer, stand_in.encode_answer = REFUSED, 0
    with pytest.raises(CudaSourceError, match=r"scaled_copy/100x36/.*: cuLaunchKernelEx succeeds; .* or prewarm"):
        registry.launch(spec, *tensors(spec))


def test_a_thread_without_a_cuda_context_gets_the_context_of_the_device(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    current: list[object] = []

    def set_current(context: object) -> tuple[object]:
        current.append(context)
        return (SUCCESS,)

    monkeypatch.setattr(driver, "cuCtxGetCurrent", lambda: (SUCCESS, 0))
    monkeypatch.setattr(driver, "cuDeviceGet", lambda index: (SUCCESS, f"device {index}"))
    monkeypatch.setattr(driver, "cuDevicePrimaryCtxRetain", lambda device: (SUCCESS, f"context of {device}"))
    monkeypatch.setattr(driver, "cuCtxSetCurrent", set_current)
    spec = scaled_copy_spec(100, 36)
    registry.launch(spec, *tensors(spec))
    assert current == ["context of device 0"]

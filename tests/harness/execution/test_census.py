"""What of the census can be shown without a GPU: names of node types, and arguments read from a kernel's table."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest
from cuda.bindings import driver, runtime

from harness.devices.graphs import CensusError, _checked, _pointer_arguments, _type_name, clipped_by


@pytest.mark.parametrize(
    ("kind", "name"),
    [("Kernel", "kernel"), ("MemAlloc", "mem_alloc"), ("Memcpy", "memcpy"), ("Host", "host"), ("Graph", "graph")],
)
def test_graph_node_types_have_the_names_of_cuda(kind: str, name: str) -> None:
    assert _type_name(getattr(runtime.cudaGraphNodeType, f"cudaGraphNodeType{kind}")) == name


def test_clipped_tensors_are_counted_from_the_arguments_of_a_known_clip_kernel() -> None:
    tables = {0x1000: 168, 0x2000: 3}
    assert clipped_by(tables, [7, 0x1000, 0x2000]) == 168
    assert clipped_by(tables, [7, 8]) == 0
    assert clipped_by({}, [0x1000]) == 0


@pytest.mark.parametrize("handle", ["func", "kern"])
def test_kernel_arguments_of_eight_bytes_are_read_from_the_table_of_arguments(
    monkeypatch: pytest.MonkeyPatch, handle: str
) -> None:
    sizes = [8, 4, 8]
    values = [ctypes.c_uint64(0x1234), ctypes.c_uint32(77), ctypes.c_uint64(0xABCDEF)]
    table = (ctypes.c_uint64 * 3)(*(ctypes.addressof(value) for value in values))

    def info(_: object, index: int) -> tuple[int, ...]:
        return (0, 8 * index, sizes[index]) if index < len(sizes) else (1, 0, 0)

    def wrong(_: object, index: int) -> tuple[int, ...]:
        return (1, 0, 0)

    monkeypatch.setattr(driver, "cuFuncGetParamInfo", info if handle == "func" else wrong)
    monkeypatch.setattr(driver, "cuKernelGetParamInfo", info if handle == "kern" else wrong)
    parameters = SimpleNamespace(func=int(handle == "func"), kern=1, kernelParams=ctypes.addressof(table))
    assert _pointer_arguments(parameters) == [0x1234, 0xABCDEF]


def test_a_call_refused_by_cuda_is_an_error_that_names_the_call() -> None:
    with pytest.raises(CensusError, match="cudaGraphGetNodes"):
        _checked((runtime.cudaError_t.cudaErrorInvalidValue,), "cudaGraphGetNodes")

"""Count the nodes of a captured CUDA graph by cuda-bindings. torch is not involved."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.errors import HarnessError
from harness.evidence.arm_records import GraphNodes

_DEVICE_TO_HOST, _DEFAULT_KIND = 2, 4  # cudaMemcpyKind
_MAX_ARGUMENTS = 256
_HOST_MEMORY = (0, 1)  # cudaMemoryType: unregistered, host

ClipKernels = Mapping[str, Mapping[int, int]]


class CensusError(HarnessError):
    """The CUDA runtime refused to describe a graph."""


def census(label: str, graph: int, clip_kernels: ClipKernels | None = None) -> GraphNodes:
    """Count the nodes of the raw `cudaGraph_t` by type, kernels by name, and copies to the host, child graphs included.

    Types are CUDA's names in lower case (`kernel`, `memset`, `memcpy`, `host`, `mem_alloc`, …). `clip_kernels`
    is what `CountsClippedTensors` gives; without it the clipped tensors are not counted (None).
    """
    from cuda.bindings import runtime

    types: Counter[str] = Counter()
    kernels: Counter[str] = Counter()
    to_host = clipped = 0
    for node, kind in _nodes(graph):
        types[_type_name(kind)] += 1
        if kind == runtime.cudaGraphNodeType.cudaGraphNodeTypeKernel:
            parameters = _kernel_parameters(node)
            name = _kernel_name(parameters)
            kernels[name] += 1
            tables = (clip_kernels or {}).get(name, {})
            clipped += clipped_by(tables, _pointer_arguments(parameters) if tables else [])
        elif kind == runtime.cudaGraphNodeType.cudaGraphNodeTypeMemcpy:
            to_host += _copies_to_host(node)
    return GraphNodes(
        label=label,
        by_type=dict(types),
        kernels=dict(kernels),
        device_to_host_copies=to_host,
        clipped_tensors=None if clip_kernels is None else clipped,
    )


def clipped_by(tables: Mapping[int, int], arguments: Sequence[int]) -> int:
    """Return how many tensors one launch clips: those of the first table whose address is among its arguments."""
    return next((tables[argument] for argument in arguments if argument in tables), 0)


def node_count(graph: Any) -> int:
    """Return the number of nodes of the raw `cudaGraph_t`, a child graph as one."""
    from cuda.bindings import runtime

    return int(_checked(runtime.cudaGraphGetNodes(graph, 0), "cudaGraphGetNodes")[-1])


def _nodes(graph: Any) -> Iterator[tuple[Any, Any]]:
    from cuda.bindings import runtime

    count = node_count(graph)
    if count == 0:
        return
    nodes, *_ = _checked(runtime.cudaGraphGetNodes(graph, count), "cudaGraphGetNodes")
    for node in nodes[:count]:
        (kind,) = _checked(runtime.cudaGraphNodeGetType(node), "cudaGraphNodeGetType")
        yield node, kind
        if kind == runtime.cudaGraphNodeType.cudaGraphNodeTypeGraph:
            (child,) = _checked(runtime.cudaGraphChildGraphNodeGetGraph(node), "cudaGraphChildGraphNodeGetGraph")
            yield from _nodes(child)


def _type_name(kind: Any) -> str:
    """Return CUDA's name of a node type in lower case: `cudaGraphNodeTypeMemAlloc` -> `mem_alloc`."""
    name = str(kind.name).removeprefix("cudaGraphNodeType")
    return "".join(f"_{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(name))


def _kernel_parameters(node: Any) -> Any:
    from cuda.bindings import driver

    (parameters,) = _checked(driver.cuGraphKernelNodeGetParams(driver.CUgraphNode(int(node))), "kernel parameters")
    return parameters


def _kernel_name(parameters: Any) -> str:
    from cuda.bindings import driver

    for ask, handle in ((driver.cuFuncGetName, parameters.func), (driver.cuKernelGetName, parameters.kern)):
        if int(handle) == 0:
            continue
        error, name = ask(handle)
        if int(error) == 0 and name:
            return bytes(name).decode(errors="replace")
    return "?"


def _pointer_arguments(parameters: Any) -> list[int]:
    """Return a kernel node's 8-byte arguments in order. The kernel itself gives their sizes (driver 12.4 and later)."""
    from cuda.bindings import driver

    table = int(parameters.kernelParams)
    function = int(parameters.func) != 0
    ask = driver.cuFuncGetParamInfo if function else driver.cuKernelGetParamInfo
    handle = parameters.func if function else parameters.kern
    arguments: list[int] = []
    for index in range(_MAX_ARGUMENTS):
        error, *info = ask(handle, index)
        if table == 0 or int(error) != 0:  # beyond the last argument
            break
        address = ctypes.c_uint64.from_address(table + 8 * index).value
        if int(info[1]) == 8:
            arguments.append(ctypes.c_uint64.from_address(address).value)
    return arguments


def _copies_to_host(node: Any) -> bool:
    from cuda.bindings import runtime

    (copy,) = _checked(runtime.cudaGraphMemcpyNodeGetParams(node), "cudaGraphMemcpyNodeGetParams")
    if int(copy.kind) == _DEVICE_TO_HOST:
        return True
    if int(copy.kind) != _DEFAULT_KIND:
        return False
    (attributes,) = _checked(runtime.cudaPointerGetAttributes(copy.dstPtr.ptr), "cudaPointerGetAttributes")
    return int(attributes.type) in _HOST_MEMORY


def _checked(answer: tuple[Any, ...], call: str) -> tuple[Any, ...]:
    error, *values = answer
    if int(error) != 0:
        raise CensusError("the CUDA runtime must describe a captured graph", where=call, got=str(error))
    return tuple(values)

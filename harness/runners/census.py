"""Census of a captured CUDA graph's nodes, by cuda-bindings. torch is not involved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from harness.errors import HarnessError
from harness.evidence.model import GraphNodes

_DEVICE_TO_HOST, _DEFAULT_KIND = 2, 4  # cudaMemcpyKind
_HOST_MEMORY = (0, 1)  # cudaMemoryType: unregistered, host


class CensusError(HarnessError):
    """The CUDA runtime refused to describe a graph."""


def census(label: str, graph: int) -> GraphNodes:
    """Nodes of the raw `cudaGraph_t` by type, kernels by name, copies to the host; child graphs included.

    Types are CUDA's names in lower case (`kernel`, `memset`, `memcpy`, `host`, `mem_alloc`, …).
    """
    from cuda.bindings import runtime

    types: Counter[str] = Counter()
    kernels: Counter[str] = Counter()
    to_host = 0
    for node, kind in _nodes(graph):
        types[_type_name(kind)] += 1
        if kind == runtime.cudaGraphNodeType.cudaGraphNodeTypeKernel:
            kernels[_kernel_name(node)] += 1
        elif kind == runtime.cudaGraphNodeType.cudaGraphNodeTypeMemcpy:
            to_host += _copies_to_host(node)
    return GraphNodes(label=label, by_type=dict(types), kernels=dict(kernels), device_to_host_copies=to_host)


def node_count(graph: int) -> int:
    """Nodes of a raw `cudaGraph_t`, not counting those of child graphs."""
    from cuda.bindings import runtime

    return int(_checked(runtime.cudaGraphGetNodes(graph, 0), "cudaGraphGetNodes")[-1])


def _nodes(graph: Any) -> Iterator[tuple[Any, Any]]:
    from cuda.bindings import runtime

    count = int(_checked(runtime.cudaGraphGetNodes(graph, 0), "cudaGraphGetNodes")[-1])
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
    """`cudaGraphNodeTypeMemAlloc` -> `mem_alloc`."""
    name = str(kind.name).removeprefix("cudaGraphNodeType")
    return "".join(f"_{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(name))


def _kernel_name(node: Any) -> str:
    from cuda.bindings import driver

    (parameters,) = _checked(driver.cuGraphKernelNodeGetParams(driver.CUgraphNode(int(node))), "kernel parameters")
    for ask, handle in ((driver.cuFuncGetName, parameters.func), (driver.cuKernelGetName, parameters.kern)):
        if int(handle) == 0:
            continue
        error, name = ask(handle)
        if int(error) == 0 and name:
            return bytes(name).decode(errors="replace")
    return "?"


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

"""Capture a CUDA graph, replay it, and reset it for another capture. Several graphs can share a memory pool.

    graph = capture(3, None, step)      # three warm-up runs, then one recorded run; recording executes nothing
    graph.replay()

Unlike torch's graph class, this module captures on a separate stream, allocates the cuBLAS workspaces before the
capture, and ends the capture if the captured code raises an exception. It also raises an error for an empty graph, and
gives access to the raw CUDA graph, whose nodes can be counted.
"""

from __future__ import annotations

import ctypes
import gc
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch

from harness.devices.device import has_cuda
from harness.errors import HarnessError
from harness.evidence.arm_records import GraphNodes

# The functions below count the nodes of a captured CUDA graph. They use cuda-bindings and do not need torch.

_DEVICE_TO_HOST, _DEFAULT_KIND = 2, 4  # values of cudaMemcpyKind
_MAX_ARGUMENTS = 256
_HOST_MEMORY = (0, 1)  # values of cudaMemoryType: unregistered host memory, and registered host memory

ClipKernels = Mapping[str, Mapping[int, int]]


class CensusError(HarnessError):
    """The CUDA runtime could not describe a captured graph."""


def census(label: str, graph: int, clip_kernels: ClipKernels | None = None) -> GraphNodes:
    """Count the nodes of a raw `cudaGraph_t` and of its child graphs: all nodes by type, kernels by name, and copies to
    the host.

    Types are CUDA's names in lower case (`kernel`, `memset`, `memcpy`, `host`, `mem_alloc`, …). clip_kernels: the
    result of a system's `CountsClippedTensors`, or None if the tensors that the graph clips are not counted.
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
    """Return the number of tensors that one launch of a clipping kernel clips.

    tables: the address of each table of tensors to clip -> the number of tensors in the table. arguments: the arguments
    of the launch. The launch clips the tensors of the first table whose address is among the arguments.
    """
    return next((tables[argument] for argument in arguments if argument in tables), 0)


def node_count(graph: Any) -> int:
    """Return the number of nodes of the raw `cudaGraph_t`. A child graph is counted as one node."""
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
    """Return CUDA's name of a node type in lower case, such as `mem_alloc` for `cudaGraphNodeTypeMemAlloc`."""
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
    """Return the arguments of a kernel node that are 8 bytes long, in order. Sizes are known from driver 12.4 on."""
    from cuda.bindings import driver

    table = int(parameters.kernelParams)
    function = int(parameters.func) != 0
    ask = driver.cuFuncGetParamInfo if function else driver.cuKernelGetParamInfo
    handle = parameters.func if function else parameters.kern
    arguments: list[int] = []
    for index in range(_MAX_ARGUMENTS):
        error, *info = ask(handle, index)
        if table == 0 or int(error) != 0:  # the kernel has no argument with this index, so all arguments were read
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
        raise CensusError("the CUDA runtime could not describe a captured graph", where=call, got=str(error))
    return tuple(values)


_Graph: Any = torch.cuda.CUDAGraph
_capturing = torch.cuda.is_current_stream_capturing


class CudaGraphError(HarnessError):
    """A CUDA graph was used without CUDA, its methods were called in a wrong order, or its capture recorded no work."""


class CaptureMode(StrEnum):
    """The threads that may not make unsafe CUDA calls during a capture: all, only the capturing thread, or none."""

    GLOBAL = "global"
    THREAD_LOCAL = "thread_local"
    RELAXED = "relaxed"


@dataclass(frozen=True)
class MemPoolId:
    """A memory pool for allocations during captures. Graphs that share a pool must be replayed in the order in which
    they were captured."""

    hi: int
    lo: int


def graph_pool_handle() -> MemPoolId:
    """Return a new memory pool that several graphs may share. Raises `CudaGraphError` without CUDA."""
    require_cuda()
    return MemPoolId(*torch.cuda.graph_pool_handle())


def require_cuda() -> None:
    """Raise `CudaGraphError` with the reason if CUDA graphs cannot be used on this machine."""
    if has_cuda():
        return
    missing_cuda = "a torch built without CUDA" if torch.version.cuda is None else "no usable CUDA device"
    raise CudaGraphError(
        "CUDA graphs need a CUDA device", got=missing_cuda, remedy="use the traced replay on this machine"
    )


def new_stream() -> torch.Stream:
    """Return a new CUDA stream."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


def is_capturing() -> bool:
    """Return True if the current stream is being captured. The answer comes from torch's original function, because
    user code may have replaced this function in torch's module."""
    return has_cuda() and _capturing()


def nodes_captured_so_far() -> int | None:
    """Return the number of nodes that the current capture has recorded so far. Return None if no capture is active, or
    if the number is unknown."""
    if not is_capturing():
        return None
    with suppress(Exception):
        from cuda.bindings import runtime

        _, _, _, graph, *_ = runtime.cudaStreamGetCaptureInfo(torch.cuda.current_stream().cuda_stream)
        return node_count(graph)
    return None


Method = Callable[..., object]


@contextmanager
def watched_graphs(
    begin: Callable[[Method], Method], end: Callable[[Method], Method], replay: Callable[[Method], Method]
) -> Iterator[None]:
    """Within the `with` block, replace torch's methods that begin a capture, end a capture, and replay a CUDA graph.

    Each argument is a function that receives torch's method and returns the replacement. All libraries call the
    replacement, because they share torch's class.
    """
    watches = {"capture_begin": begin, "capture_end": end, "replay": replay}
    methods = {name: getattr(_Graph, name) for name in watches}
    for name, watch in watches.items():
        setattr(_Graph, name, watch(methods[name]))
    try:
        yield
    finally:
        for name, method in methods.items():
            setattr(_Graph, name, method)


@contextmanager
def answering_whether_captured(answer: Callable[[], bool]) -> Iterator[None]:
    """Within the `with` block, replace `torch.cuda.is_current_stream_capturing` by `answer` in all modules of torch."""
    modules: tuple[Any, ...] = (torch.cuda, torch.cuda.graphs)
    before = [module.is_current_stream_capturing for module in modules]
    try:
        for module in modules:
            module.is_current_stream_capturing = answer
        yield
    finally:
        for module, original in zip(modules, before, strict=True):
            module.is_current_stream_capturing = original


class CudaGraph:
    """One CUDA graph. Its capture uses `stream` (by default a new stream), and its replays use the current stream."""

    def __init__(self, stream: torch.Stream | None = None) -> None:
        require_cuda()
        self.stream = new_stream() if stream is None else stream
        self._graph: Any = None
        self._capturing: Any = None
        self._previous_stream: Any = None
        self._generator_state: Any = None

    def capture_begin(self, pool: MemPoolId | None = None, mode: CaptureMode = CaptureMode.RELAXED) -> None:
        """Start to record all work of this thread on the graph's stream, until `capture_end` is called. The graph's
        stream becomes the current stream."""
        if self._graph is not None or self._capturing is not None:
            raise CudaGraphError(
                "a graph can be captured only once", got="a captured graph", remedy="call reset() first"
            )
        self._previous_stream = torch.cuda.current_stream()
        bind_cublas(self.stream)
        torch.cuda.synchronize()
        gc.collect()  # if the collector freed another graph during the capture, the capture would fail
        # return torch's unused memory to the driver, because the graph's pool cannot use memory that torch keeps in its
        # cache
        torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        self._generator_state = _generator().clone_state()
        torch.cuda.set_stream(self.stream)  # type: ignore[arg-type]
        handle = {} if pool is None else {"pool": (pool.hi, pool.lo)}
        try:
            graph.capture_begin(**handle, capture_error_mode=mode.value)  # type: ignore[arg-type]
        except BaseException:
            torch.cuda.set_stream(self._previous_stream)
            raise
        self._capturing = graph

    def capture_end(self) -> None:
        """End the capture and make the graph executable. Raises `CudaGraphError` for an empty graph."""
        if self._capturing is None:
            raise CudaGraphError("a capture cannot end before it has begun", remedy="call capture_begin() first")
        graph, self._capturing = self._capturing, None
        try:
            with warnings.catch_warnings():
                # an empty graph raises an error below, so torch's warning is not needed
                warnings.filterwarnings("ignore", message="The CUDA Graph is empty")
                graph.capture_end()
        except BaseException:
            # After a failed capture, torch's generator stays in the mode for captures. If this mode were kept, drawing
            # a random number outside of a capture would raise an error.
            _generator().graphsafe_set_state(self._generator_state)
            raise
        finally:
            torch.cuda.set_stream(self._previous_stream)
        if node_count(graph.raw_cuda_graph()) == 0:
            graph.reset()
            raise CudaGraphError("the capture recorded no GPU work", got="an empty graph")
        graph.instantiate()
        self._graph = graph

    @contextmanager
    def capturing(self, pool: MemPoolId | None = None, mode: CaptureMode = CaptureMode.RELAXED) -> Iterator[None]:
        """Capture the body of a `with` statement. An exception in the body ends the capture and is raised again."""
        self.capture_begin(pool, mode)
        try:
            yield
        except BaseException:
            with suppress(Exception):  # the capture is already invalid, so ending it raises a second error
                self.capture_end()
            self.reset()
            raise
        self.capture_end()

    def replay(self) -> None:
        """Execute the captured graph once on the current stream."""
        self._captured().replay()

    def reset(self) -> None:
        """Discard the captured graph, so that another one can be captured. Without a captured graph, do nothing."""
        if self._graph is not None:
            torch.cuda.synchronize()  # wait for a replay that may still be running
            self._graph.reset()
            self._graph = None

    def pool(self) -> MemPoolId:
        """Return the memory pool in which this graph's tensors are allocated."""
        return MemPoolId(*self._captured().pool())

    def raw(self) -> int:
        """Return the raw `cudaGraph_t`, for functions that count its nodes. Do not use it after `reset`."""
        return int(self._captured().raw_cuda_graph())

    def _captured(self) -> Any:
        if self._graph is None:
            raise CudaGraphError("the graph must be captured before it is replayed or read", got="nothing captured")
        return self._graph


def capture(
    warmup: int, pool: MemPoolId | None, function: Callable[[], object], mode: CaptureMode = CaptureMode.RELAXED
) -> CudaGraph:
    """Run `function` `warmup` times, then capture it once, and return the graph.

    The capture executes nothing, but the warm-up runs do: the caller must undo their effect, or count them as steps.
    The warm-up runs use the stream of the capture, so that libraries prepare their state for this stream.
    """
    graph = CudaGraph()
    warm_up(graph.stream, function, warmup)
    with graph.capturing(pool, mode):
        function()
    return graph


def warm_up(stream: torch.Stream, function: Callable[[], object], times: int) -> None:
    """Run `function` `times` times on `stream`, after all work submitted so far. Wait until the runs are finished."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # type: ignore[arg-type]
        for _ in range(times):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()


def bind_cublas(stream: torch.Stream) -> None:
    """Make this thread's cuBLAS handle allocate its workspace for `stream` before a capture.

    If a workspace is allocated during a capture, its memory comes from the graph's pool. This allocation fails if the
    device's memory is nearly full (upstream's issue PMAT-063). In a step with autograd, the warm-up runs also allocate
    the workspace of autograd's thread for the same stream.
    """
    with torch.cuda.stream(stream), torch.no_grad():  # type: ignore[arg-type]
        x = torch.ones(16, 16, device=stream.device)
        torch.mm(x, x)
    stream.synchronize()


def _generator() -> Any:
    return torch.cuda.default_generators[torch.cuda.current_device()]

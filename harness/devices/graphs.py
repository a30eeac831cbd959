"""Capture, replay, reset and re-capture a CUDA graph, in memory pools that graphs can share.

    graph = capture(3, None, step)      # three warm-up runs, then one recorded; recording executes nothing
    graph.replay()

Everything a capture needs in addition to torch's own graph is here: a side stream, cuBLAS workspaces that exist before
it begins, an end even if the captured code raises, an error for an empty graph, and the raw handle for a census.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch

from harness.devices.census import node_count
from harness.devices.device import has_cuda
from harness.errors import HarnessError

_Graph: Any = torch.cuda.CUDAGraph
_capturing = torch.cuda.is_current_stream_capturing


class CudaGraphError(HarnessError):
    """A CUDA graph was used where there is none, out of order, or captured nothing."""


class CaptureMode(StrEnum):
    """What CUDA forbids while capturing: unsafe calls of any thread, of this thread, or none."""

    GLOBAL = "global"
    THREAD_LOCAL = "thread_local"
    RELAXED = "relaxed"


@dataclass(frozen=True)
class MemPoolId:
    """A memory pool for captured allocations. Graphs of one pool must be replayed in the order of their capture."""

    hi: int
    lo: int


def graph_pool_handle() -> MemPoolId:
    """Return a new pool that several graphs may share. Raises `CudaGraphError` without CUDA."""
    require_cuda()
    return MemPoolId(*torch.cuda.graph_pool_handle())


def require_cuda() -> None:
    """Raise `CudaGraphError`, with the reason, if CUDA graphs cannot exist here."""
    if has_cuda():
        return
    got = "a torch built without CUDA" if torch.version.cuda is None else "no usable CUDA device"
    raise CudaGraphError("CUDA graphs need a CUDA device", got=got, remedy="use the traced replay on this machine")


def new_stream() -> torch.Stream:
    """Return a stream next to the current one."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


def is_capturing() -> bool:
    """Return True if the current stream is being captured. It asks torch's own function, whatever stands in for it."""
    return has_cuda() and _capturing()


def nodes_captured_so_far() -> int | None:
    """Return how many nodes the capture of the current stream has; None outside of one, or where CUDA does not say."""
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
    """Replace the methods by which all code begins, ends and replays a CUDA graph, whichever library it uses.

    Each argument takes torch's method, and returns what is called instead of it within the block.
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
    """Let `answer` stand in for `torch.cuda.is_current_stream_capturing` within the block, wherever code finds it."""
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
    """One graph. Capture on `stream`, or on a long-lived one of its own; replay on whichever is current."""

    def __init__(self, stream: torch.Stream | None = None) -> None:
        require_cuda()
        self.stream = new_stream() if stream is None else stream
        self._graph: Any = None
        self._capturing: Any = None
        self._previous_stream: Any = None
        self._generator_state: Any = None

    def capture_begin(self, pool: MemPoolId | None = None, mode: CaptureMode = CaptureMode.RELAXED) -> None:
        """Record all work of this thread on the graph's stream, which becomes current, until `capture_end`."""
        if self._graph is not None or self._capturing is not None:
            raise CudaGraphError("a graph is captured once", got="a captured graph", remedy="call reset() first")
        self._previous_stream = torch.cuda.current_stream()
        bind_cublas(self.stream)
        torch.cuda.synchronize()
        gc.collect()  # a graph that dies during the capture would break it
        torch.cuda.empty_cache()  # the pool cannot use what the ordinary allocator has cached
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
        """End the capture and instantiate the graph. Raises `CudaGraphError` for an empty graph."""
        if self._capturing is None:
            raise CudaGraphError("a capture must have begun before it ends", remedy="call capture_begin() first")
        graph, self._capturing = self._capturing, None
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="The CUDA Graph is empty")  # an error below
                graph.capture_end()
        except BaseException:
            # torch leaves its generator in capturing mode after a failed capture: eager random numbers would raise
            _generator().graphsafe_set_state(self._generator_state)
            raise
        finally:
            torch.cuda.set_stream(self._previous_stream)
        if node_count(graph.raw_cuda_graph()) == 0:
            graph.reset()
            raise CudaGraphError("a captured graph must do some work", got="an empty graph")
        graph.instantiate()
        self._graph = graph

    @contextmanager
    def capturing(self, pool: MemPoolId | None = None, mode: CaptureMode = CaptureMode.RELAXED) -> Iterator[None]:
        """Capture the body of a `with`. An exception inside ends the capture, and is raised again."""
        self.capture_begin(pool, mode)
        try:
            yield
        except BaseException:
            with suppress(Exception):  # the capture is invalid, and ending it says so again
                self.capture_end()
            self.reset()
            raise
        self.capture_end()

    def replay(self) -> None:
        """Execute the graph once on the current stream."""
        self._captured().replay()

    def reset(self) -> None:
        """Drop what was captured, so that another capture may follow. Does nothing if nothing was captured."""
        if self._graph is not None:
            torch.cuda.synchronize()  # a replay may be under way
            self._graph.reset()
            self._graph = None

    def pool(self) -> MemPoolId:
        """Return the pool of this graph's memory."""
        return MemPoolId(*self._captured().pool())

    def raw(self) -> int:
        """Return the raw `cudaGraph_t`, for a census; valid until `reset`."""
        return int(self._captured().raw_cuda_graph())

    def _captured(self) -> Any:
        if self._graph is None:
            raise CudaGraphError("the graph must be captured first", got="nothing captured")
        return self._graph


def capture(
    warmup: int, pool: MemPoolId | None, function: Callable[[], object], mode: CaptureMode = CaptureMode.RELAXED
) -> CudaGraph:
    """Run `function` `warmup` times, then capture it once, and return the graph; capturing executes nothing.

    The warm-up runs are real: undo them, or count them as steps. They use the stream of the capture, so that
    libraries set up what they keep per stream.
    """
    graph = CudaGraph()
    warm_up(graph.stream, function, warmup)
    with graph.capturing(pool, mode):
        function()
    return graph


def warm_up(stream: torch.Stream, function: Callable[[], object], times: int) -> None:
    """Run `function` on `stream`, after everything enqueued so far, and wait for it."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # type: ignore[arg-type]
        for _ in range(times):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()


def bind_cublas(stream: torch.Stream) -> None:
    """Make this thread's cuBLAS handle allocate its workspace for `stream`.

    Allocated inside a capture it would live in the graph's pool, and fail with memory nearly full (PMAT-063). If a step
    uses autograd, the warm-up makes the workspace of autograd's thread, on the same stream.
    """
    with torch.cuda.stream(stream), torch.no_grad():  # type: ignore[arg-type]
        x = torch.ones(16, 16, device=stream.device)
        torch.mm(x, x)
    stream.synchronize()


def _generator() -> Any:
    return torch.cuda.default_generators[torch.cuda.current_device()]

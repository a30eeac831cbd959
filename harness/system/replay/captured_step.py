"""Capture a training step's body into CUDA graphs over static buffers, and replay the graphs.

A captured arm must start from the same state as the uncaptured arm. Therefore warm-up steps are undone. Capturing
executes nothing, so the first replay is step 0. After a failed capture, the state from before the capture is restored,
and the error gives the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from harness.devices.graphs import (
    CaptureMode,
    CudaGraph,
    MemPoolId,
    graph_pool_handle,
    new_stream,
    require_cuda,
    warm_up,
)
from harness.errors import HarnessError
from harness.system.replay.followed_numbers import HostNumber, can_follow, follow
from harness.system.replay.sites import called_at, of_traceback
from harness.system.replay.snapshots import HostChanges, KeptUp, keep_up
from harness.system.replay.state import State, StateGuard, StaticAddresses
from harness.system.replay.traced import preparing
from harness.system.users_code import text_of

Body = Callable[[], Tensor | None]


class CaptureFailedError(HarnessError):
    """The step could not be captured. The state was restored. reason: the error that CUDA or the step's body raised."""

    def __init__(self, stage: str, error: BaseException) -> None:
        place = of_traceback(error.__traceback__)
        message = (text_of(error).strip().splitlines() or [""])[0]
        self.reason = f"{type(error).__name__}: {message}{called_at(error)}"
        super().__init__(f"{stage} must succeed", where=f"{place.file}:{place.line}", got=self.reason)


class CapturedStep:
    """A training step, captured as one graph, or as several graphs that share a memory pool and are replayed in order.

    bodies: the step's body, or several bodies by label (`forward`, `backward`). The last tensor that they return is the
    0-d loss.

    state: returns tensors that the bodies change. Tensors that are reachable from `roots` need not be listed (see
    `StateGuard`).

    static: returns the buffers whose addresses the graphs contain.

    stream: the stream of the capture. It must outlive the graphs. Captures should share a stream, because cuBLAS keeps
    workspaces of 64 MiB for each new stream.

    outputs: called after the bodies are captured. It returns tensors, such as metrics, that each replay writes. These
    tensors are in `self.outputs`, and in the attributes in which the step itself keeps them.
    """

    def __init__(
        self,
        bodies: Body | Mapping[str, Body],
        state: State,
        static: State = dict,
        outputs: State = dict,
        *,
        roots: Sequence[object] = (),
        warmup: int = 3,
        pool: MemPoolId | None = None,
        mode: CaptureMode = CaptureMode.THREAD_LOCAL,
        stream: torch.Stream | None = None,
    ) -> None:
        require_cuda()
        self._bodies = {"step": bodies} if callable(bodies) else dict(bodies)
        self._state, self._roots, self._read_outputs = state, roots, outputs
        self.buffers = StaticAddresses(static)
        self._pool = graph_pool_handle() if pool is None else pool
        self._mode = mode
        self.stream = new_stream() if stream is None else stream
        self.warmup_steps = warmup
        self.replays = 0
        self._graphs: dict[str, CudaGraph] = {}
        self._loss: Tensor | None = None
        self.outputs: Mapping[str, Tensor] = {}
        self._kept: KeptUp = []
        self.host_changes: list[str] = []
        self.host_numbers: list[HostNumber] | None = None

    def capture(self) -> None:
        """Warm up, undo the warm-up, and capture. Raise `CaptureFailedError` if any of this fails."""
        try:
            with preparing():
                guard = self._warm_up()
        except Exception as error:
            raise CaptureFailedError("the warm-up before a capture", error) from error
        changes = HostChanges(self._roots, of_device=True)
        try:
            # Capture after the guard's `with` block has ended. Otherwise the guard's hook on optimizers would be
            # recorded.
            self._capture_bodies()
            self.outputs = dict(self._read_outputs())
            self._kept = changes.kept_up(self.outputs)
            self.host_changes = changes.found(self._kept)
            # Restore the values on the host. Otherwise the step's attributes would hold tensors whose memory later
            # replays overwrite.
            changes.restore()
        except Exception as error:
            self.release()
            guard.restore()
            raise CaptureFailedError("the capture", error) from error
        self.buffers.remember()

    def _warm_up(self) -> StateGuard:
        """Run the warm-up and undo it. Return the `StateGuard`, which still has the state from before the warm-up."""
        with StateGuard(self._state, self._roots) as guard:
            with guard.first_execution():
                warm_up(self.stream, self._run_bodies, min(1, self.warmup_steps))
            warm_up(self.stream, self._run_bodies, self.warmup_steps - 2)
            warm_up(self.stream, self._follow_numbers, min(1, self.warmup_steps - 1))
            guard.restore(keep_created=True)
        return guard

    def replay(self) -> Tensor:
        """Execute one step on the current stream without a host sync. Return a copy of the 0-d loss."""
        self.buffers.check()
        for graph in self._graphs.values():
            graph.replay()
        if self._loss is None:
            raise CaptureFailedError("a replay", RuntimeError("nothing is captured; call `capture` first"))
        keep_up(self._kept, self.outputs)
        self.replays += 1
        return self._loss.clone()

    def raw_graphs(self) -> dict[str, int]:
        """Return the raw `cudaGraph_t` handles by label, so that their nodes can be counted."""
        return {label: graph.raw() for label, graph in self._graphs.items()}

    def release(self) -> None:
        """Drop the graphs and the memory that they hold. The stream remains usable, because the caller owns it."""
        for graph in self._graphs.values():
            graph.reset()
        self._graphs.clear()
        self._loss, self._kept, self.outputs = None, [], {}

    def _run_bodies(self) -> None:
        for body in self._bodies.values():
            body()

    def _follow_numbers(self) -> None:
        """Run the bodies to find the Python numbers that they change, and the code that reads these numbers (see
        `follow`). If the numbers cannot be followed, only run the bodies once."""
        if can_follow():
            self.host_numbers = follow(self._run_bodies, self._roots, of_device=True)
        else:
            self._run_bodies()

    def _capture_bodies(self) -> None:
        for label, body in self._bodies.items():
            graph = CudaGraph(self.stream)
            with graph.capturing(self._pool, self._mode):
                loss = body()
                self._loss = self._loss if loss is None else loss.detach()
            self._graphs[label] = graph
        if self._loss is None:
            raise TypeError("no body of the captured step returned a loss; return the 0-d loss tensor")

"""Captures that a training step makes itself, for entries: a CUDA graph on a GPU, recorded operations on a CPU.

captures, static = OwnCaptures(captured), {}
fill(static, batch)
warm_up(body, 3)                          # executes `body`, and does not restore what it changed
graph = captures.capture("step", body, static, parameters)
graph.replay()                            # reads `static`, writes `graph.result` and gradients in place
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from harness.devices.graphs import CudaGraph, MemPoolId
from harness.devices.graphs import warm_up as warm_up_on
from harness.system.protocol import CaptureRecord
from harness.system.replay.traced import TracedStep

Body = Callable[[], Tensor]


@cache
def _side_stream() -> torch.cuda.Stream:
    """Return the stream of all warm-ups and captures: libraries allocate memory for each stream."""
    return torch.cuda.Stream()  # type: ignore[no-untyped-call]


def warm_up(body: Body, times: int = 3) -> None:
    """Execute `body` `times` times, on a side stream on a GPU; its changes stay."""
    if torch.cuda.is_available():
        warm_up_on(_side_stream(), body, times)
        return
    for _ in range(times):
        body()


def fill(static: dict[str, Tensor], batch: Mapping[str, Tensor]) -> None:
    """Copy a batch into the tensors that a graph reads; the first batch creates them."""
    for name, tensor in batch.items():
        static.setdefault(name, tensor.clone()).copy_(tensor)


class OwnGraph:
    """`body`, which returns a tensor, captured once: capturing executes nothing, and each replay executes it.

    As with a CUDA graph, what is static stays where it is on a CPU, too: `result`, and the gradient of each of
    `parameters` that the body allocates. `static` are the tensors that the body reads of a batch. Python that the body
    runs is run while capturing alone; numbers that it reads then are constants. `pool`: one that graphs share.
    Raises `HarnessError` where the body cannot be captured.
    """

    def __init__(
        self, body: Body, static: Mapping[str, Tensor], parameters: Iterable[Tensor] = (), pool: MemPoolId | None = None
    ) -> None:
        self._static, self._parameters, self._pool = dict(static), list(parameters), pool
        self._gradients: dict[str, Tensor] = {}  # on a CPU: the gradients that replays write
        self._allocated: set[str] = set()
        self.addresses = self.addresses_now()
        self._replayed: CudaGraph | TracedStep = self._captured(body)

    def replay(self) -> Tensor:
        """Execute the body; return its tensor, which the next replay overwrites."""
        if isinstance(self._replayed, CudaGraph):
            self._replayed.replay()
            return self.result
        self.result.copy_(self._replayed.replay())
        for name in self._allocated:
            self._gradients[name].copy_(self._replayed.outputs[name])
        return self.result

    def addresses_now(self) -> dict[str, int]:
        return {name: tensor.data_ptr() for name, tensor in self._static.items()}

    @property
    def operations(self) -> int:
        return self._replayed.operations if isinstance(self._replayed, TracedStep) else 0

    def raw(self) -> int | None:
        """The raw handle of a CUDA graph."""
        return self._replayed.raw() if isinstance(self._replayed, CudaGraph) else None

    def _captured(self, body: Body) -> CudaGraph | TracedStep:
        if torch.cuda.is_available():
            graph = CudaGraph(_side_stream())
            with graph.capturing(self._pool):
                self.result = body().detach()
            return graph
        before = {str(index): each.grad for index, each in enumerate(self._parameters)}
        like: list[tuple[torch.Size, torch.dtype]] = []  # of the results, which may have no values, so none is kept

        def outputs() -> dict[str, Tensor]:
            found = {name: each.grad for name, each in zip(before, self._parameters, strict=True)}
            given = {name: grad for name, grad in found.items() if grad is not None}
            self._allocated = {name for name, grad in given.items() if grad is not before[name]}
            return given

        def body_and_shape() -> Tensor:
            result = body()
            like[:] = [(result.shape, result.dtype)]
            return result

        traced = TracedStep(body_and_shape, dict, outputs, roots=[body])
        traced.record()
        [(shape, dtype)] = like
        self.result = torch.zeros(shape, dtype=dtype)
        for name in self._allocated:
            parameter = self._parameters[int(name)]
            self._gradients[name] = parameter.grad = torch.zeros_like(parameter)
        return traced


@dataclass
class OwnCaptures:
    """What a trainer keeps of its captures, and says of them: `captured=captures.record` of a StepFunction.

    requested: whether a capture was asked for. graphs: by shape, or whatever the trainer keeps them under.
    """

    requested: bool
    graphs: dict[Any, OwnGraph] = field(default_factory=dict)
    captures: int = 0
    warmup_steps: int = 0
    replays: int = 0
    uncaptured: int = 0
    failure: str | None = None

    def capture(
        self,
        key: object,
        body: Body,
        static: Mapping[str, Tensor],
        parameters: Iterable[Tensor] = (),
        pool: MemPoolId | None = None,
    ) -> OwnGraph:
        """Capture a body under a key of `graphs`, and count it."""
        graph = self.graphs[key] = OwnGraph(body, static, parameters, pool)
        self.captures += 1
        return graph

    def record(self) -> CaptureRecord:
        graphs = list(self.graphs.values())
        named = {f"{number}.step": graph.raw() for number, graph in enumerate(graphs)}
        cuda = torch.cuda.is_available()
        return CaptureRecord(
            mechanism=None if not self.requested else "cuda_graph" if cuda else "traced",
            requested=self.requested,
            captured=bool(graphs),
            failure=self.failure,
            captures=self.captures,
            warmup_steps=self.warmup_steps,
            replays=self.replays,
            uncaptured_steps=self.uncaptured,
            recorded_operations=sum(graph.operations for graph in graphs),
            fake_pass_clean=None if cuda or not graphs else True,
            graphs={name: handle for name, handle in named.items() if handle is not None},
            static_buffers=_of_each(graph.addresses_now() for graph in graphs),
            captured_addresses=_of_each(graph.addresses for graph in graphs),
        )


def _of_each(addresses: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Those of all graphs, by the graph's number and their name."""
    return {f"{number}.{name}": place for number, graph in enumerate(addresses) for name, place in graph.items()}

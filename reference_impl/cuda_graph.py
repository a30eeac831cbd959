"""Capture the reference trainer's step once for each shape of batches, with the functions of `harness.system`.

On a GPU a captured step is a CUDA graph. On a CPU it is a traced replay: a recording of the step's operators, which is
executed again. The capture record names the mechanism. The scope `step` captures the whole step. The scope `backward`
captures the forward pass in one graph, and backward, clip and optimizer in a second graph that shares the first graph's
memory pool. Without a scope, the environment variable `CUDA_GRAPH=1` means `step`; otherwise nothing is captured.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from harness.devices.graphs import graph_pool_handle
from harness.system.protocol import CaptureRecord
from harness.system.replay.captured_step import CapturedStep, CaptureFailedError
from harness.system.replay.state import State
from harness.system.replay.traced import HostSyncError, NotTraceableError, TracedStep
from reference_impl.errors import ReferenceImplError
from reference_impl.trainer import Trainer

SCOPES = ("none", "step", "backward")
# Largest number of tokens of a step that uses a second stream. With more tokens, one stream fills the GPU. On an H200,
# the second stream saved 0.6 ms of the 10.2 ms of a step of 512 tokens. Of the 26.8 ms of a step of 2048 tokens it
# saved only 0.17 ms, and took 0.19 GiB of memory. In FP8 it saved 1.7 ms of the 20.6 ms of a step of 2048 tokens, but
# added 1.2 ms to the 76.1 ms of a step of 8192 tokens.
MOST_TOKENS_OVERLAPPED = 1024
MOST_TOKENS_OVERLAPPED_IN_FP8 = 2048


class GraphKey(NamedTuple):
    """A captured step's key: every size and setting in which two graphs can differ, not only the sequence length."""

    batch_size: int
    seq_len: int
    rank: int
    dtype: str
    clip_mode: str
    clip_scope: str
    weights: str
    precision: str


def scope_from_environment() -> str:
    """Return `step` if the environment variable `CUDA_GRAPH` is 1, else `none`."""
    return "step" if os.environ.get("CUDA_GRAPH") == "1" else "none"


class TracedReplay:
    """A step that was recorded without CUDA. In the scope `backward`, the recording does not contain the forward pass:
    each replay executes the code of the forward pass."""

    def __init__(self, trainer: Trainer, scope: str, static: State) -> None:
        self._forward: Callable[[], Tensor] | None = None
        body: Callable[[], Tensor] = trainer.body
        if scope == "backward":
            trainer.forward_body()
            self._forward = lambda: trainer.forward_body().clone()
            body = lambda: _with_marker(trainer)
        self.recorded = TracedStep(body, trainer.state_tensors)
        self.recorded.record()
        self._static = static
        self.captured_addresses = _addresses(static)

    def replay(self) -> Tensor:
        if self._forward is None:
            return self.recorded.replay()
        loss = self._forward()
        self.recorded.replay()
        return loss

    def addresses(self) -> dict[str, int]:
        return _addresses(self._static)


def _with_marker(trainer: Trainer) -> Tensor:
    """Run the step's backward, clip and optimizer. Return an unused tensor, as a recorded function must return one."""
    trainer.backward_body()
    return trainer.clip.norms.sum()


def _addresses(static: State) -> dict[str, int]:
    return {name: tensor.data_ptr() for name, tensor in static().items()}


class CapturingTrainer:
    """A trainer that trains by replaying captured steps. Each `GraphKey` has one captured step.

    If there are more than `capacity` captured steps, the least recently used step is dropped. If a capture fails,
    `record()` reports the failure and training continues without captures. All graphs share one memory pool and one
    stream. Therefore the memory of graphs stays bounded, even if steps are captured again many times.
    """

    def __init__(self, trainer: Trainer, scope: str | None = None, capacity: int = 8) -> None:
        self.trainer = trainer
        self.scope = scope_from_environment() if scope is None else scope
        if self.scope not in SCOPES:
            raise ReferenceImplError("scope", f"got {self.scope!r}", f"choose one of {', '.join(SCOPES)}")
        if capacity < 1:
            raise ReferenceImplError("capacity", f"got {capacity}", "use a number of at least 1")
        self.capacity = capacity
        self.failure: str | None = None
        self.captures = 0
        self.replays = 0
        self.uncaptured_steps = 0
        self.warmup_steps = 0
        self._on_gpu = trainer.device.type == "cuda"
        self._cache: OrderedDict[GraphKey, CapturedStep | TracedReplay] = OrderedDict()
        if self._on_gpu and self.scope != "none":
            # Give this stream a higher priority than the second stream, see `StepStreams.overlapped`.
            self._stream = torch.cuda.Stream(priority=-1)  # type: ignore[no-untyped-call]
            self._pool = graph_pool_handle()

    def key(self) -> GraphKey:
        """Return the key of the trainer's current shape and configuration."""
        config, shape = self.trainer.config, self.trainer.static.shape
        return GraphKey(
            shape.batch_size,
            shape.seq_len,
            config.rank,
            str(self.trainer.dtype),
            config.clip_mode,
            config.clip_scope,
            config.weights,
            config.precision,
        )

    def prepare(self, index: int) -> CapturedStep | TracedReplay | None:
        """Copy batch `index` to the static tensors. Return the captured step for the batch's shape, or None if the step
        must run uncaptured.

        A shape that has no captured step yet is captured now.
        """
        self.trainer.prepare(index)
        if self.scope == "none" or self.failure is not None:
            return None
        key = self.key()
        if key not in self._cache:
            return self._capture(key)
        self._cache.move_to_end(key)
        return self._cache[key]

    def step(self, index: int) -> Tensor:
        """Run training step `index`, and return a copy of the loss (0-d). The host waits for the device only during a
        capture."""
        captured = self.prepare(index)
        if captured is None:
            self.uncaptured_steps += 1
            loss = self.trainer.body().clone()
        else:
            self.replays += 1
            loss = captured.replay()
        self.trainer.read_ahead(index + 1)
        return loss

    def _capture(self, key: GraphKey) -> CapturedStep | TracedReplay | None:
        while len(self._cache) >= self.capacity:
            self._drop(self._cache.popitem(last=False)[1])
        try:
            captured = self._captured_on_gpu() if self._on_gpu else self._traced()
        except (CaptureFailedError, HostSyncError, NotTraceableError) as error:
            self.failure = str(error)
            return None
        self.captures += 1
        self._cache[key] = captured
        return captured

    def _captured_on_gpu(self) -> CapturedStep:
        trainer = self.trainer
        bodies = {"step": trainer.body}
        if self.scope == "backward":
            trainer.forward_body()  # create the static activations that both graphs use
            bodies = {"forward": trainer.forward_body, "backward": trainer.backward_body}  # type: ignore[dict-item]
        captured = CapturedStep(
            bodies, trainer.state_tensors, self._static_of_current_shape(), pool=self._pool, stream=self._stream
        )
        tokens = trainer.static.shape.batch_size * trainer.static.shape.seq_len
        most = MOST_TOKENS_OVERLAPPED_IN_FP8 if trainer.config.precision == "fp8" else MOST_TOKENS_OVERLAPPED
        with trainer.model.streams.overlapped() if tokens <= most else nullcontext():
            captured.capture()
        self.warmup_steps += captured.warmup_steps
        return captured

    def _traced(self) -> TracedReplay:
        return TracedReplay(self.trainer, self.scope, self._static_of_current_shape())

    def _static_of_current_shape(self) -> State:
        """Return a function. It returns, by name, the buffers that a capture of the current shape uses."""
        trainer, static = self.trainer, self.trainer.static

        def named() -> dict[str, Tensor]:
            return {**trainer.state_tensors(), "tokens": static.tokens, "targets": static.targets}

        return named

    def record(self) -> CaptureRecord:
        """Return a record for the harness: captures, replays and uncaptured steps, a failure, buffers' addresses."""
        mechanism = "cuda_graph" if self._on_gpu else "traced"
        graphs: dict[str, int] = {}
        now: dict[str, int] = {}
        at_capture: dict[str, int] = {}
        for key, captured in self._cache.items():
            shape = f"{key.batch_size}x{key.seq_len}"
            if isinstance(captured, CapturedStep):
                graphs |= {f"{label}.{shape}": raw for label, raw in captured.raw_graphs().items()}
                seen, before = captured.buffers.seen(), captured.buffers.captured
            else:
                seen, before = captured.addresses(), captured.captured_addresses
            now |= {f"{name}.{shape}": address for name, address in seen.items()}
            at_capture |= {f"{name}.{shape}": address for name, address in before.items()}
        traced = [step.recorded for step in self._cache.values() if isinstance(step, TracedReplay)]
        return CaptureRecord(
            mechanism=None if self.scope == "none" else mechanism,  # type: ignore[arg-type]
            requested=self.scope != "none",
            captured=self.captures > 0 and self.failure is None,
            failure=self.failure,
            captures=self.captures,
            warmup_steps=self.warmup_steps,
            replays=self.replays,
            uncaptured_steps=self.uncaptured_steps,
            recorded_operations=sum(step.operations for step in traced),
            fake_pass_clean=all(step.fake_pass_clean for step in traced) if traced else None,
            graphs=graphs,
            static_buffers=now,
            captured_addresses=at_capture,
        )

    def forget_captures(self) -> None:
        """Drop every capture. The next step of each shape is captured again."""
        for captured in self._cache.values():
            self._drop(captured)
        self._cache.clear()
        if self._on_gpu and self.scope != "none":
            # Take a new memory pool, because torch deletes the old pool together with the last graph that uses it. A
            # capture with a deleted pool fails at an assertion in torch's pinned-memory allocator.
            self._pool = graph_pool_handle()

    @staticmethod
    def _drop(captured: CapturedStep | TracedReplay) -> None:
        if isinstance(captured, CapturedStep):
            captured.release()

    def close(self) -> None:
        """Release all captured steps."""
        self.forget_captures()

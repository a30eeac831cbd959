"""Planted faults of how steps are captured, kept and replayed. Importable without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.system.protocol import Expectation
from reference_impl.faults.expected import trajectory
from reference_impl.faults.registry import REPLAY, fault

if TYPE_CHECKING:
    from torch import Tensor

    from reference_impl.cuda_graph import CapturingTrainer

FORGETFUL_STEP = 5
UNPLANNED_BYTES = 16 * 2**30  # more bytes than a run leaves free for its steps when it fills the device's memory


@fault(
    REPLAY,
    "the capture records the first step but launches nothing, so its update is lost",
    {
        **trajectory("differs", 1),
        "gradient_match": Expectation("FAIL", "differs", {"first_differing_step": 0}),
        "capture": Expectation("FAIL", "lost_step"),
    },
)
def lost_first_update(capturing: CapturingTrainer) -> None:
    step = capturing.step

    def record_only_at_first(index: int) -> Tensor:
        if index > 0:
            return step(index)
        capturing.prepare(index)
        return capturing.trainer.forward_body().clone()

    capturing.step = record_only_at_first  # type: ignore[method-assign]


@fault(
    REPLAY,
    "the capture begins, but an early return leaves it open",
    {kind: Expectation("ERROR", "worker_exception") for kind in ("capture", "trajectory_match")},
)
def unended_capture(capturing: CapturingTrainer) -> None:
    open_captures = list[Any]()

    def begin_and_return() -> None:
        from harness.devices.graphs import CaptureMode, CudaGraph

        graph = CudaGraph(capturing._stream)
        graph.capture_begin(capturing._pool, CaptureMode.THREAD_LOCAL)
        open_captures.append(graph)
        capturing.trainer.forward_body()

    def trace_and_return() -> None:
        from torch._subclasses.fake_tensor import FakeTensorMode

        # Leave the recording mode active, so that later steps are recorded instead of executed.
        open_captures.append(FakeTensorMode(allow_non_fake_inputs=True).__enter__())

    capturing._captured_on_gpu = begin_and_return  # type: ignore[method-assign,assignment]
    capturing._traced = trace_and_return  # type: ignore[method-assign,assignment]


@fault(
    REPLAY,
    "a static buffer is replaced after the capture, so the graph reads the old buffer",
    {"capture": Expectation("FAIL", "moved_buffer")},
)
def moved_buffer(capturing: CapturingTrainer) -> None:
    step = capturing.step
    kept: list[Tensor] = []

    def step_after_move(index: int) -> Tensor:
        loss = step(index)
        if index == 0:
            static = capturing.trainer.static
            # Keep the old tensors alive. Otherwise other data could overwrite their memory, and a replay could use this
            # data as indices beyond the end of a table.
            kept.extend((static.tokens, static.targets))
            static.tokens, static.targets = static.tokens.clone(), static.targets.clone()
        return loss

    capturing.step = step_after_move  # type: ignore[method-assign]


@fault(
    REPLAY,
    "the graph cache forgets the shape in its key, so another shape's graph is replayed",
    {"capture": Expectation("FAIL", "wrong_capture_count")},
    needs="cuda",
)
def wrong_batch_graph(capturing: CapturingTrainer) -> None:
    key = capturing.key
    capturing.key = lambda: key()._replace(batch_size=0, seq_len=0)  # type: ignore[method-assign]


@fault(
    REPLAY,
    "the graph cache forgets its graph after a few steps, so the same shape is captured again",
    {"capture": Expectation("FAIL", "wrong_capture_count")},
)
def repeated_capture(capturing: CapturingTrainer) -> None:
    step = capturing.step

    def step_after_forgetting(index: int) -> Tensor:
        if index == FORGETFUL_STEP:
            capturing.forget_captures()
        return step(index)

    capturing.step = step_after_forgetting  # type: ignore[method-assign]


@fault(
    REPLAY,
    "a step allocates a large buffer that the plan for its memory does not include",
    {"C-PREWARM-001": Expectation("FAIL", "step_failed_when_full")},
    needs="cuda",
)
def unplanned_buffer(capturing: CapturingTrainer) -> None:
    step = capturing.step

    def step_with_buffer(index: int) -> Tensor:
        # Do not plant the fault in the first step, because every kernel must have been launched once before.
        if index > 0:
            flat = capturing.trainer.trainable.flat
            flat.new_empty(UNPLANNED_BYTES // flat.element_size())
        return step(index)

    capturing.step = step_with_buffer  # type: ignore[method-assign]


@fault(
    REPLAY,
    "every step keeps a buffer alive",
    {"memory_steady": Expectation("FAIL", "memory_grows")},
    needs="cuda",
)
def growing_memory(capturing: CapturingTrainer) -> None:
    step, kept = capturing.step, []

    def step_and_keep(index: int) -> Tensor:
        kept.append(capturing.trainer.trainable.flat.new_empty(4 * 2**20))
        return step(index)

    capturing.step = step_and_keep  # type: ignore[method-assign]


@fault(
    REPLAY,
    "every re-capture takes a new memory pool, and the old graph is never released",
    {"memory_steady": Expectation("FAIL", "memory_grows")},
    needs="cuda",
)
def leaking_recapture(capturing: CapturingTrainer) -> None:
    from harness.devices.graphs import graph_pool_handle

    kept = list[Any]()

    def keep(captured: Any) -> None:
        kept.append(captured)
        capturing._pool = graph_pool_handle()

    capturing._drop = keep  # type: ignore[method-assign]

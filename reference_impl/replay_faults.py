"""Planted faults of capture and replay that are more than one wrong line of the step. Importable without torch.

Each is one that upstream's code or its public threads show; see `reference_impl.faults` for the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.system.protocol import Expectation
from reference_impl.faults import fault, trajectory

if TYPE_CHECKING:
    from reference_impl.system import QLoRARun

# About a tenth of a second on any GPU of today: many steps, so that the race has one outcome.
RACE_CYCLES = 200_000_000


@fault(
    "an early return in mid-capture: the capture begins, and nothing ever ends it",
    {kind: Expectation("ERROR", "worker_exception") for kind in ("capture", "trajectory_match")},
)
def unended_capture(run: QLoRARun) -> None:
    capturing, open_captures = run.capturing, list[Any]()

    def begin_and_return() -> None:
        from harness.system.replay.graph import CaptureMode, CudaGraph

        graph = CudaGraph(capturing._stream)
        graph.capture_begin(capturing._pool, CaptureMode.THREAD_LOCAL)
        open_captures.append(graph)
        run.trainer.forward_body()

    def trace_and_return() -> None:
        from torch._subclasses.fake_tensor import FakeTensorMode

        # the recording mode stays in force, so that later steps are recorded and not executed
        open_captures.append(FakeTensorMode(allow_non_fake_inputs=True).__enter__())

    capturing._captured_on_gpu = begin_and_return  # type: ignore[method-assign,assignment]
    capturing._traced = trace_and_return  # type: ignore[method-assign,assignment]


@fault(
    "gradients alias a graph's static buffers: what is added to them there is counted twice from the second replay on",
    {
        # the clip takes back all of the doubling but a rounding, which reaches the loss a few steps later
        "trajectory_match": Expectation("FAIL", "differs", {"final_parameters_equal": False}),
        "gradient_match": Expectation("FAIL", "differs", {"first_differing_step": 1}),
    },
)
def aliased_gradients(run: QLoRARun) -> None:
    trainer, prepare, apply = run.trainer, run.trainer.prepare, run.trainer.clip.apply_
    times = trainer.clip.norms.new_ones(())

    def prepare_with_alias(index: int) -> None:
        prepare(index)
        times.fill_(1.0 if index == 0 else 2.0)

    def accumulate_and_apply(gradient: Any) -> None:
        gradient.mul_(times)
        apply(gradient)

    trainer.prepare = prepare_with_alias  # type: ignore[method-assign]
    trainer.clip.apply_ = accumulate_and_apply  # type: ignore[method-assign]


@fault(
    "the captured step clips by one global norm, the plain one by each layer's",
    {
        # no first step: Adam's first update does not depend on the scale that the two clips disagree on
        "trajectory_match": Expectation("FAIL", "differs", {"final_parameters_equal": False}),
        "gradient_match": Expectation("FAIL", "differs", {"first_differing_step": 0}),
    },
)
def global_clip(run: QLoRARun) -> None:
    from dataclasses import replace

    from reference_impl.clip import GradientClip

    trainer, slots = run.trainer, run.trainer.trainable.slots
    config = replace(trainer.config, clip_scope="global")
    trainer.clip = GradientClip([slot.size for slot in slots], [slot.layer for slot in slots], config, trainer.device)
    run.gradient_groups = lambda: {"all": [slot.name for slot in slots]}  # type: ignore[method-assign]


@fault(
    "a gain's gradient is summed in the order of arrival, so its last bit differs from run to run",
    {"repeatability": Expectation("FAIL", "differs")},
)
def order_of_arrival(run: QLoRARun) -> None:
    import secrets

    import torch

    trainer, apply = run.trainer, run.trainer.clip.apply_
    gains = [slot.name for slot in trainer.trainable.slots if slot.name.endswith("norm")]
    # the order of arrival is nobody's to choose, so its seed is not the run's
    generator = torch.Generator(trainer.device).manual_seed(secrets.randbits(63))

    def apply_to_unordered_sums(gradient: Any) -> None:
        for name in gains:
            gain = trainer.gradients()[name]
            last_bits = torch.randint(-1, 2, gain.shape, generator=generator, device=gain.device, dtype=torch.int32)
            gain.view(torch.int32).add_(last_bits * (gain != 0))
        apply(gradient)

    trainer.clip.apply_ = apply_to_unordered_sums  # type: ignore[method-assign]


@fault(
    "the batch is copied on another stream that the step does not wait for: a race that looks like bad numerics",
    trajectory("unequal_batches", 1),
    needs="cuda",
)
def cross_stream_race(run: QLoRARun) -> None:
    import torch

    prepare, stream = run.trainer.prepare, torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def prepare_elsewhere(index: int) -> None:
        if index == 0:  # the capture waits for the device, and with it for this copy
            prepare(index)
            return
        with torch.cuda.stream(stream):
            torch.cuda._sleep(RACE_CYCLES)  # type: ignore[no-untyped-call]
            prepare(index)

    run.trainer.prepare = prepare_elsewhere  # type: ignore[method-assign]


@fault(
    "every re-capture takes a new memory pool, and the old graph is never released",
    {"memory_steady": Expectation("FAIL", "memory_grows")},
    needs="cuda",
)
def leaking_recapture(run: QLoRARun) -> None:
    from harness.system.replay.graph import graph_pool_handle

    capturing, kept = run.capturing, list[Any]()

    def keep(captured: Any) -> None:
        kept.append(captured)
        capturing._pool = graph_pool_handle()

    capturing._drop = keep  # type: ignore[method-assign]

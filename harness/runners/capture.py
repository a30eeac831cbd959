"""Evidence of a capture: what the system says of it, and what the harness saw beside."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from harness.evidence.arm_records import CaptureEvidence
from harness.evidence.plan_records import PlannedArm
from harness.runners.census import census
from harness.system.protocol import CaptureRecord, CountsClippedTensors, HasCapture, TrainingRun

GRAPH_LAUNCHES = ("cudaGraphLaunch", "cuGraphLaunch")


@dataclass
class Watched:
    """What was seen while `steps` steps were watched; None where this machine's watch cannot see it."""

    steps: int = 0
    graph_launches: int | None = None
    operations: int | None = None
    device_seconds: float | None = None  # time in which kernels ran, overlapping ones counted once


class OperationCount(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts ATen operations that reach the dispatcher."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations = 0

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.operations += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def graph_launches(watched: Watched) -> Iterator[None]:
    """Count CUDA graph launches by the profiler; the caller adds the steps. Needs CUDA."""
    events: list[Any]
    with profiler() as profile:
        yield
        torch.cuda.synchronize()
    events = list(profile.events() or [])
    seen = sum(event.name in GRAPH_LAUNCHES for event in events)
    watched.graph_launches = (watched.graph_launches or 0) + seen
    watched.device_seconds = (watched.device_seconds or 0.0) + _busy_seconds(events)


def _busy_seconds(events: Sequence[Any]) -> float:
    """Length of the union of all device activities of a profile, in seconds."""
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in events
        if event.device_type == torch._C._autograd.DeviceType.CUDA
    )
    busy, until = 0.0, float("-inf")
    for start, end in spans:
        busy += max(0.0, end - max(start, until))
        until = max(until, end)
    return busy / 1e6


@contextmanager
def profiler(*, stacks: bool = False) -> Iterator[Any]:
    """A torch profiler of host calls and device activities, made safe for replays of CUDA graphs.

    CUPTI must not be torn down and set up again between replays (a known crash), hence the two variables.
    """
    os.environ.setdefault("DISABLE_CUPTI_LAZY_REINIT", "1")
    os.environ.setdefault("TEARDOWN_CUPTI", "0")
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    config = torch._C._profiler._ExperimentalConfig(verbose=True) if stacks else None
    with torch.profiler.profile(
        activities=activities, with_stack=stacks, experimental_config=config, acc_events=True
    ) as profile:
        yield profile


def watch_operations(step: Callable[[int], object], indices: Sequence[int]) -> Watched:
    """Execute `step` on `indices` under a dispatch mode; the host's own copies of the batch are counted too."""
    with OperationCount() as counter:
        for index in indices:
            step(index)
    return Watched(steps=len(indices), operations=counter.operations)


def capture_evidence(
    training: TrainingRun, arm: str, replica: int, record: CaptureRecord, watched: Watched
) -> CaptureEvidence:
    """The capture's evidence, with a census of every graph in `record`; they must still be alive."""
    clip_kernels = training.clip_kernels() if isinstance(training, CountsClippedTensors) else None
    return CaptureEvidence(
        arm=arm,
        replica=replica,
        mechanism=record.mechanism,
        requested=record.requested,
        captured=record.captured,
        failure=record.failure,
        captures=record.captures,
        warmup_steps=record.warmup_steps,
        replays=record.replays,
        uncaptured_steps=record.uncaptured_steps,
        nodes=[census(label, graph, clip_kernels) for label, graph in record.graphs.items()],
        recorded_operations=record.recorded_operations,
        fake_pass_clean=record.fake_pass_clean,
        moved_buffers=_moved(record.captured_addresses, record.static_buffers),
        static_buffers=len(record.captured_addresses),
        observed_steps=watched.steps,
        observed_graph_launches=watched.graph_launches,
        observed_replayed_operations=watched.operations,
    )


def capture_record(training: TrainingRun, planned: PlannedArm) -> CaptureRecord:
    """What the system says of its capture now; one that reports nothing has not captured."""
    if isinstance(training, HasCapture):
        return training.capture_record()
    return CaptureRecord(
        mechanism=None,
        requested=planned.arm.capture != "none",
        captured=False,
        failure="the system reports no capture",
        captures=0,
        warmup_steps=0,
        replays=0,
        uncaptured_steps=0,
    )


def _moved(captured: Mapping[str, int], now: Mapping[str, int]) -> list[str]:
    """Buffers that are elsewhere than at capture, or gone."""
    return sorted(name for name, address in captured.items() if now.get(name) != address)

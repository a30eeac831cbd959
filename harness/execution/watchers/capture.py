"""Make the evidence of a capture: what the system reports of it, and what the harness saw itself."""

from __future__ import annotations

from collections.abc import Mapping

from harness.devices.census import census
from harness.devices.device_work import device_work
from harness.devices.profiler import Watched
from harness.evidence.arm_records import CaptureEvidence, HostNumber, StepWatch
from harness.evidence.plan_records import PlannedArm
from harness.system.protocol import CaptureRecord, CountsClippedTensors, HasCapture, TrainingRun

NAMED = 20  # changes on the host, at most


def capture_evidence(
    training: TrainingRun,
    arm: str,
    replica: int,
    record: CaptureRecord,
    watched: Watched,
    every_step: StepWatch | None = None,
) -> CaptureEvidence:
    """Return the capture's evidence, with a census of every graph in `record`. The graphs must still be alive."""
    clip_kernels = training.clip_kernels() if isinstance(training, CountsClippedTensors) else None
    nodes = [census(label, graph, clip_kernels) for label, graph in record.graphs.items()]
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
        nodes=nodes,
        recorded_operations=record.recorded_operations,
        fake_pass_clean=record.fake_pass_clean,
        moved_buffers=_moved(record.captured_addresses, record.static_buffers),
        static_buffers=len(record.captured_addresses),
        observed_steps=watched.steps,
        observed_graph_launches=watched.graph_launches,
        observed_replayed_operations=watched.operations,
        device_work=device_work(watched.replays, watched.replayed_steps, nodes) if watched.replayed_steps else None,
        every_step=every_step,
        profiler_sees_planted=watched.sees_planted,
        host_changes=[*record.host_changes][:NAMED],
        host_numbers=None
        if record.host_numbers is None
        else [HostNumber(name=name, read=read) for name, read in record.host_numbers],
        asked_whether_captured=[*record.asked_whether_captured][:NAMED],
        unseen_operators=[*record.unseen_operators][:NAMED],
        as_written=[*record.as_written][:NAMED],
        warm_steps=record.warm_steps,
    )


def capture_record(training: TrainingRun, planned: PlannedArm) -> CaptureRecord:
    """Return what the system reports of its capture now. A system that reports nothing has not captured."""
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
    """Return the names of buffers that are elsewhere than at capture, or gone."""
    return sorted(name for name, address in captured.items() if now.get(name) != address)

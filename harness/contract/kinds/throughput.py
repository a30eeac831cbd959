"""The kind of judgement about speed, and the disturbances beyond which nothing is decided."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from harness.contract.base import Judged, Name, Positive, Strict


class Limits(Strict):
    """Outside these a timing is not decided: something else than the two arms may have made the difference."""

    foreign_gpu_processes: Annotated[int, Field(ge=0)] = 0
    """Processes of others on the GPU."""
    throttled_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Share of telemetry samples with a throttle reason other than the power cap, 0 to 1."""
    sm_clock_spread: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Spread of the SM clock relative to its highest, 0 to 1; bounds what a power cap may do."""
    host_load_per_core: Positive = 1.0
    """Load average of the host for each core."""
    baseline_idle_share: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Share of the baseline's time in which neither the host nor the device worked, 0 to 1: it was being slowed."""


class ThroughputRatio(Judged):
    """The candidate's steps per second are at least `at_least` times the baseline's."""

    kind: Literal["throughput_ratio"]
    """Judges how much faster the candidate is, over several processes."""
    candidate: Name
    """The optimized arm."""
    baseline: Name
    """The plain arm."""
    at_least: Positive
    """The demanded ratio of steps per second."""
    processes: Annotated[int, Field(ge=2, le=64)] = 8
    """Processes, each of which yields one ratio."""
    blocks: Annotated[int, Field(ge=4, multiple_of=2)] = 8
    """Timed blocks of each arm in a process."""
    block_steps: Annotated[int, Field(ge=1)] = 20
    """Steps in a block."""
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.99
    """One-sided confidence of the bound on the mean log ratio."""
    trajectory: Name
    """The trajectory_match claim of this contract that the timed losses must satisfy."""
    limits: Limits = Limits()
    """Disturbances beyond which nothing is decided."""

"""Define evidence as judges read it: what was seen in one run, and nothing decided. It is the registry of record types.

A record type is a class and its row: the field of `ArmEvidence` or `RunEvidence` that holds what was recorded, as one
record (`X | None`), several (`list[X]`) or one for each value of its last key (`dict[str, X]`). The reader, the check
for records that repeat, and what renames or joins evidence are derived from these fields (`harness.evidence.records`).

One run directory entry (`evidence/<run id>/`) holds `run.json` (the Run), `records.jsonl` (a worker's records, each
with its `record` tag, ending with `complete`), and `<arm>.<replica>.csv` (the series). Judges read `RunEvidence`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from harness.evidence.arm_records import (
    ArmEnd,
    ArmStart,
    CaptureEvidence,
    ComparedStep,
    Evaluated,
    Gradients,
    HostSyncEvidence,
    Loaded,
    LongReplayEvidence,
    MemoryEvidence,
    MicroBatches,
    PeakMemoryEvidence,
    RankSteps,
    Saved,
)
from harness.evidence.base import Cause, Obstacle, ProbeName, Record, RunRecord
from harness.evidence.observed_step import ObservedStep
from harness.evidence.run_records import (
    ArmFailed,
    Complete,
    KernelMatchEvidence,
    KernelsEvidence,
    PartFailed,
    Phase,
    PrewarmEvidence,
    Raised,
    StepErrors,
    Telemetry,
    TimingEvidence,
    Unavailable,
)

if TYPE_CHECKING:  # commands that read no series start without numpy
    import numpy as np
    from numpy.typing import NDArray

OfPackage = TypeVar("OfPackage", bound=RunRecord)
JOURNAL = (Phase, Unavailable, Raised, Complete)  # what a worker records of itself: where it was, and how it ended


class Death(Record):
    """How a worker ended when it did not complete, as the supervisor saw it."""

    cause: Cause
    detail: str  # signal name, exit code, limit, exception type and message
    phase: str | None
    stack: str  # last Python stack, may be empty


@dataclass(frozen=True)
class Series:
    """What one arm's steps gave, step by step. Arrays of one length."""

    loss: NDArray[np.float64]
    batch_digest: Sequence[str]
    clip_active_groups: NDArray[np.int64]  # groups whose norm exceeded the threshold; -1: not reported
    tokens: NDArray[np.int64]
    # by name, what the system reports besides its loss; empty too where it was recorded before metrics were
    metrics: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class WithPackages:
    """Evidence with the records of types that packages bring, for which it has no fields."""

    of_packages: list[RunRecord] = field(default_factory=list)

    def records(self, kind: type[OfPackage]) -> list[OfPackage]:
        """Return the records of a package's type, in their order."""
        return [record for record in self.of_packages if isinstance(record, kind)]


@dataclass(frozen=True)
class ArmEvidence(WithPackages):
    """Everything seen of one execution of one arm; None where the probe did not look."""

    start: ArmStart
    end: ArmEnd | None
    series: Series
    gradients: list[Gradients] = field(default_factory=list)
    capture: CaptureEvidence | None = None
    syncs: HostSyncEvidence | None = None
    memory: list[MemoryEvidence] = field(default_factory=list)
    compared_steps: list[ComparedStep] = field(default_factory=list)
    micro_batches: list[MicroBatches] = field(default_factory=list)
    rank_steps: RankSteps | None = None
    peak_memory: PeakMemoryEvidence | None = None
    long_replay: LongReplayEvidence | None = None
    saved: Saved | None = None
    loaded: Loaded | None = None
    evaluations: list[Evaluated] = field(default_factory=list)
    # by the name of the field that it would have filled: a detector or recorder that raised
    failed_parts: Mapping[str, PartFailed] = field(default_factory=dict)


@dataclass(frozen=True)
class RunEvidence(WithPackages):
    """One run, as judges see it. They never see the fault's name."""

    run_id: str
    probe: ProbeName
    arms: dict[str, list[ArmEvidence]]  # by arm, one entry a replica
    timing: TimingEvidence | None = None
    telemetry: Telemetry | None = None
    kernels: dict[str, KernelsEvidence] = field(default_factory=dict)
    prewarm: dict[str, PrewarmEvidence] = field(default_factory=dict)
    kernel_match: dict[str, KernelMatchEvidence] = field(default_factory=dict)
    step_errors: list[StepErrors] = field(default_factory=list)
    observed_steps: list[ObservedStep] = field(default_factory=list)
    failed: dict[str, ArmFailed] = field(default_factory=dict)  # by arm: what ended it; the others went on
    death: Death | None = None
    # what every other rank than the first saw, in their order; arms of fewer ranks are the first one's
    ranks: tuple[RunEvidence, ...] = ()
    obstacle: Obstacle | None = None  # the worker found that this machine cannot do it: NOT_RUN

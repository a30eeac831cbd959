"""The contract language, version 1: what a contract file may say.

Contracts are data: no expressions, no code. Every model is strict (unknown keys, wrong types and non-finite
numbers are errors). References between parts of a contract (arms, workloads, claims) are checked in
`Contract.check_references`, which names the path of the offending value so that the loader can point at it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

SCHEMA_VERSION = "contract/v1"

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")]
SystemName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_.]*$")]
Text = Annotated[str, Field(min_length=1, max_length=4000)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Scalar = bool | int | float | str
Mechanism = Literal["cuda_graph", "traced"]
Equality = Literal["bitwise", "within"]


class Strict(BaseModel):
    """Unknown keys, coerced types, NaN and infinities are errors; instances never change."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Needs(Strict):
    """What a machine must have to run a workload; without it its units are NOT_RUN."""

    device: Literal["cpu", "cuda"] | None = None
    memory_gib: Positive | None = None
    modules: list[str] = []


class Workload(Strict):
    """What both arms train on. `seq_len` as a list is a schedule of shapes, taken in turn step by step."""

    model: str
    batch_size: Count
    seq_len: Count | Annotated[list[Count], Field(min_length=2)]
    steps: Count
    seed: Annotated[int, Field(ge=0)] = 0
    needs: Needs = Needs()
    options: dict[Name, Scalar] = {}


class Arm(BaseModel):
    """One way to train: settings handed to the system, which checks them against `describe().arm_options`."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, allow_inf_nan=False)
    __pydantic_extra__: dict[str, Scalar] = Field(init=False)

    capture: Literal["none", "step", "backward"] = "none"
    system: SystemName | None = None

    def settings(self) -> dict[str, Scalar]:
        """Everything but the harness's own keys `capture` and `system`."""
        return dict(self.__pydantic_extra__ or {})


class TrainingEffect(Strict):
    """The candidate's mean loss over the last steps lies below the untrained control's by at least this."""

    control: Name
    last: Count
    at_least: Positive


class Guards(Strict):
    """What must be true before PASS may be said; unmet, the verdict is FAIL with a `vacuous_…` code."""

    steps: Count
    distinct_batches: Count | None = None
    clip_active_steps: Annotated[int, Field(ge=0)] | None = None
    training_effect: TrainingEffect | None = None


class Judged(Strict):
    """Fields of one judgement, alone as a claim or as one of a claim's parts."""

    mechanism: Mechanism | None = None


class TrajectoryMatch(Judged):
    """Two series agree at every step (or at the final one), in bits or within a bound."""

    kind: Literal["trajectory_match"]
    candidate: Name
    baseline: Name
    metric: Literal["loss"] = "loss"
    equality: Equality
    max_abs_difference: Positive
    compare: Literal["every", "final"] = "every"
    guards: Guards


class ClippedNorm(Strict):
    """After clipping, every group's norm is at most `at_most` x (1 + relative_rounding)."""

    at_most: Positive
    relative_rounding: NonNegative


class GradientMatch(Judged):
    """Gradients of every trainable tensor agree at the chosen steps, and clipped norms keep the threshold."""

    kind: Literal["gradient_match"]
    candidate: Name
    baseline: Name | None = None
    steps: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    equality: Equality | None = None
    max_abs_difference: Positive | None = None
    max_relative_difference: Positive | None = None
    clipped_norm: ClippedNorm | None = None
    clip_active_steps: Annotated[int, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _demands_something(self) -> GradientMatch:
        if self.baseline is None and self.clipped_norm is None:
            _refuse("gradient_match demands `baseline`, `clipped_norm` or both", "kind")
        if self.baseline is not None:
            bounds = (self.max_abs_difference, self.max_relative_difference)
            if self.equality is None or (self.equality == "within" and bounds == (None, None)):
                _refuse("with a baseline, say `equality` and, for `within`, a bound", "baseline")
        return self


class Capture(Judged):
    """The step was captured, cleanly and completely, and every replay did the work of one step."""

    kind: Literal["capture"]
    candidate: Name
    captures: Count = 1
    nodes_at_least: Count = 1
    nodes_at_most: Count | None = None
    kernels_per_layer_at_least: Count | None = None
    clipped_tensors_per_layer: Count | None = None
    skipped_steps_at_most: Annotated[int, Field(ge=0)] = 0


class Limits(Strict):
    """Outside these a timing is not decided: something else than the two arms may have made the difference."""

    foreign_gpu_processes: Annotated[int, Field(ge=0)] = 0
    throttled_share: Annotated[float, Field(ge=0, le=1)] = 0.0
    sm_clock_spread: Annotated[float, Field(ge=0, le=1)] = 0.05
    host_load_per_core: Positive = 1.0


class ThroughputRatio(Judged):
    """The candidate's steps per second are at least `at_least` times the baseline's."""

    kind: Literal["throughput_ratio"]
    candidate: Name
    baseline: Name
    at_least: Positive
    processes: Annotated[int, Field(ge=2, le=64)] = 8
    blocks: Annotated[int, Field(ge=4, multiple_of=2)] = 8
    block_steps: Annotated[int, Field(ge=1)] = 20
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.99
    trajectory: Name
    limits: Limits = Limits()


class SyncCount(Strict):
    """A count of host syncs in one step of one arm: exact, or an upper bound; `per_layer` times the layers."""

    arm: Name
    exactly: Annotated[int, Field(ge=0)] | None = None
    at_most: Annotated[int, Field(ge=0)] | None = None
    per_layer: bool = False

    @model_validator(mode="after")
    def _one_bound(self) -> SyncCount:
        if (self.exactly is None) == (self.at_most is None):
            _refuse("say either `exactly` or `at_most`", "arm")
        return self


class HostSyncs(Judged):
    """The candidate waits for the device as often as demanded, and the control shows that we would see it."""

    kind: Literal["host_syncs"]
    candidate: SyncCount
    control: SyncCount


class PtxTarget(Judged):
    """Every kernel's PTX target fits the device (`target: device`) or a named one (`sm_NN`)."""

    kind: Literal["ptx_target"]
    candidate: Name
    policy: Literal["exact", "loadable"]
    target: Annotated[str, Field(pattern=r"^(device|sm_[1-9][0-9]{1,2}[af]?)$")]


class Prewarm(Judged):
    """Every kernel a run needs is compiled before the weights arrive, under the key the run asks for."""

    kind: Literal["prewarm"]
    candidate: Name
    scope: Literal["device", "coverage"]
    target: Annotated[str, Field(pattern=r"^(device|sm_[1-9][0-9]{1,2}[af]?)$")] = "device"
    handles: list[Name] = []
    memory_filled: bool = False


class KernelDemands(Strict):
    """What the compiled kernel's metadata and source must show."""

    shared_memory_bytes: Count | None = None
    threads: Count | None = None
    unroll: Count | None = None
    tile: Count | None = None


class KernelMatch(Judged):
    """A kernel agrees with its naive twin and an fp64 reference over a grid of shapes and magnitudes."""

    kind: Literal["kernel_match"]
    candidate: Name
    operations: Annotated[list[Name], Field(min_length=1)]
    max_relative_error: dict[Literal["float32", "bfloat16", "float16"], Positive]
    magnitudes: Annotated[list[Positive], Field(min_length=1)] = [1.0]
    demands: KernelDemands = KernelDemands()


class Repeatability(Judged):
    """N runs of one arm with one seed agree, in bits or within a bound."""

    kind: Literal["repeatability"]
    candidate: Name
    runs: Annotated[int, Field(ge=2, le=32)] = 2
    equality: Equality
    max_abs_difference: Positive
    guards: Guards


class MemorySteady(Judged):
    """Memory does not grow after the first `after` samples (a sample a step, or a re-capture)."""

    kind: Literal["memory_steady"]
    candidate: Name
    per: Literal["replay", "recapture"]
    after: Count
    growth_at_most: NonNegative


Part = Annotated[
    TrajectoryMatch
    | GradientMatch
    | Capture
    | ThroughputRatio
    | HostSyncs
    | PtxTarget
    | Prewarm
    | KernelMatch
    | Repeatability
    | MemorySteady,
    Field(discriminator="kind"),
]


class ClaimText(Strict):
    """What every claim says beside its judgement."""

    id: Name
    title: Text
    on: Annotated[list[Name], Field(min_length=1)]
    why: Text
    if_fails: Text
    falsified_by: list[Name] = []
    upstream: Text | None = None


class TrajectoryMatchClaim(TrajectoryMatch, ClaimText): ...


class GradientMatchClaim(GradientMatch, ClaimText): ...


class CaptureClaim(Capture, ClaimText): ...


class ThroughputRatioClaim(ThroughputRatio, ClaimText): ...


class HostSyncsClaim(HostSyncs, ClaimText): ...


class PtxTargetClaim(PtxTarget, ClaimText): ...


class PrewarmClaim(Prewarm, ClaimText): ...


class KernelMatchClaim(KernelMatch, ClaimText): ...


class RepeatabilityClaim(Repeatability, ClaimText): ...


class MemorySteadyClaim(MemorySteady, ClaimText): ...


class CompositeClaim(Judged, ClaimText):
    """A claim of several parts, each of one kind; it is as good as the worst of them."""

    kind: Literal["composite"]
    parts: Annotated[list[Part], Field(min_length=2)]


Claim = Annotated[
    TrajectoryMatchClaim
    | GradientMatchClaim
    | CaptureClaim
    | ThroughputRatioClaim
    | HostSyncsClaim
    | PtxTargetClaim
    | PrewarmClaim
    | KernelMatchClaim
    | RepeatabilityClaim
    | MemorySteadyClaim
    | CompositeClaim,
    Field(discriminator="kind"),
]
AnyPart = (
    TrajectoryMatch
    | GradientMatch
    | Capture
    | ThroughputRatio
    | HostSyncs
    | PtxTarget
    | Prewarm
    | KernelMatch
    | Repeatability
    | MemorySteady
)
AnyClaim = (
    TrajectoryMatchClaim
    | GradientMatchClaim
    | CaptureClaim
    | ThroughputRatioClaim
    | HostSyncsClaim
    | PtxTargetClaim
    | PrewarmClaim
    | KernelMatchClaim
    | RepeatabilityClaim
    | MemorySteadyClaim
    | CompositeClaim
)


def parts_of(claim: AnyClaim) -> list[AnyPart]:
    """The judgements a claim consists of: itself, or its parts."""
    return list(claim.parts) if isinstance(claim, CompositeClaim) else [claim]


def arms_of(part: AnyPart) -> dict[str, str]:
    """The arms a judgement names, by the path of the field that names them (`candidate`, `control.arm`)."""
    if isinstance(part, HostSyncs):
        return {"candidate.arm": part.candidate.arm, "control.arm": part.control.arm}
    arms = {"candidate": part.candidate}
    baseline = getattr(part, "baseline", None)
    if baseline is not None:
        arms["baseline"] = baseline
    guards = getattr(part, "guards", None)
    if guards is not None and guards.training_effect is not None:
        arms["guards.training_effect.control"] = guards.training_effect.control
    return arms


class Contract(Strict):
    """One contract file."""

    schema_version: Literal["contract/v1"] = Field(alias="schema")
    id: Name
    title: Text
    tracks: list[Name] = []
    system: SystemName
    workloads: Annotated[dict[Name, Workload], Field(min_length=1)]
    arms: Annotated[dict[Name, Arm], Field(min_length=1)]
    claims: Annotated[list[Claim], Field(min_length=1)]


def _refuse(message: str, *path: str | int) -> None:
    """Raise a validation error; `path` (below the model) tells the loader which value to point at."""
    raise PydanticCustomError("contract_rule", "{message}", {"message": message, "path": list(path)})

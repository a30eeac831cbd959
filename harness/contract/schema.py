"""The contract language, version 1: what a contract file may say.

Contracts are data: no expressions, no code. Every model is strict (unknown keys, wrong types and non-finite
numbers are errors). References between parts of a contract (arms, workloads, claims) are checked by
`harness.contract.references.problems`, which names the path of the offending value so that the loader can point at it.
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
    """The device it runs on; left out, any."""
    memory_gib: Positive | None = None
    """Free memory of that device, in GiB."""
    modules: list[str] = []
    """Python modules that must be installed."""


class Workload(Strict):
    """What both arms train on. `seq_len` as a list is a schedule of shapes, taken in turn step by step."""

    model: str
    """A model that the system names, or a directory with a checkpoint."""
    batch_size: Count
    """Sequences in a batch."""
    seq_len: Count | Annotated[list[Count], Field(min_length=2)]
    """Tokens in a sequence; a list is a schedule of shapes."""
    steps: Count
    """Training steps of each arm, counted from 0."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of weights and data; a batch is a function of seed and step."""
    needs: Needs = Needs()
    """What a machine must have."""
    options: dict[Name, Scalar] = {}
    """Settings for the system, checked against its `workload_options`."""


class Arm(BaseModel):
    """One way to train: settings handed to the system, which checks them against `describe().arm_options`."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, allow_inf_nan=False)
    __pydantic_extra__: dict[str, Scalar] = Field(init=False)

    capture: Literal["none", "step", "backward"] = "none"
    """What is captured: nothing, the whole step, or backward pass, clip and optimizer."""
    system: SystemName | None = None
    """`module:attribute` of this arm's own system; left out, the contract's."""

    def settings(self) -> dict[str, Scalar]:
        """Everything but the harness's own keys `capture` and `system`."""
        return dict(self.__pydantic_extra__ or {})


class TrainingEffect(Strict):
    """The candidate's mean loss over the last steps lies below the untrained control's by at least this."""

    control: Name
    """The arm that trains nothing (learning rate 0) on the same batches."""
    last: Count
    """How many last steps are averaged."""
    at_least: Positive
    """Smallest difference of the mean losses that counts as training."""
    at_least_on: dict[Name, Positive] = {}
    """The same for single workloads, by name: a model that starts from random weights has far to fall."""


class Guards(Strict):
    """What must be true before PASS may be said; unmet, the verdict is FAIL with a `vacuous_…` code."""

    steps: Count
    """Steps that must have been compared."""
    distinct_batches: Count | None = None
    """Distinct batches, by digest, that must have been seen."""
    clip_active_steps: Annotated[int, Field(ge=0)] | None = None
    """Steps in which the clip must have scaled at least one group."""
    training_effect: TrainingEffect | None = None
    """How much the training must have lowered the loss."""


class Judged(Strict):
    """Fields of one judgement, alone as a claim or as one of a claim's parts."""

    mechanism: Mechanism | None = None
    """The kind of replay the evidence must come from; left out, any or none."""


class TrajectoryMatch(Judged):
    """Two series agree at every step (or at the final one), in bits or within a bound."""

    kind: Literal["trajectory_match"]
    """Judges one series of two arms against each other."""
    candidate: Name
    """The optimized arm."""
    baseline: Name
    """The plain arm."""
    metric: Literal["loss"] = "loss"
    """The series compared."""
    equality: Equality
    """`bitwise`: every bit decides; `within`: `max_abs_difference` alone does."""
    max_abs_difference: Positive
    """Largest absolute difference allowed; shown beside the bits under `bitwise`."""
    compare: Literal["every", "final"] = "every"
    """At every step, or at the last one only."""
    guards: Guards
    """What must be true before PASS may be said."""


class ClippedNorm(Strict):
    """After clipping, every group's norm is at most `at_most` x (1 + relative_rounding)."""

    at_most: Positive
    """The clip's threshold."""
    relative_rounding: NonNegative
    """Allowance for rounding, relative to the threshold."""


class GradientMatch(Judged):
    """Gradients of every trainable tensor agree at the chosen steps, and clipped norms keep the threshold."""

    kind: Literal["gradient_match"]
    """Judges gradients against a baseline, clipped norms against a threshold, or both."""
    candidate: Name
    """The optimized arm."""
    baseline: Name | None = None
    """The plain arm; left out, only the clipped norms are judged."""
    steps: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    """Steps, counted from 0, at which gradients are reduced and compared."""
    equality: Equality | None = None
    """`bitwise`: digests decide; `within`: the bounds do."""
    max_abs_difference: Positive | None = None
    """Largest absolute difference of any element."""
    max_relative_difference: Positive | None = None
    """Largest difference relative to the baseline tensor's largest element."""
    clipped_norm: ClippedNorm | None = None
    """The threshold that every group's norm keeps after clipping."""
    clip_active_steps: Annotated[int, Field(ge=0)] | None = None
    """Steps in which the clip must have scaled at least one group."""

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
    """Judges that a step was captured and replayed."""
    candidate: Name
    """The captured arm."""
    captures: Count = 1
    """Exact number of captures: one for each shape."""
    nodes_at_least: Count = 1
    """Fewest nodes of a graph."""
    nodes_at_most: Count | None = None
    """Most nodes of a graph."""
    kernels_per_layer_at_least: Count | None = None
    """Fewest kernels in the graph for each of the model's layers."""
    clipped_tensors_per_layer: Count | None = None
    """Tensors a layer whose clip runs inside the graph, exactly."""
    skipped_steps_at_most: Annotated[int, Field(ge=0)] = 0
    """Updates that may be left out for a non-finite loss or gradient."""


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


class SyncCount(Strict):
    """A count of host syncs in one step of one arm: exact, or an upper bound; `per_layer` times the layers."""

    arm: Name
    """The arm whose host syncs are counted."""
    exactly: Annotated[int, Field(ge=0)] | None = None
    """The exact count in one step."""
    at_most: Annotated[int, Field(ge=0)] | None = None
    """The largest count in one step."""
    per_layer: bool = False
    """Multiply the count by the model's layers."""

    @model_validator(mode="after")
    def _one_bound(self) -> SyncCount:
        if (self.exactly is None) == (self.at_most is None):
            _refuse("say either `exactly` or `at_most`", "arm")
        return self


class HostSyncs(Judged):
    """The candidate waits for the device as often as demanded, and the control shows that we would see it."""

    kind: Literal["host_syncs"]
    """Judges how often a step waits for the device."""
    candidate: SyncCount
    """The count demanded."""
    control: SyncCount
    """An arm that synchronizes, with its exact count: the proof that syncs are seen."""


class PtxTarget(Judged):
    """Every kernel's PTX target fits the device (`target: device`) or a named one (`sm_NN`)."""

    kind: Literal["ptx_target"]
    """Judges the architecture that kernels are compiled for."""
    candidate: Name
    """The arm whose kernels are read."""
    policy: Literal["exact", "loadable"]
    """`exact`: the same architecture; `loadable`: one that the target can load."""
    target: Annotated[str, Field(pattern=r"^(device|sm_[1-9][0-9]{1,2}[af]?)$")]
    """The device found, or a named architecture such as `sm_90`."""


class Prewarm(Judged):
    """Every kernel a run needs is compiled before the weights arrive, under the key the run asks for."""

    kind: Literal["prewarm"]
    """Judges that kernels are ready before the weights arrive."""
    candidate: Name
    """The arm whose kernels are planned and used."""
    scope: Literal["device", "coverage"]
    """`device`: events on a GPU; `coverage`: planned keys against used keys, on any machine."""
    target: Annotated[str, Field(pattern=r"^(device|sm_[1-9][0-9]{1,2}[af]?)$")] = "device"
    """The device found, or the architecture to compile for."""
    handles: list[Name] = []
    """Library handles that must exist before the upload."""
    memory_filled: bool = False
    """Fill the device's memory after the upload."""


class KernelDemands(Strict):
    """What the compiled kernel's metadata and source must show."""

    shared_memory_bytes: Count | None = None
    """Shared memory of a block, in bytes."""
    threads: Count | None = None
    """Threads of a block."""
    unroll: Count | None = None
    """Factor by which the inner loop is unrolled; it divides the tile."""
    tile: Count | None = None
    """Edge of a tile."""


class KernelMatch(Judged):
    """A kernel agrees with its naive twin and an fp64 reference over a grid of shapes and magnitudes."""

    kind: Literal["kernel_match"]
    """Judges a kernel's results, and what it was compiled to."""
    candidate: Name
    """The arm whose system offers the kernels."""
    operations: Annotated[list[Name], Field(min_length=1)]
    """Operations compared."""
    max_relative_error: dict[Literal["float32", "bfloat16", "float16"], Positive]
    """Largest error relative to the reference's largest value, by data type."""
    magnitudes: Annotated[list[Positive], Field(min_length=1)] = [1.0]
    """Magnitudes of the inputs."""
    demands: KernelDemands = KernelDemands()
    """Demands on the compiled kernels."""


class Repeatability(Judged):
    """N runs of one arm with one seed agree, in bits or within a bound."""

    kind: Literal["repeatability"]
    """Judges runs of one arm with one seed against each other."""
    candidate: Name
    """The arm that is run again."""
    runs: Annotated[int, Field(ge=2, le=32)] = 2
    """How many runs."""
    equality: Equality
    """`bitwise`: every bit decides; `within`: `max_abs_difference` alone does."""
    max_abs_difference: Positive
    """Largest absolute difference allowed; shown beside the bits under `bitwise`."""
    guards: Guards
    """What must be true before PASS may be said."""


class MemorySteady(Judged):
    """Memory does not grow after the first `after` samples (a sample a step, or a re-capture)."""

    kind: Literal["memory_steady"]
    """Judges the growth of device memory."""
    candidate: Name
    """The captured arm."""
    per: Literal["replay", "recapture"]
    """A sample after every replay, or after every re-capture."""
    after: Count
    """First samples that are left out as warm-up."""
    growth_at_most: NonNegative
    """Largest relative growth after the warm-up."""


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
    """Name of the claim, unique in its contract."""
    title: Text
    """The claim in one sentence."""
    on: Annotated[list[Name], Field(min_length=1)]
    """Workloads it is judged on; each is a unit with its own verdict."""
    why: Text
    """Where each number comes from."""
    if_fails: Text
    """What usually causes a failure."""
    falsified_by: list[Name] = []
    """Planted faults that must break it."""
    upstream: Text | None = None
    """The claim it comes from."""


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
    """Joins several judgements."""
    parts: Annotated[list[Part], Field(min_length=2)]
    """The judgements; the worst decides."""


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


def part_on(part: AnyPart, workload: str) -> AnyPart:
    """The judgement as it stands on one workload: with the training effect that is demanded there."""
    guards: Guards | None = getattr(part, "guards", None)
    if guards is None or guards.training_effect is None or workload not in guards.training_effect.at_least_on:
        return part
    effect = guards.training_effect
    own = effect.model_copy(update={"at_least": effect.at_least_on[workload]})
    return part.model_copy(update={"guards": guards.model_copy(update={"training_effect": own})})


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
    """Version of the contract language."""
    id: Name
    """Name of the contract, unique among those checked together."""
    title: Text
    """What the contract is about, in one sentence."""
    tracks: list[Name] = []
    """Tickets it belongs to."""
    system: SystemName
    """`module:attribute` of the system under test."""
    workloads: Annotated[dict[Name, Workload], Field(min_length=1)]
    """Workloads by name."""
    arms: Annotated[dict[Name, Arm], Field(min_length=1)]
    """Arms by name."""
    claims: Annotated[list[Claim], Field(min_length=1)]
    """The claims."""


def _refuse(message: str, *path: str | int) -> None:
    """Raise a validation error; `path` (below the model) tells the loader which value to point at."""
    raise PydanticCustomError("contract_rule", "{message}", {"message": message, "path": list(path)})

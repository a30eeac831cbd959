"""Claims: a judgement of one kind, or several, with the text that every claim carries."""

# ruff: noqa: RUF012 - pydantic copies defaults, and ruff knows its models in the file of their base only

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from harness.contract.base import Judged, Name, Strict, Text
from harness.contract.kinds.kernels import KernelMatch, Prewarm, PtxTarget
from harness.contract.kinds.replay import Capture, HostSyncs, MemorySteady
from harness.contract.kinds.throughput import ThroughputRatio
from harness.contract.kinds.training import GradientMatch, Guards, Repeatability, TrajectoryMatch

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

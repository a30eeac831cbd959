"""What the judges of ranks share: the executions of one arm, rank by rank, and what each rank did in every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.evidence.arm_records import RankSteps
from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.judge import reasons
from harness.judge.context import executed
from harness.judge.sheet import settle


def of_ranks(run: RunEvidence, arm: str, ranks: int) -> dict[int, ArmEvidence]:
    """The first execution of an arm, by rank; settles with ERROR for a rank without sound evidence."""
    views = (run, *run.ranks)
    if len(views) < ranks:
        settle(reasons.EVIDENCE_MISSING, f"there is evidence of {len(views)} ranks, and arm {arm} has {ranks}")
    for rank, view in enumerate(views[:ranks]):
        if view.death is not None:
            settle(f"worker_{view.death.cause}", f"rank {rank} of {ranks}: {view.death.detail}")
    return {rank: executed(view, arm) for rank, view in enumerate(views[:ranks])}


def rank_steps(executions: Mapping[int, ArmEvidence]) -> dict[int, RankSteps]:
    """What every rank did, step by step; settles with ERROR where that is not whole."""
    found = {}
    for rank, execution in executions.items():
        noted, steps = execution.rank_steps, len(execution.series.loss)
        if noted is None:
            settle(reasons.EVIDENCE_MISSING, f"what rank {rank} of arm {execution.start.arm} did was not recorded")
        lengths = [len(noted.parameters) - 1, len(noted.rows), len(noted.collectives)]
        if lengths != [steps] * 3:
            settle(reasons.EVIDENCE_INCONSISTENT, f"rank {rank} made {steps} steps and recorded {lengths} of them")
        found[rank] = noted
    return found


def named(executions: Mapping[int, ArmEvidence]) -> dict[str, ArmEvidence]:
    """The executions under the names that sentences give them."""
    return {f"rank {rank} of {execution.start.arm}": execution for rank, execution in executions.items()}


def odd_one(digests: Sequence[str]) -> int | None:
    """The rank whose digest is not the most frequent one; of several, or of as many on both sides, the last."""
    common = max(digests, key=lambda digest: (digests.count(digest), digest == digests[0]))
    return next((rank for rank in reversed(range(len(digests))) if digests[rank] != common), None)

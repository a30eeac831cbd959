"""Join the parts of a candidate that, with each seed, was saved and then loaded by another process."""

from __future__ import annotations

from dataclasses import replace

from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.judging import reasons
from harness.judging.comparison import Comparison
from harness.judging.context import replicas
from harness.judging.sheet import Sheet, settle
from harness.kinds.between_steps.training_chain import (
    Chain,
    in_processes,
    join,
    note_checkpoint,
    require_checkpoints,
)
from harness.kinds.seeds.model import NotWorse


def require_steps_after_load(part: NotWorse, run: RunEvidence, sheet: Sheet) -> None:
    """Settle FAIL where too few steps were trained after the load; do nothing without `save_at`."""
    if part.save_at is None:
        return
    executions = replicas(run, part.candidate, 2 * len(part.seeds))
    needed = max(part.guards.steps, part.last) - part.save_at
    for seed, first, second in zip(part.seeds, executions[::2], executions[1::2], strict=True):
        before, after = (len(half.series.loss) for half in (first, second))
        if after < needed:
            sheet.figure("steps_run", before + after, "steps")
            settle(
                reasons.VACUOUS_STEPS,
                f"{after} steps after the load were run with seed {seed}, {needed} are demanded",
            )


def joined(part: NotWorse, run: RunEvidence) -> tuple[RunEvidence, list[Chain]]:
    """Return the run as if the candidate had trained with each seed at once, and its chains by seed.

    Without `save_at` return the run as it is, without chains. Settles ERROR for halves that are missing or wrong.
    """
    if part.save_at is None:
        return run, []
    executions = replicas(run, part.candidate, 2 * len(part.seeds))
    pairs = zip(part.seeds, executions[::2], executions[1::2], strict=True)
    chains = [_of_seed(part.candidate, seed, part.save_at, first, second) for seed, first, second in pairs]
    return replace(run, arms={**run.arms, part.candidate: [each.whole for each in chains]}), chains


def _of_seed(arm: str, seed: int, save_at: int, first: ArmEvidence, second: ArmEvidence) -> Chain:
    """Return both halves as a chain; settle ERROR where the second has another seed. `_of_seeds` checks the first."""
    there = second.start.facts.get("seed")
    if there != seed:
        settle(reasons.EVIDENCE_INCONSISTENT, f"arm {arm} went on with seed {there} where {seed} is demanded")
    return join(arm, [first, second], saves=[save_at], steps_before_load=0)


def require_chains(arm: str, comparison: Comparison, chains: list[Chain]) -> None:
    """Settle unless, with each seed, another process loaded what the first one had trained, captured where required."""
    for chain in chains:
        for joint in chain.joints:
            comparison.captured(joint.first, joint.second, role="half")
        require_checkpoints(chain)
        comparison.finite_ends(in_processes(arm, chain))


def note_chains(chains: list[Chain], sheet: Sheet) -> None:
    """Note the figures of the checkpoint that lost most in its load."""
    if chains:
        note_checkpoint(max((chain.worst for chain in chains), key=lambda joint: len(joint.lost)), sheet)

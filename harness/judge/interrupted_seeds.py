"""A candidate that was saved and loaded by another process with each seed: its halves, as the executions they make."""

from __future__ import annotations

from dataclasses import replace

from harness.contract.kinds.seeds import NotWorse
from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.judge import reasons
from harness.judge.comparison import Comparison
from harness.judge.context import replicas
from harness.judge.resume import Halves, in_processes, join, not_restored, note_checkpoint, require_checkpoint
from harness.judge.sheet import Sheet, settle


def require_steps_after_load(part: NotWorse, run: RunEvidence, sheet: Sheet) -> None:
    """Settle with FAIL where too few steps were trained after the load; nothing to do without `save_at`."""
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


def joined(part: NotWorse, run: RunEvidence) -> tuple[RunEvidence, list[Halves]]:
    """The run as if the candidate had trained with each seed at once, and its halves by seed.

    Without `save_at` the run as it is, and no halves. Settles with ERROR where halves are missing, or not the claim's.
    """
    if part.save_at is None:
        return run, []
    executions = replicas(run, part.candidate, 2 * len(part.seeds))
    pairs = zip(part.seeds, executions[::2], executions[1::2], strict=True)
    halves = [_of_seed(part.candidate, seed, part.save_at, first, second) for seed, first, second in pairs]
    return replace(run, arms={**run.arms, part.candidate: [each.whole for each in halves]}), halves


def _of_seed(arm: str, seed: int, save_at: int, first: ArmEvidence, second: ArmEvidence) -> Halves:
    """Both halves ran with that seed; that the first did is looked for where all arms are."""
    there = second.start.facts.get("seed")
    if there != seed:
        settle(reasons.EVIDENCE_INCONSISTENT, f"arm {arm} went on with seed {there} where {seed} is demanded")
    return join(arm, first, second, save_at=save_at, steps_before_load=0)


def require_halves(arm: str, comparison: Comparison, halves: list[Halves]) -> None:
    """Settle unless with each seed another process loaded what the first had trained, captured where it is to be."""
    for each in halves:
        comparison.captured(each.first, each.second, role="half")
        require_checkpoint(each)
        comparison.finite_ends(in_processes(arm, each))


def note_halves(halves: list[Halves], sheet: Sheet) -> None:
    """Figures of the checkpoint from which most was not restored."""
    if halves:
        lost = [not_restored(each) for each in halves]
        worst = max(range(len(halves)), key=lambda place: len(lost[place]))
        note_checkpoint(halves[worst], lost[worst], sheet)

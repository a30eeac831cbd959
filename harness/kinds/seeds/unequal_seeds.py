"""Group executions by seed. Find two seeds that change nothing and so are one seed, by what a run began with and read,
not by what came of it.

A sum that is added up in another order makes two runs of one seed differ in their last bit, so their losses do not show
whether a seed reached them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations

from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.judging import reasons
from harness.judging.context import end_of, replicas
from harness.judging.series import first_unequal
from harness.judging.sheet import Sheet, require_steps, settle


def executions_by_seed(
    run: RunEvidence, arms: Collection[str], seeds: Sequence[int]
) -> dict[int, dict[str, ArmEvidence]]:
    """Return each arm's execution by seed; settle ERROR where one is missing, or is of another seed."""
    found: dict[int, dict[str, ArmEvidence]] = {seed: {} for seed in seeds}
    for arm in arms:
        for seed, execution in zip(seeds, replicas(run, arm, len(seeds)), strict=False):
            there = execution.start.facts.get("seed")
            if there != seed:
                settle(reasons.EVIDENCE_INCONSISTENT, f"arm {arm} ran with seed {there} where {seed} is demanded")
            found[seed][arm] = execution
    return found


def require_steps_with_each(steps: Mapping[int, int], demanded: int, sheet: Sheet) -> None:
    """Settle FAIL where fewer steps were run with some seed than demanded."""
    sheet.count("steps", sum(steps.values()))
    seed, fewest = next(((seed, seen) for seed, seen in steps.items() if seen < demanded), min(steps.items()))
    message = f"{fewest} steps were run with seed {seed}, {demanded} are demanded"
    require_steps(min(steps.values()), demanded, sheet, message)


def require_unequal_seeds(arm: str, by_seed: Mapping[int, ArmEvidence]) -> None:
    """Settle FAIL where an arm began from one start with two seeds, and read the same batches in the steps of both.

    Seeds may share the start by design (a checkpoint) or the batches (another initialization), but not both. Different
    generators at the start are enough of a difference, if training draws from them, as dropout does.
    """
    for (first, one), (second, other) in combinations(by_seed.items(), 2):
        if _start(one) != _start(other) or not _one_draw(one, other):
            continue
        steps = min(len(one.series.loss), len(other.series.loss))
        if steps and first_unequal(one.series.batch_digest[:steps], other.series.batch_digest[:steps]) is None:
            settle(
                reasons.VACUOUS_SEEDS_ALIKE,
                f"arm {arm} begins with equal parameters and reads the same batches at all {steps} steps with seeds "
                f"{first} and {second}",
            )


def _start(execution: ArmEvidence) -> tuple[object, ...]:
    """Return the state before the first step, without generators, but with tables: a seed may make one of noise."""
    state = execution.start.state
    found = {} if state is None else {name: each for name, each in state.digests.items() if name != "generators"}
    return execution.start.trainable_digest, execution.start.frozen_digest, found


def _one_draw(one: ArmEvidence, other: ArmEvidence) -> bool:
    """Return True if no generator that training drew from differed with the other seed. Idle ones are ignored."""
    ours, theirs = _drawn_from(one), _drawn_from(other)
    return all(ours.get(name, digest) == theirs.get(name, digest) for name, digest in (ours | theirs).items())


def _drawn_from(execution: ArmEvidence) -> dict[str, str]:
    """Return the first state of each generator that steps moved; the end state where a device's came with first use."""
    start, end = execution.start.state, end_of(execution).state
    if start is None or end is None:
        return {}
    began, ended = (each.digests.get("generators", {}) for each in (start, end))
    return {name: began.get(name, digest) for name, digest in ended.items() if began.get(name) != digest}

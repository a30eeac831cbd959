"""Group executions by seed, and find two seeds with which an arm had the same start and the same batches.

Losses do not show whether a seed had an effect. Even with the same seed, the losses of two runs may differ in their
last bits if sums are added up in another order.
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
    """Return each arm's execution with each seed, as seed -> name of an arm -> its execution. End the judgement with
    ERROR if an execution is missing or ran with another seed."""
    found: dict[int, dict[str, ArmEvidence]] = {seed: {} for seed in seeds}
    for arm in arms:
        for seed, execution in zip(seeds, replicas(run, arm, len(seeds)), strict=False):
            there = execution.start.facts.get("seed")
            if there != seed:
                settle(reasons.EVIDENCE_INCONSISTENT, f"arm {arm} ran with seed {there}, but seed {seed} is required")
            found[seed][arm] = execution
    return found


def require_steps_with_each(steps: Mapping[int, int], demanded: int, sheet: Sheet) -> None:
    """End the judgement with FAIL if fewer than `demanded` steps were made with a seed. steps: seed -> number."""
    sheet.count("steps", sum(steps.values()))
    seed, fewest = next(((seed, seen) for seed, seen in steps.items() if seen < demanded), min(steps.items()))
    message = f"{fewest} steps were run with seed {seed}, but {demanded} are required"
    require_steps(min(steps.values()), demanded, sheet, message)


def require_unequal_seeds(arm: str, by_seed: Mapping[int, ArmEvidence]) -> None:
    """End the judgement with FAIL if an arm has equal starts and reads equal batches with two seeds.

    Two seeds may have the same start (a checkpoint) or the same batches, but not both. Different initial states of a
    generator also count as a difference if the training draws from this generator, for example for dropout.
    """
    for (first, one), (second, other) in combinations(by_seed.items(), 2):
        if _start(one) != _start(other) or not _one_draw(one, other):
            continue
        steps = min(len(one.series.loss), len(other.series.loss))
        if steps and first_unequal(one.series.batch_digest[:steps], other.series.batch_digest[:steps]) is None:
            settle(
                reasons.VACUOUS_SEEDS_ALIKE,
                f"with seeds {first} and {second}, arm {arm} starts from equal parameters and reads the same batches "
                f"at all {steps} steps",
            )


def _start(execution: ArmEvidence) -> tuple[object, ...]:
    """Return digests of the state before the first step, without the states of generators."""
    state = execution.start.state
    found = {} if state is None else {name: each for name, each in state.digests.items() if name != "generators"}
    return execution.start.trainable_digest, execution.start.frozen_digest, found


def _one_draw(one: ArmEvidence, other: ArmEvidence) -> bool:
    """Return True if every generator from which the training drew numbers started in the same state with both seeds."""
    ours, theirs = _drawn_from(one), _drawn_from(other)
    return all(ours.get(name, digest) == theirs.get(name, digest) for name, digest in (ours | theirs).items())


def _drawn_from(execution: ArmEvidence) -> dict[str, str]:
    """Return the initial state of each generator from which the training drew numbers. For a generator that was created
    during the training, return its state at the end."""
    start, end = execution.start.state, end_of(execution).state
    if start is None or end is None:
        return {}
    began, ended = (each.digests.get("generators", {}) for each in (start, end))
    return {name: began.get(name, digest) for name, digest in ended.items() if began.get(name) != digest}

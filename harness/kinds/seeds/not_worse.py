"""Judge `not_worse`: over several seeds a candidate's metric is not worse than the baseline's by more than a margin.

With each seed, both arms train from the same start on the same batches. Each such pair of trainings gives one
difference, and `decide` judges the differences of all seeds together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.judging import reasons
from harness.judging.comparison import Comparison, Group
from harness.judging.context import Context, replicas
from harness.judging.end_state import note_watched
from harness.judging.guards import require_distinct_batches
from harness.judging.series import values
from harness.judging.sheet import Sheet, number, settle
from harness.judging.statistics import PROBABLY, Array, Spread, fewest_processes, may_dissent, trimmed
from harness.judging.verdict import Demanded, Interval, Judgement
from harness.kinds.between_steps.resume import Chain, in_processes, join, note_checkpoint, require_checkpoints
from harness.kinds.seeds.model import MOST_SEEDS, NotWorse
from harness.kinds.seeds.unequal_seeds import executions_by_seed, require_steps_with_each, require_unequal_seeds
from harness.kinds.trajectory.trajectory_match import require_precisions

# With each seed, the candidate was saved after the first half of its training, and resumed in another process. The
# following functions join the two halves.


def require_steps_after_load(part: NotWorse, run: RunEvidence, sheet: Sheet) -> None:
    """End the judgement with FAIL if too few steps were made after the load. Do nothing if the claim sets no
    `save_at`."""
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
                f"{after} steps after the load were run with seed {seed}, but {needed} are required",
            )


def joined(part: NotWorse, run: RunEvidence) -> tuple[RunEvidence, list[Chain]]:
    """Return the run with one execution of the candidate for each seed. This execution joins two halves: the training
    before the save, and the training after the load. Also return a `Chain` of both halves for each seed.

    Without `save_at`, return the run unchanged and []. End the judgement with ERROR if a half is missing or wrong.
    """
    if part.save_at is None:
        return run, []
    executions = replicas(run, part.candidate, 2 * len(part.seeds))
    pairs = zip(part.seeds, executions[::2], executions[1::2], strict=True)
    chains = [_of_seed(part.candidate, seed, part.save_at, first, second) for seed, first, second in pairs]
    return replace(run, arms={**run.arms, part.candidate: [each.whole for each in chains]}), chains


def _of_seed(arm: str, seed: int, save_at: int, first: ArmEvidence, second: ArmEvidence) -> Chain:
    """Return both halves of a training as a `Chain`. End the judgement with ERROR if the second half has another
    seed."""
    there = second.start.facts.get("seed")
    if there != seed:
        settle(reasons.EVIDENCE_INCONSISTENT, f"arm {arm} was resumed with seed {there}, but seed {seed} is required")
    return join(arm, [first, second], saves=[save_at], steps_before_load=0)


def require_chains(arm: str, comparison: Comparison, chains: list[Chain]) -> None:
    """End the judgement unless, with each seed, a new process loaded the trained state. If a capture is
    required, both processes must have captured."""
    for chain in chains:
        for joint in chain.joints:
            comparison.captured(joint.first, joint.second, role="half")
        require_checkpoints(chain)
        comparison.finite_ends(in_processes(arm, chain))


def note_chains(chains: list[Chain], sheet: Sheet) -> None:
    """Add to the verdict's figures (`sheet`) those of the checkpoint whose load left the most tensors unrestored."""
    if chains:
        note_checkpoint(max((chain.worst for chain in chains), key=lambda joint: len(joint.lost)), sheet)


# The following functions compute the statistics of `not_worse`. They work on the last axis of their arrays, so that a
# simulation of many experiments can call the same functions.
#
# With each seed, both arms train from the same start on the same batches. This gives one number, the excess of the
# seed: by how much the candidate is worse, minus the allowed margin. docs/statistics.md derives how excesses decide.
# Shapes: `...` stands for any number of experiments, N for the number of seeds.


def excesses(candidate: Array, baseline: Array, margin: Array | float, *, lower_is_better: bool) -> Array:
    """Return by how much the candidate is worse than the baseline, minus the margin, for each of the N seeds. All
    arrays have the shape [..., N]. If a result is at most 0, the candidate is within the margin."""
    worse = candidate - baseline if lower_is_better else baseline - candidate
    return np.asarray(worse - margin)


def interval(excess: Array, confidence: float) -> tuple[Array, Array]:
    """Return a lower and an upper bound [...] on the trimmed mean of `excess` over seeds. confidence: that of each
    bound alone (one-sided)."""
    mean, reach = trimmed(excess, confidence)
    return mean - reach, mean + reach


def decide(excess: Array, confidence: float) -> NDArray[np.int8]:
    """Return an array [...] of decisions: 1 if the candidate is better, or worse by at most the margin; -1 if it is
    worse by more than the margin; 0 if this is undecided.

    The decision 1 has two conditions: the upper bound is at most 0, and the excess of nearly all seeds is at most 0.
    The second condition only counts seeds, so its error probability is known for any distribution of noise. The
    decision -1 has one condition: the lower bound is above 0.
    """
    low, high = interval(excess, confidence)
    dissenting = may_dissent(excess.shape[-1], confidence)
    reached = np.sort(excess, axis=-1)[..., -1 - dissenting]
    held = (high <= 0) & (reached <= 0)
    return np.asarray(held.astype(np.int8) - (low > 0).astype(np.int8), dtype=np.int8)


def seeds_to_decide(excess: Array, confidence: float) -> int | None:
    """Return an estimate of how many seeds would probably be enough for a decision, from the spread of `excess` [N].
    Return None if no allowed number of seeds would be enough.

    The estimate is larger than N and uses a normal approximation.
    """
    spread = Spread.of(excess)
    for seeds in range(max(fewest_processes(confidence), len(excess) + 1), MOST_SEEDS + 1):
        cleared = abs(spread.mean) >= spread.reach(confidence, seeds)
        agreed = spread.mean > 0 or spread.agreement(-spread.mean, seeds, confidence) >= PROBABLY
        if cleared and agreed:
            return seeds
    return None


@dataclass(frozen=True)
class Pairs:
    """The compared values of both arms and the allowed margins. Each array has shape [N], one value for each seed."""

    candidate: Array
    baseline: Array
    margins: Array
    lower_is_better: bool

    @property
    def worse(self) -> Array:
        """Return by how much the candidate is worse for each seed."""
        return excesses(self.candidate, self.baseline, 0.0, lower_is_better=self.lower_is_better)

    @property
    def excess(self) -> Array:
        """Return by how much the candidate is worse for each seed, minus the margin."""
        return excesses(self.candidate, self.baseline, self.margins, lower_is_better=self.lower_is_better)


def judge(part: NotWorse, context: Context, sheet: Sheet) -> Judgement:
    """Return the judgement of a claim. The checks are made in this order: steps after a load, a replayed capture,
    enough steps, precisions, finite losses, equal starts and batches of each seed, that seeds differ, enough distinct
    batches, whether the candidate is worse, the other guards, the end states, whether the difference is undecided."""
    run = context.only_run(part.chosen_probe())
    require_steps_after_load(part, run, sheet)
    run, chains = joined(part, run)
    by_seed = executions_by_seed(run, part.arms().values(), part.seeds)
    comparison = Comparison(part, context, sheet)
    require_chains(part.candidate, comparison, chains)
    for executions in by_seed.values():
        if not chains:  # With `save_at`, `require_chains` has already checked the captures
            comparison.captured(executions[part.candidate])
        comparison.captured(executions[part.baseline])
    sheet.count("seeds", len(by_seed))
    steps = {seed: len(executions[part.candidate].series.loss) for seed, executions in by_seed.items()}
    require_steps_with_each(steps, max(part.guards.steps, part.last), sheet)
    same_system = context.same_system(part.candidate, part.baseline)
    groups = []
    for place, (seed, executions) in enumerate(by_seed.items()):
        of_seed = replace(run, arms={arm: found[place : place + 1] for arm, found in run.arms.items()})
        groups.append(
            Group(
                _named(part, seed, executions),
                apart=in_processes(part.candidate, chains[place]) if chains else {},
                metric=part.metric,
                same_formats=same_system and part.precisions is None,
                run=of_seed,
            )
        )
    note_watched(groups[0].executions, sheet)
    for group, executions in zip(groups, by_seed.values(), strict=True):
        require_precisions(part, executions[part.candidate], executions[part.baseline])
        comparison.begin(group)
    _require_unequal_seeds(part, by_seed)
    # check the batches before the losses are compared, because the margin is meant for distinct batches
    for executions in by_seed.values():
        require_distinct_batches(part.guards, executions[part.candidate], sheet)
    note_chains(chains, sheet)
    pairs = pairs_of(part, by_seed)
    answer = _answer(part, pairs, sheet)
    for group in groups:
        comparison.end(group)
    if answer == 0:
        needed = seeds_to_decide(pairs.excess, part.confidence)
        sheet.figure("seeds_to_decide", needed, "seeds")
        settle(reasons.UNDECIDED_DIFFERENCE, _sentence(part, pairs))
    return comparison.held(_sentence(part, pairs))


def _named(part: NotWorse, seed: int, executions: Mapping[str, ArmEvidence]) -> dict[str, ArmEvidence]:
    """Return the executions of candidate and baseline with one seed, by the names that messages use."""
    roles = {"candidate": part.candidate, "baseline": part.baseline}
    return {f"{role} {arm} with seed {seed}": executions[arm] for role, arm in roles.items()}


def _require_unequal_seeds(part: NotWorse, by_seed: Mapping[int, Mapping[str, ArmEvidence]]) -> None:
    """End the judgement with FAIL if an arm has the same losses, or the same start and batches, with two seeds. The
    same measurement would then count twice."""
    for arm in (part.candidate, part.baseline):
        seen: dict[bytes, int] = {}
        for seed, executions in by_seed.items():
            first = seen.setdefault(values(executions[arm], part.metric).tobytes(), seed)
            if first != seed:
                settle(
                    reasons.VACUOUS_SEEDS_ALIKE,
                    f"arm {arm} has the same {part.metric} at every step with seeds {first} and {seed}",
                )
        require_unequal_seeds(arm, {seed: executions[arm] for seed, executions in by_seed.items()})


def pairs_of(part: NotWorse, by_seed: Mapping[int, Mapping[str, ArmEvidence]]) -> Pairs:
    """Return the compared values of all seeds, with the margins. A value is the metric's mean over the last steps."""
    ours, theirs = (
        np.array([values(executions[arm], part.metric)[-part.last :].mean() for executions in by_seed.values()])
        for arm in (part.candidate, part.baseline)
    )
    allowed = part.relative_margin * np.abs(theirs) if part.relative_margin else np.full(len(ours), part.margin)
    return Pairs(ours, theirs, np.asarray(allowed), part.direction == "lower_is_better")


def _answer(part: NotWorse, pairs: Pairs, sheet: Sheet) -> int:
    """Return 1 if the candidate is not worse, 0 if this is undecided. End the judgement with FAIL if the candidate is
    worse."""
    _note(part, pairs, sheet)
    fewest = fewest_processes(part.confidence)
    if len(part.seeds) < fewest:
        sheet.figure("seeds_to_decide", fewest, "seeds")
        settle(
            reasons.TOO_FEW_SEEDS,
            f"{len(part.seeds)} seeds cannot reach a confidence of {part.confidence:g}; use at least {fewest}",
        )
    answer = int(decide(pairs.excess, part.confidence))
    if answer < 0:
        sheet.holds(_demanded(part, pairs))
        settle(reasons.WORSE, _sentence(part, pairs))
    return answer


def _note(part: NotWorse, pairs: Pairs, sheet: Sheet) -> None:
    mean, reach = (float(each) for each in trimmed(pairs.worse, part.confidence))
    low, high = (float(each) for each in interval(pairs.excess, part.confidence))
    sheet.note(_demanded(part, pairs))
    sheet.figure("worse_by", mean, part.metric)
    sheet.figure("worse_by_at_most", mean + reach, part.metric)
    sheet.figure("worse_by_at_least", mean - reach, part.metric)
    sheet.figure("largest_margin", float(pairs.margins.max()), part.metric)
    sheet.figure("excess_at_most", high, part.metric)
    sheet.figure("excess_at_least", low, part.metric)
    sheet.figure("seeds_beyond_margin", int((pairs.excess > 0).sum()), "seeds")
    sheet.figure("confidence", part.confidence)
    sheet.figure("value_candidate", float(trimmed(pairs.candidate, part.confidence)[0]), part.metric)
    sheet.figure("value_baseline", float(trimmed(pairs.baseline, part.confidence)[0]), part.metric)


def _demanded(part: NotWorse, pairs: Pairs) -> Demanded:
    mean, reach = (float(each) for each in trimmed(pairs.worse, part.confidence))
    # If the margins are relative, use the mean of the margins of all seeds.
    allowed = part.margin or mean - float(trimmed(pairs.excess, part.confidence)[0])
    interval = Interval(mean - reach, mean + reach, part.confidence, "one-sided bounds", "seeds")
    return Demanded("worse_by", mean, "at most", allowed, part.metric, interval=interval)


def _sentence(part: NotWorse, pairs: Pairs) -> str:
    mean, reach = (float(each) for each in trimmed(pairs.worse, part.confidence))
    what = "final value" if part.last == 1 else f"mean of the last {part.last} steps"
    allowed = f"{part.margin:g} is" if part.margin else f"{part.relative_margin:g} times the baseline's value is"
    beyond = int((pairs.excess > 0).sum())
    resumed = "" if part.save_at is None else f"resumed after step {part.save_at - 1}; "
    side = "above" if (mean > 0) == pairs.lower_is_better else "below"
    return (
        f"over {len(part.seeds)} seeds, the {part.metric} of {part.candidate} ({resumed}{what}) lies "
        f"{number(abs(mean))} {side} that of {part.baseline}; at {part.confidence * 100:g}% confidence it is worse "
        f"by at least {number(mean - reach)} and at most {number(mean + reach)}; {allowed} allowed, and {beyond} "
        "seeds lie beyond that"
    )

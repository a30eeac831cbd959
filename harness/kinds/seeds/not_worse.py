"""Judge `not_worse`: over several seeds a candidate's metric is not worse than the baseline's by more than a margin.

With each seed both arms train from one start on the same batches. Each pair yields one difference; `paired_seeds`
decides by these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from harness.evidence.run_evidence import ArmEvidence
from harness.judging import reasons
from harness.judging.comparison import Comparison, Group
from harness.judging.context import Context
from harness.judging.demanded import Demanded, Interval
from harness.judging.end_state import note_watched
from harness.judging.series import values
from harness.judging.sheet import Sheet, number, settle
from harness.judging.statistics import Array, fewest_processes, trimmed
from harness.judging.verdict import Judgement
from harness.kinds.between_steps.training_chain import in_processes
from harness.kinds.seeds import paired_seeds
from harness.kinds.seeds.interrupted_seeds import joined, note_chains, require_chains, require_steps_after_load
from harness.kinds.seeds.model import NotWorse
from harness.kinds.seeds.unequal_seeds import executions_by_seed, require_steps_with_each, require_unequal_seeds
from harness.kinds.trajectory.trajectory_match import require_precisions


@dataclass(frozen=True)
class Pairs:
    """Of each seed the compared value of either arm, and by how much the candidate may be worse; [N] each."""

    candidate: Array
    baseline: Array
    margins: Array
    lower_is_better: bool

    @property
    def worse(self) -> Array:
        """Return by how much the candidate is worse with each seed."""
        return paired_seeds.excesses(self.candidate, self.baseline, 0.0, lower_is_better=self.lower_is_better)

    @property
    def excess(self) -> Array:
        """Return by how much the candidate is worse with each seed, less what is allowed."""
        return paired_seeds.excesses(self.candidate, self.baseline, self.margins, lower_is_better=self.lower_is_better)


def judge(part: NotWorse, context: Context, sheet: Sheet) -> Judgement:
    """Judge in this order: steps after a load, capture, steps, finiteness, precisions, equal starts and batches of each
    seed, unequal seeds, a candidate that is worse, guards, the ends, then whether anything was decided.
    """
    run = context.only_run(part.chosen_probe())
    require_steps_after_load(part, run, sheet)
    run, chains = joined(part, run)
    by_seed = executions_by_seed(run, part.arms().values(), part.seeds)
    comparison = Comparison(part, context, sheet)
    require_chains(part.candidate, comparison, chains)
    for executions in by_seed.values():
        if not chains:  # whose captures were not watched
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
    note_chains(chains, sheet)
    pairs = pairs_of(part, by_seed)
    answer = _answer(part, pairs, sheet)
    for group in groups:
        comparison.end(group)
    if answer == 0:
        needed = paired_seeds.seeds_to_decide(pairs.excess, part.confidence)
        sheet.figure("seeds_to_decide", needed, "seeds")
        settle(reasons.UNDECIDED_DIFFERENCE, _sentence(part, pairs))
    return comparison.held(_sentence(part, pairs))


def _named(part: NotWorse, seed: int, executions: Mapping[str, ArmEvidence]) -> dict[str, ArmEvidence]:
    """Return candidate and baseline by their names in sentences."""
    roles = {"candidate": part.candidate, "baseline": part.baseline}
    return {f"{role} {arm} with seed {seed}": executions[arm] for role, arm in roles.items()}


def _require_unequal_seeds(part: NotWorse, by_seed: Mapping[int, Mapping[str, ArmEvidence]]) -> None:
    """Settle FAIL where two seeds give one series, which counts one measurement twice, or change nothing."""
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
    """Return the compared values: means over the last steps."""
    ours, theirs = (
        np.array([values(executions[arm], part.metric)[-part.last :].mean() for executions in by_seed.values()])
        for arm in (part.candidate, part.baseline)
    )
    allowed = part.relative_margin * np.abs(theirs) if part.relative_margin else np.full(len(ours), part.margin)
    return Pairs(ours, theirs, np.asarray(allowed), part.direction == "lower_is_better")


def _answer(part: NotWorse, pairs: Pairs, sheet: Sheet) -> int:
    """Return 1 for not worse, 0 for undecided. Settles FAIL where the candidate is worse."""
    _note(part, pairs, sheet)
    fewest = fewest_processes(part.confidence)
    if len(part.seeds) < fewest:
        sheet.figure("seeds_to_decide", fewest, "seeds")
        settle(
            reasons.TOO_FEW_SEEDS,
            f"{len(part.seeds)} seeds cannot reach a confidence of {part.confidence:g}; at least {fewest} can",
        )
    answer = int(paired_seeds.decide(pairs.excess, part.confidence))
    if answer < 0:
        sheet.holds(_demanded(part, pairs))
        settle(reasons.WORSE, _sentence(part, pairs))
    return answer


def _note(part: NotWorse, pairs: Pairs, sheet: Sheet) -> None:
    mean, reach = (float(each) for each in trimmed(pairs.worse, part.confidence))
    low, high = (float(each) for each in paired_seeds.interval(pairs.excess, part.confidence))
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
    allowed = part.margin or mean - float(trimmed(pairs.excess, part.confidence)[0])  # of a relative one, in the mean
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
        f"over {len(part.seeds)} seeds the {part.metric} of {part.candidate} ({resumed}{what}) lies "
        f"{number(abs(mean))} {side} that of {part.baseline}; at {part.confidence * 100:g}% confidence it is worse by "
        f"at least {number(mean - reach)} and at most {number(mean + reach)}, {allowed} allowed, and {beyond} seeds "
        "lie beyond that"
    )

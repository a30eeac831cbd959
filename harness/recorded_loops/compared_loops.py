"""Judge two recorded runs against each other, with repeats of each as their noise.

The claim is that both do the same arithmetic. Runs that are equal in bits hold it. Bits that differ accuse a candidate
only if the baseline was repeated: a start, a batch or a number of steps in which it repeats itself, or a number further
away than a rounding where it repeats itself in bits. A baseline that does not repeat its bits is compared by its own
noise (`harness.judging.own_noise`), over the numbers of all ranks together, which takes five runs of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from harness.errors import UsageError
from harness.evidence.arm_records import Sketch
from harness.judging import reasons
from harness.judging.own_noise import (
    PARAMETER,
    Features,
    features_of_series,
    features_of_sketches,
    hidden_by,
    require_unseparated,
)
from harness.judging.series import first_true
from harness.judging.sheet import Sheet, concluded, settle, some
from harness.judging.verdict import Judgement
from harness.kinds.trajectory.model import RUNS
from harness.numbers import counted
from harness.recorded_loops.first_differences import (
    BATCH,
    END,
    LENGTH,
    START,
    Difference,
    batches,
    common_steps,
    differences,
    name_at,
    same_end,
)
from harness.recorded_loops.not_controlled import not_controlled
from harness.recorded_loops.recordings import RankRecording, Recording

_REASONS = {
    START: reasons.UNEQUAL_START,
    BATCH: reasons.UNEQUAL_BATCHES,
    LENGTH: reasons.UNEQUAL_LENGTHS,
    END: reasons.END_DIFFERS,
}


@dataclass(frozen=True)
class ComparedRuns:
    """Two runs with repeats of each, the verdict, the first difference, and what was not controlled."""

    baseline: Recording
    candidate: Recording
    repeats: Sequence[Recording]
    candidate_repeats: Sequence[Recording]
    judgement: Judgement
    first: Difference | None
    not_controlled: Sequence[str]


def compared(
    baseline: Recording,
    candidate: Recording,
    repeats: Sequence[Recording] = (),
    candidate_repeats: Sequence[Recording] = (),
) -> ComparedRuns:
    """Judge the candidate. Raises UsageError where the runs have different ranks, or where one was named twice."""
    baselines, candidates = [baseline, *repeats], [candidate, *candidate_repeats]
    _require_comparable([*baselines, *candidates])
    found = [each for run in candidates for each in differences(run, baseline)]
    judgement = concluded(partial(_judge, baselines, candidates, found), None)
    uncontrolled = list(not_controlled(baseline, candidate))
    first = min(found, default=None)
    return ComparedRuns(baseline, candidate, repeats, candidate_repeats, judgement, first, uncontrolled)


def _require_comparable(runs: Sequence[Recording]) -> None:
    first, *others = runs
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        raise UsageError("each recording is named once", got=", ".join(names), remedy="leave out what stands twice")
    for run in others:
        if run.world_size != first.world_size or run.ranks.keys() != first.ranks.keys():
            found = (f"{', '.join(map(str, each.ranks))} of {each.world_size} in {each.name}" for each in (first, run))
            rule, remedy = "runs are compared rank by rank", "record the same ranks in all of them"
            raise UsageError(rule, got=f"ranks {' and '.join(found)}", remedy=remedy)


def _judge(
    baselines: Sequence[Recording], candidates: Sequence[Recording], found: Sequence[Difference], sheet: Sheet
) -> Judgement:
    baseline, candidate, repeats = baselines[0], candidates[0], baselines[1:]
    named = {name_at(run, rank): each for run in [*baselines, *candidates] for rank, each in run.ranks.items()}
    steps = common_steps(*named.values())
    sheet.count("steps", steps)
    sheet.count("ranks", len(baseline.ranks))
    sheet.figure("repeats", len(repeats), "runs")
    _require_finite(named, sheet)
    first = min(found, default=None)
    if first is None:
        cut = [f"{name}: {each.interrupted}" for name, each in named.items() if each.interrupted]
        if cut:
            settle(
                reasons.END_STATE_UNRECORDED,
                f"{counted(steps, 'step')} are equal in bits, and a run was interrupted ({some(cut)}); record it again",
            )
        return sheet.held(f"{candidate.name} equals {baseline.name} in bits: {_in_words(baseline, candidate)}")
    sheet.figure("first_differing_step", first.step, "step")
    if not repeats:
        settle(
            reasons.TOO_FEW_PROCESSES,
            f"{first.detail}; nothing shows if {baseline.name} repeats itself: record it again, and give --repeat",
        )
    own = [each for run in repeats for each in differences(run, baseline)]
    exact = min((each for each in found if each.exact), default=None)
    again = [] if exact is None else [each for each in own if each.exact and each.quantity == exact.quantity]
    if exact is not None and again:
        settle(
            reasons.BASELINE_NOT_REPEATABLE,
            f"{exact.detail}; {baseline.name} does not repeat this either: {min(again).detail}",
        )
    accuses = exact if own or first.is_rounding else first
    if accuses is not None:
        reason = _REASONS.get(accuses.quantity, reasons.DIFFERS)
        times = counted(len(repeats), "repeat")
        settle(reason, f"{accuses.detail}; no such difference is in {times} of {baseline.name}")
    return _judge_by_noise(baselines, candidates, first, sheet, repeats_itself=not own)


def _require_finite(named: Mapping[str, RankRecording], sheet: Sheet) -> None:
    """Settle FAIL at the first step at which a loss is NaN or infinite."""
    bad = [
        (step, name) for name, each in named.items() if (step := first_true(~np.isfinite(each.series.loss))) is not None
    ]
    if bad:
        step, name = min(bad)
        sheet.figure("first_non_finite_step", step, "step")
        settle(reasons.NON_FINITE, f"the loss of {name} is {named[name].series.loss[step]} at step {step}")


def _judge_by_noise(
    baselines: Sequence[Recording],
    candidates: Sequence[Recording],
    first: Difference,
    sheet: Sheet,
    *,
    repeats_itself: bool,
) -> Judgement:
    """Compare as many runs of each as there are of both. Fewer than the rule needs decide nothing."""
    runs = min(len(baselines), len(candidates))
    if runs < RUNS:
        options = {"--repeat": RUNS - len(baselines), "--candidate-repeat": RUNS - len(candidates)}
        more = [f"{number} more {option}" for option, number in options.items() if number > 0]
        size = "which may be a rounding" if first.is_rounding else f"and {baselines[0].name} has noise of its own"
        settle(reasons.TOO_FEW_PROCESSES, f"{first.detail}, {size}; to decide, give {' and '.join(more)}")
    first_states = {rank: min(each.states, default=0) for rank, each in baselines[0].ranks.items()}
    start = {
        name: sketch
        for rank, steps in first_states.items()
        for name, sketch in _sketches(baselines[0], rank, steps).items()
    }
    features = list(_features([*candidates[:runs], *baselines[:runs]]))
    seen = require_unseparated(features, start, candidates[0].name, sheet)
    if repeats_itself:
        settle(reasons.NO_NOISE, f"{first.detail}, and {baselines[0].name} repeats itself in bits")
    if not seen.of(PARAMETER):
        settle(
            reasons.END_STATE_UNRECORDED,
            "the runs differ as noise makes them, and without their parameters nothing shows what the noise hides: "
            "give `model` to `harness.record`",
        )
    if not seen.seen_way:
        settle(reasons.NOISE_HIDES, "the noise is so large that a parameter which is not trained would not show")
    names = f"{candidates[0].name} and of {baselines[0].name}"
    return sheet.held(f"{counted(runs, 'run')} of {names} differ as those of either do{hidden_by(seen)}")


def _features(runs: Sequence[Recording]) -> Iterator[Features]:
    """Yield the series and the sketches of the end that all runs have, of all ranks."""
    steps = common_steps(*(each for run in runs for each in run.ranks.values()))
    sketched = [dict[str, Sketch]() for _ in runs]
    for rank, first in runs[0].ranks.items():
        for name in first.quantities:
            if all(name in run.ranks[rank].quantities for run in runs):
                series = np.stack([run.ranks[rank].quantities[name][:steps] for run in runs])
                if np.isfinite(series).all():  # a norm may be infinite where a scaled loss overflows
                    yield features_of_series(series, f"{name}{_of(rank, runs[0])}")
        for run, into in zip(runs, sketched, strict=True):
            into |= {f"end {name}": sketch for name, sketch in _sketches(run, rank, steps).items()}
    yield from features_of_sketches(sketched)


def _sketches(run: Recording, rank: int, steps: int) -> dict[str, Sketch]:
    """Return the sketches of a state by `category name`, with the rank where there are several; empty if none is."""
    seen = run.ranks[rank].states.get(steps)
    return {f"{name}{_of(rank, run)}": sketch for name, sketch in seen.sketches.items()} if seen is not None else {}


def _of(rank: int, run: Recording) -> str:
    return f" of rank {rank}" if run.world_size > 1 else ""


def _in_words(baseline: Recording, candidate: Recording) -> str:
    """Return what two equal runs were compared in."""
    (one, other), *_ = pairs = [(baseline.ranks[rank], candidate.ranks[rank]) for rank in baseline.ranks]
    words = [name for name in one.quantities if name in other.quantities]
    words += ["batches"] if batches(one, other) else []
    words += ["the end"] if same_end(one, other) else []
    return f"{', '.join(words)} of {counted(one.steps, 'step')} at {counted(len(pairs), 'rank')}"

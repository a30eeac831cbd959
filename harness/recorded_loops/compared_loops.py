"""Judge two recorded runs against each other, with repeats of each as their noise.

The claim is that both do the same arithmetic. Runs that are equal in bits hold it. Bits that differ accuse a candidate
only where the baseline's repeats show it (`first_differences`): a start, a batch or a number of steps, or a number
further away than a rounding where they repeat all bits. A baseline that does not repeat its bits is compared by its own
noise (`harness.judging.own_noise`), over the numbers of all ranks together, which takes five runs of each.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

from harness.errors import UsageError
from harness.evidence.arm_records import Sketch
from harness.judging import reasons
from harness.judging.own_noise import (
    MOST_TIMED,
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
    Repeats,
    batches,
    common_steps,
    differences,
    name_at,
    not_controlled,
    same_end,
    sentence,
)
from harness.recorded_loops.recordings import Recording

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
    first_in_words: str
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
    first, words = min(found, default=None), sentence(found) if found else ""
    return ComparedRuns(baseline, candidate, repeats, candidate_repeats, judgement, first, words, uncontrolled)


def _require_comparable(runs: Sequence[Recording]) -> None:
    first, *others = runs
    names = [run.name for run in runs]
    if len({Path(name).resolve() for name in names}) < len(names):
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
    pair = {name_at(run, rank): each for run in (baseline, candidate) for rank, each in run.ranks.items()}
    steps = common_steps(*pair.values())
    sheet.count("steps", steps)
    sheet.count("ranks", len(baseline.ranks))
    sheet.figure("repeats", len(repeats), "runs")
    if not found:
        cut = [f"{name}: {each.interrupted}" for name, each in pair.items() if each.interrupted]
        if cut:
            equal = "1 step is" if steps == 1 else f"{steps} steps are"
            settle(
                reasons.END_STATE_UNRECORDED,
                f"{equal} equal in bits, and a run was interrupted ({some(cut)}); record it again",
            )
        return sheet.held(f"{candidate.name} equals {baseline.name} in bits: {_in_words(baseline, candidate)}")
    first = min(found)
    sheet.figure("first_differing_step", first.step, "step")
    _require_finite(["loss"], baselines, candidates, sheet)
    if not repeats:
        settle(
            reasons.TOO_FEW_PROCESSES,
            f"{sentence(found)}; nothing shows if {baseline.name} repeats itself: record it again, and give --repeat",
        )
    repeated = Repeats(baseline, repeats)
    accused = repeated.accused(found)
    if accused:
        reason = _REASONS.get(min(accused).quantity, reasons.DIFFERS)
        times = counted(len(repeats), "repeat")
        settle(reason, f"{sentence(accused)}; no such difference is in {times} of {baseline.name}")
    unrepeated = [each for each in repeated.own if each.quantity in (START, BATCH, LENGTH)]
    if unrepeated:
        settle(
            reasons.BASELINE_NOT_REPEATABLE,
            f"{sentence(found)}; {baseline.name} does not repeat itself either: {sentence(unrepeated)}",
        )
    silent = [each for each in found if not repeated.speak_about(each)]
    if silent:
        settle(
            reasons.TOO_FEW_PROCESSES,
            f"{sentence(silent)}; no repeat recorded this as {baseline.name} did: give one with --repeat that does",
        )
    return _judge_by_noise(baselines, candidates, found, sheet, repeats_itself=not repeated.own)


def _require_finite(
    names: Collection[str], baselines: Sequence[Recording], candidates: Sequence[Recording], sheet: Sheet
) -> None:
    """Settle FAIL at the first step at which a candidate's number is NaN or infinite and no baseline's is."""
    bad = list[tuple[int, str]]()
    for run, rank, name in product(candidates, baselines[0].ranks, names):
        theirs = [each.ranks[rank].quantities.get(name, np.zeros(0)) for each in baselines]
        wrong = ~np.isfinite(run.ranks[rank].quantities.get(name, np.zeros(0))[: len(theirs[0])])
        for series in theirs:
            wrong[: len(series)] &= np.isfinite(series[: len(wrong)])
        if (step := first_true(wrong)) is not None:
            value = run.ranks[rank].quantities[name][step]
            bad.append((step, f"the {name} of {name_at(run, rank)} is {value} at step {step}"))
    if bad:
        sheet.figure("first_non_finite_step", min(bad)[0], "step")
        settle(reasons.NON_FINITE, min(bad)[1])


def _judge_by_noise(
    baselines: Sequence[Recording],
    candidates: Sequence[Recording],
    found: Sequence[Difference],
    sheet: Sheet,
    *,
    repeats_itself: bool,
) -> Judgement:
    """Compare as many runs of each as there are of both. Fewer than the rule needs decide nothing."""
    given = [[each[0], *(run for run in each[1:] if not run.interrupted)] for each in (baselines, candidates)]
    runs = min(MOST_TIMED, *map(len, given))
    if runs < RUNS:
        options = {name: RUNS - len(each) for name, each in zip(("--repeat", "--candidate-repeat"), given, strict=True)}
        more = [f"{number} more {option}" for option, number in options.items() if number > 0]
        size = "which may be a rounding" if repeats_itself else f"and {baselines[0].name} has noise of its own"
        settle(reasons.TOO_FEW_PROCESSES, f"{sentence(found)}, {size}; to decide, give {' and '.join(more)}")
    first_states = {rank: min(each.states, default=0) for rank, each in baselines[0].ranks.items()}
    start = {
        name: sketch
        for rank, steps in first_states.items()
        for name, sketch in _sketches(baselines[0], rank, steps).items()
    }
    used = [*given[1][:runs], *given[0][:runs]]
    quantities = {name for run in used for each in run.ranks.values() for name in each.quantities}
    names = sorted(quantities, key=lambda name: (name != "loss", name))
    _require_finite(names, used[runs:], used[:runs], sheet)
    features, dropped = _features(names, used)
    seen = require_unseparated(features, start, candidates[0].name, sheet)
    if repeats_itself:
        settle(reasons.NO_NOISE, f"{sentence(found)}, and {baselines[0].name} repeats itself in bits")
    if not seen.of(PARAMETER):
        settle(
            reasons.END_STATE_UNRECORDED,
            "the runs differ as noise makes them, and without their parameters nothing shows what the noise hides: "
            "give `model` to `harness.record`",
        )
    if not seen.seen_way:
        settle(reasons.NOISE_HIDES, "the noise is so large that a parameter which is not trained would not show")
    both = f"{candidates[0].name} and of {baselines[0].name}"
    without = f", without {some(dropped)}" if dropped else ""
    return sheet.held(f"{counted(runs, 'run')} of {both} differ as those of either do{without}{hidden_by(seen)}")


def _features(names: Collection[str], runs: Sequence[Recording]) -> tuple[list[Features], list[str]]:
    """Return the series and sketches of the end that all runs have, of all ranks, and the names of series left out.

    A series is left out where a run lacks it or where it is not finite, as the norm of a scaled loss that overflows.
    """
    steps = common_steps(*(each for run in runs for each in run.ranks.values()))
    features, dropped, sketched = list[Features](), list[str](), [dict[str, Sketch]() for _ in runs]
    for rank, name in product(runs[0].ranks, names):
        known = [run.ranks[rank].quantities.get(name) for run in runs]
        series = np.stack([np.full(steps, np.nan) if each is None else each[:steps] for each in known])
        if np.isfinite(series).all():
            features.append(features_of_series(series, f"{name}{_of(rank, runs[0])}"))
        else:
            dropped.append(f"{name}{_of(rank, runs[0])}")
    for rank, (run, into) in product(runs[0].ranks, zip(runs, sketched, strict=True)):
        into |= {f"end {name}": sketch for name, sketch in _sketches(run, rank, steps).items()}
    features += features_of_sketches(sketched)
    if not any(each.names[:1] and each.names[0].startswith("loss of ") for each in features[:1]):
        settle(
            reasons.TOO_FEW_PROCESSES, "the runs have no step in common, or no losses that are finite in all of them"
        )
    return features, dropped


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

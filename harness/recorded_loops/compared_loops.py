"""Compare two recorded runs and judge them. Repeats of a run show how much the run differs from itself (its noise).

The claim is that both runs do the same arithmetic. The claim holds for runs that are equal in bits. Otherwise the
repeats of the baseline decide (`recordings.Repeats`):

- If start, batch or number of steps differ in the candidate, but in no repeat, the claim is violated.
- If the repeats are equal in bits, a number that differs by more than a rounding violates the claim. If the first
difference is only a rounding, the claim is undecided.
- If the repeats differ in bits, both runs are compared by their noise (`harness.judging.own_noise`), over the numbers
of all ranks together. This needs five runs of the candidate and five of the baseline.
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
from harness.judging import own_noise, reasons
from harness.judging.series import first_true
from harness.judging.sheet import Sheet, concluded, settle, some
from harness.judging.verdict import Judgement
from harness.kinds.trajectory.model import RUNS
from harness.numbers import counted
from harness.recorded_loops.recordings import (
    BATCH,
    END,
    LENGTH,
    RATE,
    START,
    Difference,
    Recording,
    Repeats,
    batches,
    common_steps,
    differences,
    name_at,
    not_controlled,
    same_end,
    sentence,
)

_REASONS = {
    START: reasons.UNEQUAL_START,
    BATCH: reasons.UNEQUAL_BATCHES,
    LENGTH: reasons.UNEQUAL_LENGTHS,
    END: reasons.END_DIFFERS,
}


@dataclass(frozen=True)
class ComparedRuns:
    """A baseline and a candidate with repeats of each run, the verdict, and the first difference from the baseline.

    not_controlled: sentences about what was not compared, and about what was not kept equal between the runs.
    """

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
    """Judge the candidate and return the result. Raise UsageError if the runs have different ranks, or if a run is
    given twice."""
    baselines, candidates = [baseline, *repeats], [candidate, *candidate_repeats]
    _require_comparable([*baselines, *candidates])
    found = [each for run in candidates for each in differences(run, baseline)]
    judgement = concluded(partial(_judge, baselines, candidates, found), None)
    uncontrolled = list(not_controlled(baseline, candidate))
    first, words = min(found, default=None), sentence(found) if found else ""
    return ComparedRuns(baseline, candidate, repeats, candidate_repeats, judgement, first, words, uncontrolled)


def _require_comparable(runs: Sequence[Recording]) -> None:
    first, *others = runs
    if len({Path(run.name).resolve() for run in runs}) < len(runs):
        names = ", ".join(run.name for run in runs)
        raise UsageError(
            "each recording must be named only once", got=names, remedy="leave out the recording that is named twice"
        )
    for run in others:
        if run.world_size != first.world_size or run.ranks.keys() != first.ranks.keys():
            ranks_of_both = (
                f"ranks {', '.join(map(str, each.ranks))} of {each.world_size} in {each.name}" for each in (first, run)
            )
            ranks_must_be_the_same, record_same_ranks = (
                "runs must have the same ranks, because they are compared rank by rank",
                "record the same ranks in all of them",
            )
            raise UsageError(ranks_must_be_the_same, got=" and ".join(ranks_of_both), remedy=record_same_ranks)


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
            why = f"{equal} equal in bits, but a run was interrupted ({some(cut)}); record that run again"
            settle(reasons.END_STATE_UNRECORDED, why)
        return sheet.held(f"{candidate.name} equals {baseline.name} in bits: {_in_words(baseline, candidate)}")
    sheet.figure("first_differing_step", min(found).step, "step")
    _series(["loss"], candidates, baselines, sheet)
    if not repeats:
        why = (
            f"{sentence(found)}; nothing shows whether {baseline.name} repeats itself: record the baseline again and "
            "pass it with --repeat"
        )
        settle(reasons.TOO_FEW_PROCESSES, why)
    repeated = Repeats(baseline, repeats)
    accused = repeated.accused(found)
    if accused and min(accused).quantity == LENGTH and any(each.by_exit for each in pair.values()):
        why = (
            "the recording was closed by the end of its process, perhaps in the middle of the loop: call `close`, or "
            "use a `with` block"
        )
        settle(reasons.END_STATE_UNRECORDED, f"{sentence(accused)}; {why}")
    if accused:
        reason = _REASONS.get(min(accused).quantity, reasons.DIFFERS)
        times = counted(len(repeats), "repeat")
        settle(reason, f"{sentence(accused)}; {times} of {baseline.name} showed no such difference")
    unrepeated = [each for each in repeated.own if each.quantity in (START, BATCH, LENGTH)]
    if unrepeated:
        why = f"{sentence(found)}; {baseline.name} does not repeat itself either: {sentence(unrepeated)}"
        settle(reasons.BASELINE_NOT_REPEATABLE, why)
    silent = [each for each in found if not repeated.speak_about(each)]
    if silent:
        why = (
            f"{sentence(silent)}; {baseline.name} recorded this quantity, but no repeat did: record a repeat with this "
            "quantity and pass it with --repeat"
        )
        settle(reasons.TOO_FEW_PROCESSES, why)
    if not repeated.own:
        _series(_quantities([*candidates, *baselines]), candidates, baselines, sheet)
        why = f"{sentence(found)}, which may be a rounding, although {baseline.name} repeats itself in bits"
        settle(
            reasons.NO_NOISE,
            f"{why}: no repeat shows how large a difference rounding alone can cause; set a bound in a contract "
            "(`harness init`)",
        )
    return _judge_by_noise(baselines, candidates, found, sheet)


def _quantities(runs: Sequence[Recording]) -> list[str]:
    """Return the names of all recorded series, the loss first."""
    names = {name for run in runs for each in run.ranks.values() for name in each.quantities}
    return sorted(names, key=lambda name: (name != "loss", name))


def _series(
    names: Collection[str], candidates: Sequence[Recording], baselines: Sequence[Recording], sheet: Sheet
) -> dict[str, own_noise.Floats | None]:
    """Return one array [runs, steps] for each series, by name and rank. The candidates' rows come first.

    The value is None for a series that a run lacks or that has non-finite numbers. End the judgement with FAIL if a
    candidate's number is NaN or infinite at a step at which the numbers of all baselines are finite.
    """
    runs, found = [*candidates, *baselines], dict[str, own_noise.Floats | None]()
    steps = common_steps(*(each for run in runs for each in run.ranks.values()))
    for rank, name in product(runs[0].ranks, names):
        known = [run.ranks[rank].quantities.get(name, np.zeros(0))[:steps] for run in runs]
        whole = min(map(len, known)) == steps
        series = np.stack(known) if whole else np.zeros((len(runs), 0))
        bad = ~np.isfinite(series)
        alone = np.logical_or.reduce(bad[: len(candidates)]) & ~np.logical_or.reduce(bad[len(candidates) :])
        step = first_true(alone)
        if step is not None:
            row = int(np.argmax(bad[:, step]))
            whose = f"{name} of {name_at(runs[row], rank)}"
            sheet.figure("first_non_finite_step", step, "step")
            settle(reasons.NON_FINITE, f"the {whose} is {series[row, step]} at step {step}")
        found[f"{name}{_of(rank, runs[0])}"] = series if whole and not bad.any() else None
    return found


def _judge_by_noise(
    baselines: Sequence[Recording], candidates: Sequence[Recording], found: Sequence[Difference], sheet: Sheet
) -> Judgement:
    """Judge equally many runs of candidate and baseline by their noise. With fewer than `RUNS` runs of one of them, the
    claim is undecided."""
    given = [
        [each[0], *(run for run in each[1:] if not any(rank.interrupted for rank in run.ranks.values()))]
        for each in (baselines, candidates)
    ]
    runs = min(own_noise.MOST_TIMED, *map(len, given))
    if runs < RUNS:
        options = {name: RUNS - len(each) for name, each in zip(("--repeat", "--candidate-repeat"), given, strict=True)}
        more = [f"{number} more {option}" for option, number in options.items() if number > 0]
        noise = f"and repeats of {baselines[0].name} differ from it, too"
        settle(reasons.TOO_FEW_PROCESSES, f"{sentence(found)}, {noise}; to decide, pass {' and '.join(more)}")
    ours, theirs = given[1][:runs], given[0][:runs]
    series = _series(_quantities([*ours, *theirs]), ours, theirs, sheet)
    dropped = [name for name, each in series.items() if each is None]
    first_loss = next(iter(series.values()))
    if first_loss is None or not first_loss.size:
        settle(reasons.TOO_FEW_PROCESSES, "the runs have no common step, or no losses that are finite in all of them")
    features = [own_noise.features_of_series(each, name) for name, each in series.items() if each is not None]
    steps = first_loss.shape[1]
    ends = [_sketches(run, steps) for run in (*ours, *theirs)]
    features += own_noise.features_of_sketches([{f"end {name}": each for name, each in end.items()} for end in ends])
    seen = own_noise.require_unseparated(
        features, _sketches(theirs[0], 0) or _sketches(theirs[0], 1), ours[0].name, sheet
    )
    if not seen.of(own_noise.PARAMETER):
        settle(
            reasons.END_STATE_UNRECORDED,
            "the runs differ only as noise explains, but their parameters were not recorded, so nothing shows what the "
            "noise hides: pass `model` to `harness.record`",
        )
    if not seen.seen_way:
        settle(reasons.NOISE_HIDES, "the noise is so large that an untrained parameter would not be noticed")
    both = f"{candidates[0].name} and of {baselines[0].name}"
    tail = (f", without {some(dropped)}" if dropped else "") + own_noise.hidden_by(seen, gradients=False)
    return sheet.held(f"{counted(runs, 'run')} of {both} differ no more than repeats of the same run do{tail}")


def _sketches(run: Recording, steps: int) -> dict[str, Sketch]:
    """Return the sketches (sums over a tensor) of each rank's state after `steps` steps, by category, name and rank."""
    states = {rank: each.states[steps] for rank, each in run.ranks.items() if steps in each.states}
    return {f"{name}{_of(rank, run)}": each for rank, seen in states.items() for name, each in seen.sketches.items()}


def _of(rank: int, run: Recording) -> str:
    return f" of rank {rank}" if run.world_size > 1 else ""


def _in_words(baseline: Recording, candidate: Recording) -> str:
    """Return a text that names the quantities, steps and ranks that were compared between two equal runs."""
    (one, other), *_ = pairs = [(baseline.ranks[rank], candidate.ranks[rank]) for rank in baseline.ranks]
    both = [name for name in one.quantities if name in other.quantities]
    words = [name for name in both if not name.startswith(RATE)]
    words += ["learning rates"] if len(words) < len(both) else []
    words += ["batches"] if batches(one, other) else []
    words += ["the end"] if same_end(one, other) else []
    return f"{', '.join(words)} of {counted(one.steps, 'step')} at {counted(len(pairs), 'rank')}"

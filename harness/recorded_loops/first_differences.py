"""Find where two recordings of one rank first differ in each quantity: start, batches, series, number of steps, end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from harness.evidence.arm_records import State
from harness.judging.end_state import Apart, differing
from harness.judging.own_noise import is_rounding, roundings
from harness.judging.series import EXACT, difference
from harness.judging.sheet import number, some
from harness.recorded_loops.recordings import LoopState, RankRecording, Recording

START, BATCH, LENGTH, STATE, END = "start", "batch", "number of steps", "state after the step", "end"
_FIRST = (START, BATCH, LENGTH)  # what comes first within a step is nearest to the cause; then come series
_LAST = 1000  # the place of a state within the step that left it


@dataclass(frozen=True, order=True)
class Difference:
    """The first difference of one quantity at one rank. Of several the least is the first: by step, then by cause."""

    step: int  # -1: before the first one
    place: int  # within the step
    rank: int
    quantity: str = field(compare=False)
    detail: str = field(compare=False)
    exact: bool = field(default=False, compare=False)  # noise cannot make it
    is_rounding: bool = field(default=False, compare=False)  # it is no larger than a rounding


def name_at(run: Recording, rank: int) -> str:
    """Return the name of a run in a sentence, with the rank where there are several."""
    return run.name if run.world_size == 1 else f"{run.name} at rank {rank}"


def common_steps(*ranks: RankRecording) -> int:
    """Return the number of steps that all of these recorded."""
    return min(each.steps for each in ranks)


def batches(one: RankRecording, other: RankRecording) -> list[tuple[int, str, str]]:
    """Return step and digests where both recorded a batch."""
    pairs = enumerate(zip(one.series.batch_digest, other.series.batch_digest, strict=False))
    return [(step, ours, theirs) for step, (ours, theirs) in pairs if ours and theirs]


def states(one: RankRecording, other: RankRecording) -> list[int]:
    """Return behind how many steps both recorded a state."""
    return sorted(one.states.keys() & other.states.keys())


def same_end(one: RankRecording, other: RankRecording) -> bool:
    """Return True if both recorded the state behind their last step, which is the same one."""
    return one.steps == other.steps and one.steps in states(one, other)


def differences(candidate: Recording, baseline: Recording) -> Iterator[Difference]:
    """Yield the first difference of each quantity at each rank that both recorded."""
    for rank in sorted(candidate.ranks.keys() & baseline.ranks.keys()):
        ours, theirs = candidate.ranks[rank], baseline.ranks[rank]
        names = f"{name_at(candidate, rank)} and {baseline.name}"
        yield from _of_inputs(rank, names, ours, theirs)
        yield from _of_series(rank, names, ours, theirs)
        for steps in states(ours, theirs):
            where = "before the first step" if steps == 0 else f"after step {steps - 1}"
            quantity = START if steps == 0 else END if same_end(ours, theirs) and steps == ours.steps else STATE
            yield from _of_state(rank, quantity, f"{names} differ {where} in", ours.states[steps], theirs.states[steps])


def _of_inputs(rank: int, names: str, ours: RankRecording, theirs: RankRecording) -> Iterator[Difference]:
    unequal = (step for step, one, other in batches(ours, theirs) if one != other)
    if (step := next(unequal, None)) is not None:
        yield Difference(step, 1, rank, BATCH, f"{names} read different batches at step {step}", exact=True)
    if ours.steps != theirs.steps and not (ours.interrupted or theirs.interrupted):
        words = f"{names} have {ours.steps} and {theirs.steps} steps"
        yield Difference(common_steps(ours, theirs), 2, rank, LENGTH, words, exact=True)


def _of_series(rank: int, names: str, ours: RankRecording, theirs: RankRecording) -> Iterator[Difference]:
    steps = common_steps(ours, theirs)
    for place, (quantity, series) in enumerate(ours.quantities.items(), start=len(_FIRST)):
        if quantity not in theirs.quantities:
            continue
        one, other = series[:steps], theirs.quantities[quantity][:steps]
        step = difference(one, other, "every", EXACT).first_differing
        if step is not None:
            size = abs(one[step] - other[step])
            words = f"{quantity} of {names} differs at step {step}: {float(one[step])!r} and {float(other[step])!r}"
            small = bool(size <= roundings(one, other)[step])
            words += f", {number(size)} apart"
            yield Difference(step, place, rank, quantity, words, is_rounding=small)


def _of_state(rank: int, quantity: str, words: str, ours: LoopState, theirs: LoopState) -> Iterator[Difference]:
    """Yield a difference that noise cannot make, as of a setting or at the start, and one of tensors that it can."""
    noisy = set() if quantity == START else ours.sketches.keys() & theirs.sketches.keys()
    found = differing(ours.state, theirs.state)
    for exact in (True, False):
        apart = [each for each in found if (str(each) not in noisy) is exact]
        if apart:
            small = not exact and all(
                is_rounding(ours.sketches[str(each)], theirs.sketches[str(each)]) for each in apart
            )
            place = 0 if quantity == START else _LAST + (not exact)
            detail = f"{words} {some([_named(each, ours.state, theirs.state) for each in apart])}"
            yield Difference(ours.steps - 1, place, rank, quantity, detail, exact=exact, is_rounding=small)


def _named(entry: Apart, ours: State, theirs: State) -> str:
    """Return a tensor's name, with its values where it is one number."""
    values = [(state.numbers or {}).get(f"{entry.category} {entry.name}") for state in (ours, theirs)]
    known = [f"{value:.6g}" for value in values if value is not None]
    return f"{entry} ({' and '.join(known)})" if len(known) == 2 else str(entry)

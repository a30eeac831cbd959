"""Read the recordings that `harness.record` wrote, and find where two recordings first differ. This needs no torch.

A recording is a folder with one folder for each rank (`rank.0`, `rank.1`, …). A rank's folder has `recording.json` (the
header), `loop.0.csv` (series in the format of evidence) and `records.jsonl` (recorded states, and how the loop ended).
If `records.jsonl` does not say how the loop ended, the recording was interrupted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from harness.errors import EvidenceError, UsageError
from harness.evidence import layout
from harness.evidence.arm_records import NOT_FINITE, Sketch, State
from harness.evidence.base import Record
from harness.evidence.environment_records import Environment
from harness.evidence.files import Damaged, first_error, read_bytes, read_model
from harness.evidence.read_run import read_series
from harness.evidence.run_evidence import Series
from harness.judging.end_state import Apart, differing
from harness.judging.own_noise import is_rounding, roundings
from harness.judging.series import EXACT, apart, difference
from harness.judging.sheet import number, some
from harness.numbers import Count, told_apart

HEADER = "recording.json"
LOOP = "loop"  # first part of the name of the file that contains the series
RATE = "optimizer."  # prefix of the names of learning rates among the series


class RecordingHeader(Record):
    """The header that one rank writes when its recording begins."""

    format_version: Literal[1] = 1
    started_at: str
    rank: Count
    world_size: Count
    environment: Environment


class LoopState(Record):
    """One rank's part of the trained state after `steps` steps."""

    steps: Count
    state: State
    sketches: dict[str, Sketch]  # sketches of floating-point tensors; key: `category name`


class Line(Record):
    """One line of `records.jsonl`: either a state, or how the loop ended."""

    seen: LoopState | None = None
    # only in the last line: the error that interrupted the loop, or "" if the recording was closed normally
    error: str | None = None
    by_exit: bool = False  # True: the process's end closed the recording, so the exit code is unknown


@dataclass(frozen=True)
class RankRecording:
    """The recording of one rank.

    states: the recorded states. Key: the number of steps before the state.
    interrupted: the error that ended the loop early, or `the recording was not closed`; "" after a normal close.
    by_exit: True if the end of the process closed the recording. The loop may then have ended early.
    """

    header: RecordingHeader
    series: Series
    states: Mapping[int, LoopState]
    interrupted: str
    by_exit: bool = False

    @property
    def steps(self) -> int:
        """Return the number of recorded steps."""
        return len(self.series.loss)

    @property
    def quantities(self) -> dict[str, NDArray[np.float64]]:
        """Return every recorded series by its name, the loss first. Each array has one number per step: [steps]."""
        return {"loss": self.series.loss, **self.series.metrics}


@dataclass(frozen=True)
class Recording:
    """One recorded run: its ranks by number, and its name in messages."""

    name: str
    ranks: Mapping[int, RankRecording]

    @property
    def world_size(self) -> int:
        """Return the number of processes that trained together, including processes that were not recorded."""
        return next(iter(self.ranks.values())).header.world_size


def read_recording(folder: Path) -> Recording:
    """Return the recording in a folder. Raise UsageError if there is none, and EvidenceError if it is damaged."""
    places = [each for each in folder.glob(f"{layout.RANK}*") if (each / HEADER).is_file()]
    if not places:
        rule, remedy = (
            "a recording must be a folder that `harness.record` wrote",
            "name the folder into which the loop was recorded",
        )
        got = "no such folder" if not folder.is_dir() else f"no {layout.rank_name(0)}/{HEADER} in it"
        raise UsageError(rule, where=str(folder), got=got, remedy=remedy)
    try:
        ranks = sorted((_read_rank(place) for place in places), key=lambda each: each.header.rank)
    except Damaged as damage:
        raise EvidenceError("the recording must not be damaged", where=str(folder), got=str(damage)) from damage
    if len({each.header.world_size for each in ranks}) > 1:
        raise EvidenceError(
            "a recording must hold the ranks of one run",
            where=str(folder),
            got="ranks of runs with different numbers of ranks",
        )
    return Recording(str(folder), {each.header.rank: each for each in ranks})


def _read_rank(place: Path) -> RankRecording:
    header = read_model(place / HEADER, RecordingHeader)
    lines = read_bytes(place / layout.RECORDS).split(b"\n")[:-1]  # leave out an incomplete last line
    try:
        written = [Line.model_validate_json(each) for each in lines]
    except ValidationError as error:
        raise Damaged(f"{layout.RECORDS}: {first_error(error)}") from error
    states = {each.seen.steps: each.seen for each in written if each.seen is not None}
    error_at_end = written[-1].error if written else None
    interrupted = "the recording was not closed" if error_at_end is None else error_at_end
    by_exit = bool(written) and written[-1].by_exit
    return RankRecording(header, read_series(place / layout.series_name(LOOP, 0)), states, interrupted, by_exit)


START, BATCH, LENGTH, STATE, END = "start", "batch", "number of steps", "state after the step", "end"
# Quantities whose differences come first in a step, because they may cause other differences. Series come later.
_FIRST = (START, BATCH, LENGTH)
_LAST = 1000  # position of differences in the state after a step, which come last among the differences of the step


@dataclass(frozen=True, order=True)
class Difference:
    """The first difference of one quantity or tensor at one rank. Differences are sorted by step, position and rank."""

    step: int  # index of the step; -1: before the first step
    place: int  # position among the differences of one step: start, batch, number of steps, series, state
    rank: int
    quantity: str = field(compare=False)
    words: str = field(compare=False)
    tensor: str = field(default="", compare=False)  # for a tensor in a state: its `category name`
    shown: str = field(default="", compare=False)  # the tensor's name and, for a single number, both runs' values
    exact: bool = field(default=False, compare=False)  # True: noise cannot cause this difference
    is_rounding: bool = field(default=False, compare=False)  # True: the difference is not larger than a rounding

    @property
    def kind(self) -> tuple[str, str]:
        """Return a key by which differences of the candidate and of repeats are matched. All differences that noise can
        cause have the same key.

        If a repeat has a difference with the same key, noise can explain the candidate's difference.
        """
        return (self.quantity, self.tensor) if self.exact else ("", "")

    @property
    def is_input(self) -> bool:
        """Return True if the start or a batch differs. This may be the cause of all later differences."""
        return self.quantity in (START, BATCH)


def sentence(found: Sequence[Difference]) -> str:
    """Return the first difference as a sentence. If two states differ first, list the tensors that differ in them."""
    first = min(found)
    shown = [each.shown for each in found if each.shown and (each, each.words) == (first, first.words)]
    return f"{first.words} {some(shown)}" if shown else first.words


def name_at(run: Recording, rank: int) -> str:
    """Return the name of a run for messages, with the rank if there are several ranks."""
    return run.name if run.world_size == 1 else f"{run.name} at rank {rank}"


def common_steps(*ranks: RankRecording) -> int:
    """Return the number of steps that all of these ranks recorded."""
    return min(each.steps for each in ranks)


def batches(one: RankRecording, other: RankRecording) -> list[tuple[int, str, str]]:
    """Return (step, digest, other digest) for each step at which both ranks recorded a batch."""
    pairs = enumerate(zip(one.series.batch_digest, other.series.batch_digest, strict=False))
    return [(step, ours, theirs) for step, (ours, theirs) in pairs if ours and theirs]


def states(one: RankRecording, other: RankRecording) -> list[int]:
    """Return the numbers of steps after which both ranks recorded a state."""
    return sorted(one.states.keys() & other.states.keys())


def same_end(one: RankRecording, other: RankRecording) -> bool:
    """Return True if both ranks have equally many steps, and both recorded the state after the last step."""
    return one.steps == other.steps and one.steps in states(one, other)


def categories(one: LoopState, other: LoopState) -> tuple[set[str], set[str]]:
    """Return two sets: the categories that both states have, and the categories that only one of them has."""
    ours, theirs = ({name for name, tensors in each.state.digests.items() if tensors} for each in (one, other))
    return ours & theirs, ours ^ theirs


def differences(candidate: Recording, baseline: Recording) -> Iterator[Difference]:
    """Yield the first difference of each quantity at each rank that both runs recorded."""
    for rank in sorted(candidate.ranks.keys() & baseline.ranks.keys()):
        ours, theirs = candidate.ranks[rank], baseline.ranks[rank]
        names = f"{name_at(candidate, rank)} and {baseline.name}"
        losses_apart = _losses_apart(ours, theirs)
        yield from _of_inputs(rank, names, ours, theirs)
        yield from _of_series(rank, names, ours, theirs, losses_apart)
        for steps in states(ours, theirs):
            where = "before the first step" if steps == 0 else f"after step {steps - 1}"
            quantity = START if steps == 0 else END if same_end(ours, theirs) and steps == ours.steps else STATE
            words, pair = f"{names} differ {where} in", (ours.states[steps], theirs.states[steps])
            yield from _of_state(rank, quantity, words, *pair, may_be_noise=steps > losses_apart)


def _of_inputs(rank: int, names: str, ours: RankRecording, theirs: RankRecording) -> Iterator[Difference]:
    unequal = (step for step, one, other in batches(ours, theirs) if one != other)
    if (step := next(unequal, None)) is not None:
        yield Difference(step, 1, rank, BATCH, f"{names} read different batches at step {step}", exact=True)
    if ours.steps != theirs.steps and not (ours.interrupted or theirs.interrupted):
        words = f"{names} have different numbers of steps: {ours.steps} and {theirs.steps}"
        yield Difference(common_steps(ours, theirs), 2, rank, LENGTH, words, exact=True)


def _losses_apart(ours: RankRecording, theirs: RankRecording) -> int:
    """Return the first step with unequal losses; without such a step, the number of common steps.

    After this step, noise can change values that are derived from a loss, such as a learning rate.
    """
    steps = common_steps(ours, theirs)
    first = difference(ours.series.loss[:steps], theirs.series.loss[:steps], "every", EXACT).first_differing
    return steps if first is None else first


def _of_series(
    rank: int, names: str, ours: RankRecording, theirs: RankRecording, losses_apart: int
) -> Iterator[Difference]:
    steps = common_steps(ours, theirs)
    for place, (quantity, series) in enumerate(ours.quantities.items(), start=len(_FIRST)):
        if quantity not in theirs.quantities:
            continue
        one, other = series[:steps], theirs.quantities[quantity][:steps]
        step = difference(one, other, "every", EXACT).first_differing
        if step is not None:
            size = float(apart(one, other)[step])
            words = f"{quantity} of {names} differs at step {step}: "
            words += " and ".join(told_apart(float(one[step]), float(other[step])))
            small = math.isfinite(size) and bool(size <= roundings(one, other)[step])
            words += f", {number(size)} apart"
            exact = quantity.startswith(RATE) and not small and step <= losses_apart
            yield Difference(step, place, rank, quantity, words, exact=exact, is_rounding=small)


def _of_state(
    rank: int, quantity: str, words: str, ours: LoopState, theirs: LoopState, *, may_be_noise: bool
) -> Iterator[Difference]:
    """Yield a difference for each tensor or setting that differs between two states.

    Noise cannot change the start and most settings, so their differences are `exact`. may_be_noise: True if losses
    differed earlier. Settings that are computed from a loss can then differ by noise.
    """
    noisy = set() if quantity == START else ours.sketches.keys() & theirs.sketches.keys()
    recorded, _ = categories(ours, theirs)
    found = [each for each in differing(ours.state, theirs.state) if each.category in recorded]
    bad = [
        {
            f"{category} {name}"
            for category, each in seen.state.digests.items()
            for name in each
            if each[name][-1:] == NOT_FINITE
        }
        for seen in (ours, theirs)
    ]
    numbers = {each for each in found if str(each) in noisy - (bad[0] ^ bad[1])}
    small = all(is_rounding(ours.sketches[str(each)], theirs.sketches[str(each)]) for each in numbers)
    settings = ours.state.numbers or {} if may_be_noise else {}
    for each in found:
        exact = each not in numbers and str(each) not in settings
        place = 0 if quantity == START else _LAST + (not exact)
        shown = _named(each, ours.state, theirs.state)
        of_state = (ours.steps - 1, place, rank, quantity, words, str(each), shown)
        yield Difference(*of_state, exact=exact, is_rounding=small and not exact)


def _named(entry: Apart, ours: State, theirs: State) -> str:
    """Return a tensor's name. If the tensor is a single number, add both values."""
    values = [(state.numbers or {}).get(f"{entry.category} {entry.name}") for state in (ours, theirs)]
    known = [value for value in values if value is not None]
    return f"{entry} ({' and '.join(told_apart(*known))})" if len(known) == 2 else str(entry)


class Repeats:
    """The repeats of a baseline. own: the differences of all repeats from the baseline, without those after an unequal
    start or batch."""

    def __init__(self, baseline: Recording, runs: Sequence[Recording]) -> None:
        self._baseline = baseline
        self._runs = [(run, list(differences(run, baseline))) for run in runs]
        self.own = [each for _, found in self._runs for each in found if each.is_input or each.step < _sound(found)]

    def speak_about(self, difference: Difference) -> bool:
        """Return True if a repeat can show whether noise causes this difference.

        Such a repeat recorded the quantity. For a difference that is not one of start or batch, the repeat must also
        have had the baseline's start and batches up to the step of the difference.
        """
        return any(
            (difference.is_input or difference.step < _sound(found)) and _recorded(difference, run, self._baseline)
            for run, found in self._runs
        )

    def accused(self, found: Sequence[Difference]) -> list[Difference]:
        """Return the differences that noise does not explain, because a repeat could show them, but none does.

        If the first difference that noise can cause is only a rounding, all differences that noise can cause are left
        out. If a difference of the start or of a batch is left out, all later differences are left out, too.
        """
        unrepeated = {each.kind for each in self.own}
        unrepeated |= {each.kind for each in sorted(each for each in found if not each.exact)[:1] if each.is_rounding}
        shown, undecided = list[Difference](), list[Difference]()
        for each in found:
            (shown if each.kind not in unrepeated and self.speak_about(each) else undecided).append(each)
        return [each for each in shown if each.is_input or each.step < _sound(undecided)]


def _sound(found: Sequence[Difference]) -> float:
    """Return the first step at which the start or a batch differs; infinity if there is none. Later differences may
    follow from it."""
    return min((each.step for each in found if each.is_input), default=math.inf)


def _recorded(difference: Difference, run: Recording, baseline: Recording) -> bool:
    """Return True if both runs recorded the differing quantity at the difference's rank and step."""
    ours, theirs = (each.ranks[difference.rank] for each in (run, baseline))
    step, quantity = difference.step, difference.quantity
    if difference.tensor:
        both = [each.states.get(step + 1) for each in (ours, theirs)]
        return all(each and each.state.digests.get(difference.tensor.partition(" ")[0]) for each in both)
    if quantity == BATCH:
        return any(step == at for at, *_ in batches(ours, theirs))
    if quantity == LENGTH:
        return not (ours.interrupted or theirs.interrupted)
    return quantity in ours.quantities.keys() & theirs.quantities.keys() and step < common_steps(ours, theirs)


def not_controlled(baseline: Recording, candidate: Recording) -> Iterator[str]:
    """Yield a sentence for each property that was not compared, or not kept equal, between two runs."""
    pairs = [(baseline.ranks[rank], candidate.ranks[rank]) for rank in baseline.ranks]
    if not all(0 in states(one, other) for one, other in pairs):
        yield (
            "start: not compared, because the state before the first step was not recorded in both runs; pass "
            "`model` to `harness.record`"
        )
    if not all(len(batches(one, other)) == common_steps(one, other) for one, other in pairs):
        yield "batches: not recorded at every step of both runs, so not all were compared; pass `batch` to `step`"
    if not all(same_end(one, other) for one, other in pairs):
        yield "end: not compared, because the last state was not recorded after the same step in both runs"
    seen = [(one.states[steps], other.states[steps]) for one, other in pairs for steps in states(one, other)]
    alone = {name for each in seen for name in categories(*each)[1]}
    alone |= {name for one, other in pairs for name in one.quantities.keys() ^ other.quantities.keys()}
    for name in sorted(alone):
        yield f"{name}: recorded in only one run"
    recorded = {name for each in seen for state in each for name, tensors in state.state.digests.items() if tensors}
    recorded |= {name for pair in pairs for each in pair for name in each.quantities}
    for name in ("grad_norm", *(["optimizer"] if seen else [])):
        if name not in recorded:
            yield f"{name}: recorded in neither run; pass `{name}` to `step`"
    if len(baseline.ranks) < baseline.world_size:
        were = "was" if len(baseline.ranks) == 1 else "were"
        yield f"ranks: only {len(baseline.ranks)} of {baseline.world_size} {were} recorded"
    here, there = (_machine(run.ranks[min(run.ranks)].header.environment) for run in (baseline, candidate))
    for name in sorted(here.keys() | there.keys()):
        if here.get(name) != there.get(name):
            yield f"{name}: {there.get(name)} in {candidate.name}, but {here.get(name)} in {baseline.name}"
    yield from _never_controlled(pairs)


def _never_controlled(pairs: Sequence[tuple[RankRecording, RankRecording]]) -> Iterator[str]:
    if any(each.by_exit for pair in pairs for each in pair):
        yield "ending: a recording was closed by the end of its process; call `close`, or use a `with` block"
    yield "random numbers: generators are not recorded"
    yield f"horizon: nothing after step {min(common_steps(*pair) for pair in pairs) - 1} was compared"


def _machine(found: Environment) -> dict[str, object]:
    """Return, by name, the facts about hardware and software that can change a run's bits."""
    own = {"GPU": found.gpu.name, "driver": found.gpu.driver, "processor": found.cpu.model}
    return {**own, **found.versions, **found.variables}

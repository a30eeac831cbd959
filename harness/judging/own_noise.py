"""Check that two arms are equal within the baseline's own noise, by a permutation test over the runs of both arms.

The 2n runs of both arms can be split into two halves of n runs in C(2n, n) ways, called divisions. The real division
has the candidate's runs in one half and the baseline's in the other. The claim is violated only if the halves of the
real division are further apart than those of every other division. If the arms are equal, this happens by chance in 1
of C(2n, n) / 2 cases (126 for n = 5), for any distribution of the noise; the 2 is there because exchanged halves have
the same distance between their means. The distance must also exceed `SHIFT` or `NOISIER`, so that a difference far
below the noise does not fail.

Shapes: values [runs, columns], with the candidate's runs first. A feature is a compared quantity with one column (a
loss) or several (a sketch of a tensor, see `evidence.arm_records.Sketch`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from harness.evidence.arm_records import Sketch
from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.judging import reasons
from harness.judging.context import end_of, executed
from harness.judging.end_state import differing
from harness.judging.series import LOSS, losses, values
from harness.judging.sheet import Sheet, number, settle, some
from harness.kinds.trajectory.model import TrajectoryMatch
from harness.numbers import counted

# A claim may fail only if the means of the two halves are further apart than this multiple of the spread of one run
# (pooled over both halves).
SHIFT = 4.0
# A claim may fail because the candidate's runs scatter more only if these runs are further from the baseline's mean
# than this multiple of the baseline's spread. Key: number of columns of the feature.
NOISIER = {1: 64.0, 4: 8.0}
# smallest spread that is assumed for a feature, as a multiple of the rounding error (epsilon) of its size
ROUNDINGS = 2.0
_TINY = 1e-150  # smallest spread that is assumed for a feature that is always 0; its square is still above 0
_MANTISSAS = (8, 11, 24, 53)  # number of mantissa bits of bfloat16, float16, float32 and float64
_AT_ONCE = 512  # number of divisions of the runs into two halves that are computed together
# Largest number of an arm's timing processes that are compared. With 12 processes of each arm, there would be 2.7
# million ways to divide the processes into two halves.
MOST_TIMED = 8
PARAMETER = "end parameters "

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Features:
    """The compared features (such as losses) of 2n runs. values: [2n, all columns]. floor: the smallest spread that is
    assumed for each feature. All features of one object have the same number of columns."""

    names: list[str]
    values: Floats
    columns: int
    floor: Floats

    def separations(self, halves: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """Return two arrays of shape [D, features], for D divisions of the runs into two halves. The first contains how
        far the means of the halves are apart, and the second how far the first half scatters around the mean of the
        second half. A claim may fail only if one of these numbers is above 1. halves: [D, 2n], True for runs in the
        first half."""
        ours, theirs = halves / (halves.sum(axis=1, keepdims=True)), ~halves / ((~halves).sum(axis=1, keepdims=True))
        runs = halves.shape[1] // 2
        centred, floor = self._scaled()
        squares = centred**2
        mean, other = ours @ centred, theirs @ centred
        unbiased = runs / (runs - 1)
        spread, other_spread = (
            self._of_features(np.maximum(half @ squares - middle**2, 0.0) * unbiased)
            for half, middle in ((ours, mean), (theirs, other))
        )
        apart = self._of_features((mean - other) ** 2)
        least = np.maximum(self.columns * floor**2, _TINY**2)
        shift = np.sqrt(apart / np.maximum((spread + other_spread) / 2, least)) / SHIFT
        away = apart + spread / unbiased
        return shift, np.sqrt(away / np.maximum(other_spread, least)) / NOISIER[self.columns]

    def _scaled(self) -> tuple[Floats, Floats]:
        """Return the centered values, and the floors (smallest assumed spreads), both divided by each feature's largest
        value, so that squares are finite."""
        centred = self.values - self.values.mean(axis=0)
        size = np.abs(centred).reshape(len(centred), -1, self.columns).max(axis=(0, 2))
        size = np.maximum(size, self.floor)
        return centred / np.repeat(size, self.columns), self.floor / size

    def spread(self, runs: int) -> Floats:
        """Return the spread of each feature over an arm's runs, pooled over both arms. Shape [features]; at least the
        floor."""
        within = (self.values[:runs].var(axis=0, ddof=1) + self.values[runs:].var(axis=0, ddof=1)) / 2
        return np.sqrt(np.maximum(self._of_features(within) / self.columns, self.floor**2))

    def _of_features(self, by_column: Floats) -> Floats:
        of_each: Floats = by_column.reshape(*by_column.shape[:-1], -1, self.columns).sum(axis=-1)
        return of_each


@dataclass(frozen=True)
class Separation:
    """How far the runs of the two arms are apart (`actual`). `others` is the largest distance between two halves if the
    same runs are divided in another way. A claim may fail only if `actual` is above 1."""

    actual: float
    others: float
    feature: str
    # True: `actual` measures how far the candidate's runs scatter; False: how far the means of the two arms are apart
    is_noise: bool

    @property
    def beyond(self) -> float:
        """Return how far the arms are apart, divided by `needed`. Above 1, the arms are unequal."""
        return self.actual / self.needed

    @property
    def needed(self) -> float:
        """Return the number that `actual` must exceed for the arms to count as unequal."""
        return max(1.0, self.others)


def separation(groups: Sequence[Features]) -> Separation:
    """Return how far the runs of the two arms (first and second half of the rows) are apart, and the largest distance
    between the two halves if the same runs are divided in another way."""
    runs = len(groups[0].values) // 2
    chosen = list(combinations(range(2 * runs), runs))
    halves = np.zeros((len(chosen), 2 * runs), dtype=np.bool_)
    # The first row divides the runs into the two arms, and the last row does the same with exchanged halves.
    for row, half in enumerate(chosen):
        halves[row, list(half)] = True
    worst: tuple[float, str, bool] = (0.0, "", False)
    for group in groups:
        shift, noise = group.separations(halves[:1])
        both = np.maximum(shift, noise)[0]
        place = int(np.argmax(both))
        is_noise = bool(noise[0, place] > shift[0, place])
        worst = max(worst, (float(both[place]), group.names[place], is_noise))
    others = 0.0
    for start in range(1, len(halves) - 1, _AT_ONCE):
        some_halves = halves[start : min(start + _AT_ONCE, len(halves) - 1)]
        found = (np.maximum(*group.separations(some_halves)).max() for group in groups)
        others = max(others, *map(float, found))
    if _share_a_run(groups, runs):
        others = max(others, worst[0])
    return Separation(worst[0], others, worst[1], worst[2])


def _share_a_run(groups: Sequence[Features], runs: int) -> bool:
    """Return True if a run of the candidate equals a run of the baseline in all features. If these two runs change
    places, the division is another one with the same distance. Rounding would make one of the two distances larger."""
    return any(
        all(np.array_equal(group.values[ours], group.values[theirs]) for group in groups)
        for ours in range(runs)
        for theirs in range(runs, 2 * runs)
    )


@dataclass(frozen=True)
class OwnNoise:
    """The compared numbers (features, such as losses) of both arms' runs, and the largest differences that the noise
    would have hidden."""

    separation: Separation
    groups: list[Features]
    runs: int
    hidden_loss: float  # the largest difference of losses that the noise hides in the step with the least noise
    # The largest difference at the end that the noise would hide in a median parameter, divided by the parameter's
    # movement from start to end. None: unknown.
    hidden_way: float | None
    # True if, for at least one parameter, the noise hides less than the parameter's movement, so that the comparison
    # would notice if this parameter was not trained.
    seen_way: bool

    def of(self, prefix: str) -> int:
        """Return how many of the compared features have names that begin with `prefix`."""
        return sum(name.startswith(prefix) for group in self.groups for name in group.names)


def require_within_noise(
    part: TrajectoryMatch,
    candidates: Mapping[str, ArmEvidence],
    baselines: Mapping[str, ArmEvidence],
    sheet: Sheet,
    ends: Callable[[Collection[str], Mapping[str, ArmEvidence]], None],
) -> OwnNoise:
    """Raise FAIL if the runs of the two arms are further apart than any other two halves of these runs. Also raise FAIL
    if the arms' ends differ in state that noise cannot change. Otherwise return the compared features.

    ends: a function that compares the ends of two runs. Its first argument names the tensors that noise may change.
    """
    groups = list(_features(part, [*candidates.values(), *baselines.values()]))
    ours, theirs = next(iter(candidates)), next(iter(baselines))
    seen = require_unseparated(groups, baselines[theirs].start.sketches or {}, ours, sheet)
    for name, each in candidates.items():
        noisy = _noisy(each, list(baselines.values()))
        ends(noisy, {theirs: baselines[theirs], name: each})
    return seen


def require_unseparated(groups: list[Features], start: Mapping[str, Sketch], ours: str, sheet: Sheet) -> OwnNoise:
    """Raise FAIL if the candidate's runs (the first half of the rows) are further from the baseline's runs than any
    other two halves of all runs are from each other. Otherwise return the compared features.

    start: sketches (signed sums of elements) of the baseline's initial tensors, by `category name`.
    """
    found, runs = separation(groups), len(groups[0].values) // 2
    seen = _seen(found, groups, start, runs)
    _note(sheet, seen)
    if not sheet.meets("beyond_noise", found.beyond, "at most", 1, "of what noise explains"):
        how = "scatter more than the baseline's" if found.is_noise else "differ from the baseline's"
        settle(
            reasons.BEYOND_NOISE,
            f"{counted(runs, 'run')} of {ours} {how}; no other choice of {runs} of all {2 * runs} runs differs as much "
            f"from the rest, and the difference is {number(found.beyond)} times as large as noise explains; "
            f"the largest difference is in {found.feature}",
        )
    return seen


def require_timed_within_noise(
    candidates: Sequence[ArmEvidence], baselines: Sequence[ArmEvidence], ours: str, theirs: str
) -> None:
    """Raise FAIL if the losses of timed steps of the two arms' processes are further apart than those of any other two
    halves of these processes. Only steps that all processes timed are compared, and at most the first `MOST_TIMED`
    processes of each arm."""
    runs = [losses(each) for each in (*candidates[:MOST_TIMED], *baselines[:MOST_TIMED])]
    steps = min(map(len, runs))
    series = np.stack([each[:steps] for each in runs])
    found = separation([features_of_series(series, LOSS)])
    if found.beyond > 1:
        settle(
            reasons.BEYOND_NOISE,
            f"the timed losses of {ours} and {theirs} differ more than the losses of any other two halves of the "
            f"{len(runs)} runs; the difference is {number(found.beyond)} times as large as noise explains, and is "
            f"largest in {found.feature}",
        )


def require_decided(
    part: TrajectoryMatch,
    seen: OwnNoise,
    candidates: Mapping[str, ArmEvidence],
    baselines: Mapping[str, ArmEvidence],
    run: RunEvidence,
) -> str:
    """Raise INCONCLUSIVE if there is no noise, or if the noise hides every difference. Else return the text of
    `hidden_by`."""
    ours, theirs = next(iter(candidates)), next(iter(baselines))
    bits = {_bits(each) for each in baselines.values()}
    if len(bits) == 1 and not bits >= {_bits(each) for each in candidates.values()}:
        settle(
            reasons.NO_NOISE,
            f"{theirs} repeats itself in every bit, so there is no noise to compare with, and {ours} differs "
            "from it by about a rounding",
        )
    if not seen.seen_way and not _would_see_control(part, seen, run):
        settle(
            reasons.NOISE_HIDES,
            f"the runs of {theirs} end so far apart in every parameter that the end of an untrained arm would lie "
            "among them, and no loss shows a difference",
        )
    return hidden_by(seen)


def hidden_by(seen: OwnNoise, *, gradients: bool = True) -> str:
    """Return the end of a sentence that states what was compared, and which differences the noise would have hidden."""
    way = (
        ""
        if seen.hidden_way is None
        else f" ends that differ by {number(seen.hidden_way)} of a parameter's movement, and"
    )
    watched = f" {counted(seen.of('gradient '), 'gradient')} and" if gradients else ""
    ends = f"{watched} {counted(seen.of('end '), 'tensor')} at their ends"
    return f",{ends}; the noise would hide{way} losses that differ by {number(seen.hidden_loss)}"


def _features(part: TrajectoryMatch, runs: Sequence[ArmEvidence]) -> Iterator[Features]:
    """Yield the features (compared numbers) that all runs have: losses, and sketches (signed sums of elements) of
    gradients and of tensors at the end."""
    for metric in dict.fromkeys((LOSS, part.metric)):
        yield features_of_series(np.stack([values(each, metric) for each in runs]), metric)
    sketched = [_sketches(each) for each in runs]
    half = len(runs) // 2
    _require_same_gradients(sketched[:half], sketched[half:])
    yield from features_of_sketches(sketched)


def features_of_sketches(sketched: Sequence[Mapping[str, Sketch]]) -> Iterator[Features]:
    """Yield the features (compared numbers) from the sketches that all runs have, if any. sketched: for each run, the
    sketches (signed sums of elements) of its tensors, by name."""
    names = sorted(set.intersection(*(set(each) for each in sketched)))
    if names:
        table = np.array([[each[name] for name in names] for each in sketched])  # shape [runs, features, 6]
        if not np.isfinite(table).all():
            settle(reasons.NON_FINITE, "the sum of a gradient or of a tensor at the end overflows")
        floor = ROUNDINGS * (table[:, :, 0] * table[:, :, 1]).max(axis=0)
        yield Features(names, table[:, :, 2:].reshape(len(sketched), -1), 4, np.maximum(floor, _TINY))


def features_of_series(series: Floats, metric: str) -> Features:
    """Return the features of a series [runs, steps]. Each step is one feature. metric: the name of the series."""
    floor = ROUNDINGS * max(map(_epsilon, series)) * np.abs(series).max(axis=0)
    names = [f"{metric} of step {step}" for step in range(series.shape[1])]
    return Features(names, series, 1, np.maximum(floor, _TINY))


def roundings(first: Floats, second: Floats) -> Floats:
    """Return, for each step, the largest difference between two series [steps] that rounding alone may cause."""
    epsilon = max(_epsilon(series[np.isfinite(series)]) for series in (first, second))
    return SHIFT * np.maximum(ROUNDINGS * epsilon * np.maximum(np.abs(first), np.abs(second)), _TINY)


def is_rounding(first: Sketch, second: Sketch) -> bool:
    """Return True if rounding may explain the difference between two tensors, judged by their sketches (signed
    sums of elements)."""
    least = SHIFT * ROUNDINGS * max(first[0], second[0]) * max(first[1], second[1])
    return math.isfinite(least) and all(
        abs(one - other) <= least for one, other in zip(first[2:], second[2:], strict=True)
    )


def _sketches(execution: ArmEvidence) -> dict[str, Sketch]:
    """Return, by name, the sketches (signed sums of elements) of recorded gradients and of the tensors at the end."""
    end = end_of(execution)
    if end.sketches is None:
        settle(
            reasons.EVIDENCE_MISSING,
            f"arm {end.arm} was recorded without the sketches (sums of tensors) that are needed to measure its noise",
        )
    gradients = {
        f"gradient {tensor.name} of step {each.step}": tensor.sketch
        for each in execution.gradients
        for tensor in each.tensors
        if tensor.sketch is not None
    }
    return gradients | {f"end {name}": sketch for name, sketch in end.sketches.items()}


def _require_same_gradients(ours: Sequence[Mapping[str, Sketch]], theirs: Sequence[Mapping[str, Sketch]]) -> None:
    """Raise FAIL if a run of the candidate has a gradient that no run of the baseline has, or lacks a gradient that all
    of them have. Noise neither creates nor removes a gradient."""
    known = [{name for name in each if name.startswith("gradient ")} for each in theirs]
    for each in ours:
        found = {name for name in each if name.startswith("gradient ")}
        alone = sorted((found - set[str]().union(*known)) | (set.intersection(*known) - found))
        if alone:
            settle(reasons.BEYOND_NOISE, f"only one arm has {counted(len(alone), 'tensor')}: {some(alone)}")


def _epsilon(series: Floats) -> float:
    """Return the epsilon of the least precise floating-point type that can represent all values exactly."""
    mantissas = np.frexp(series)[0]
    return next(2.0 ** (1 - bits) for bits in _MANTISSAS if (np.ldexp(mantissas, bits) % 1 == 0).all())


def _seen(found: Separation, groups: Sequence[Features], start: Mapping[str, Sketch], runs: int) -> OwnNoise:
    least = [found.needed * SHIFT * group.spread(runs) for group in groups]
    shares = [
        float(least[-1][place]) / way
        for place, name in enumerate(groups[-1].names)
        if name.startswith(PARAMETER) and (way := _way(groups[-1], place, start.get(name.removeprefix("end ")), runs))
    ]
    return OwnNoise(
        separation=found,
        groups=list(groups),
        runs=runs,
        hidden_loss=float(least[0].min()),
        hidden_way=float(np.median(shares)) if shares else None,
        seen_way=any(share < 1 for share in shares),
    )


def _way(ends: Features, place: int, start: Sketch | None, runs: int) -> float:
    """Return how far the baseline moves a parameter from start to end (L2 norm), estimated from sketches. place: the
    index of the parameter among the features in `ends`."""
    if start is None:
        return 0.0
    columns = ends.values[runs:, place * ends.columns : (place + 1) * ends.columns].mean(axis=0)
    return float(np.sqrt(np.mean((columns - np.array(start[2:])) ** 2)))


def _would_see_control(part: TrajectoryMatch, seen: OwnNoise, run: RunEvidence) -> bool:
    """Return True if a guard names an untrained control whose loss is outside of the baseline's noise in some step."""
    effect = part.guards.training_effect
    if effect is None:
        return False
    series = seen.groups[0]
    away = np.abs(values(executed(run, effect.control), LOSS) - series.values[seen.runs :].mean(axis=0))
    return bool((away > seen.separation.needed * SHIFT * series.spread(seen.runs)).any())


def _noisy(candidate: ArmEvidence, baselines: Sequence[ArmEvidence]) -> set[str]:
    """Return the names (`category name`) of tensors that noise may change: those with sketches (signed sums of
    elements), and those that differ between the baseline's runs."""
    first, *others = baselines
    sketched = (end_of(candidate).sketches or {}).keys() & (end_of(first).sketches or {}).keys()
    states = [end_of(each).state for each in others]
    reference = end_of(first).state
    if reference is None:
        return set(sketched)
    unequal = (entry for state in states if state is not None for entry in differing(state, reference))
    return set(sketched) | {f"{entry.category} {entry.name}" for entry in unequal if not entry.only_one_has_it}


def _bits(execution: ArmEvidence) -> tuple[bytes, str, str]:
    state = end_of(execution).state
    ends = "" if state is None else repr(sorted((name, sorted(each.items())) for name, each in state.digests.items()))
    return np.asarray(execution.series.loss).tobytes(), end_of(execution).trainable_digest, ends


def _note(sheet: Sheet, seen: OwnNoise) -> None:
    sheet.count("runs_per_arm", seen.runs)
    sheet.figure("beyond_noise", seen.separation.beyond, "of what noise explains")
    sheet.figure("most_beyond_noise", seen.separation.feature)
    sheet.figure("gradients", seen.of("gradient "), "tensors")
    sheet.count("end_tensors", seen.of("end "))
    sheet.figure("hidden_loss", seen.hidden_loss, LOSS)
    sheet.figure("hidden_end_distance", seen.hidden_way, "of the baseline's movement")

"""The figure that decides a verdict, beside its demand, in a few words; from the table of kinds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from harness.contract.base import Judged
from harness.judge.verdict import Status, Verdict
from harness.kinds import Deciding, kind_of
from harness.report.text import larger, number, words


@dataclass(frozen=True)
class Decided:
    """What decided: `1.53x, at least 1.10x`, and how sure it is, by its own name for that.

    name: the figure's, where the text does not say what was counted.
    """

    text: str
    name: str
    confidence: str


@dataclass(frozen=True)
class _Found:
    """A figure of the verdict with its demand, as numbers; `bound` is None where no plain number is demanded."""

    rule: Deciding
    name: str
    value: float
    unit: str
    bound: float | None

    @property
    def own_bound(self) -> float | None:
        """The bound, where it is one of this figure's own scale."""
        return None if self.rule.of_demand else self.bound

    @property
    def unmet(self) -> bool:
        """Whether the figure alone breaks its demand."""
        if self.bound is None or self.rule.of_demand:
            return False
        broken = {
            "none": self.value != 0,
            "exactly": self.value != self.bound,
            "at least": not self.value >= self.bound,
            "at most": not self.value <= self.bound,
        }
        return broken[self.rule.rule]


def decided(verdict: Verdict, part: Judged, prefix: str = "") -> Decided | None:
    """Of one part of a verdict's claim, whose figures begin with `prefix`; None where no figure says why.

    Of a claim that holds, the first figure of its kind. Of another the one whose demand has the verdict's reason, or
    which breaks its demand; of one that is undecided the first again.
    """
    found = list(_found(verdict, part, prefix))
    if verdict.status is Status.FAIL:
        by_reason = [one for one in found if _has_reason(part, one.rule, verdict)]
        found = [one for one in by_reason if one.unmet] or by_reason or [one for one in found if one.unmet]
    found.sort(key=lambda one: one.rule.refutes is not (verdict.status is Status.FAIL))
    if not found or verdict.status in {Status.NOT_RUN, Status.ERROR}:
        return None
    best = found[0]
    name = "" if best.rule.noun or best.unit == best.name else words(best.name)
    return Decided(_text(best, verdict, prefix), name, _confidence(best, verdict, part, prefix))


def _found(verdict: Verdict, part: Judged, prefix: str) -> Iterator[_Found]:
    """The figures that the table of kinds lists and the verdict has, in the table's order."""
    for rule in kind_of(part.kind).deciding:
        demanded = part.value_at(rule.demand)
        if demanded is None or demanded is False or not _applies(rule, part):
            continue
        pattern = rule.figure.format_map(_Fields(part))
        ranked = [one for one in _matching(verdict, pattern, rule, demanded, prefix) if one is not None]
        if ranked:
            yield max(ranked, key=lambda one: larger(one.value / one.bound if one.bound else one.value))


def _applies(rule: Deciding, part: Judged) -> bool:
    return rule.when is None or part.value_at(rule.when[0]) == rule.when[1]


class _Fields(dict[str, object]):
    """The model's own values, by field."""

    def __init__(self, part: Judged) -> None:
        super().__init__()
        self._part = part

    def __missing__(self, key: str) -> object:
        return self._part.value_at(key)


def _matching(verdict: Verdict, pattern: str, rule: Deciding, demanded: object, prefix: str) -> Iterator[_Found | None]:
    known: dict[str, tuple[object, str]] = {
        name: (value, name.rpartition(".")[2]) for name, value in verdict.denominators.items()
    }
    known |= {name: (figure.value, figure.unit) for name, figure in verdict.figures.items()}
    for name, (value, unit) in known.items():
        own = name.removeprefix(prefix)
        if not name.startswith(prefix) or not fnmatchcase(own, pattern):
            continue
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield _Found(rule, own, value, unit, _bound(rule, demanded, own))


def _bound(rule: Deciding, demanded: object, name: str) -> float | None:
    """The demanded number; of a table of them the one for the figure's last word, a data type say."""
    if rule.rule == "none":
        return 0.0
    if rule.bound is not None:
        return rule.bound
    if isinstance(demanded, Mapping):
        demanded = demanded.get(name.rpartition(".")[2])
    return demanded if isinstance(demanded, int | float) else None


def _has_reason(part: Judged, rule: Deciding, verdict: Verdict) -> bool:
    demand = part.broken_by.get(rule.demand)
    return demand is not None and verdict.reason in demand.reasons


def _text(found: _Found, verdict: Verdict, prefix: str) -> str:
    rule = found.rule
    if rule.rule == "none":
        total = verdict.denominators.get(prefix + rule.of)
        of = f" of {number(total)}" if total is not None else ""
        return f"{number(int(found.value))}{of} {rule.noun}, none may"
    value = _number(found.value, rule.noun or found.unit, percent=rule.percent, beside=found.own_bound)
    if found.bound is None:
        return value
    demand = _number(found.bound, "x" if found.unit == "x" else "", percent=rule.percent, beside=found.bound)
    return f"{value}, {rule.rule} {demand}{f' {rule.of_demand}' if rule.of_demand else ''}"


def _number(value: float, unit: str, *, percent: bool, beside: float | None = None) -> str:
    """Three digits, or two places of a ratio: `1.53x`, `0.07 %`, `12 steps`.

    Beside a bound as many more as it takes to stand where the number stands: nothing is rounded up to its demand, and
    a demand is as it was demanded.
    """
    if unit == "x":
        return f"{_short(value, lambda more: f'{value:.{more + (2 if value < 100 else 0)}f}', beside)}x"
    if percent:
        return f"{_short(value, lambda more: f'{100 * value:.{3 + more}g}', beside, 100)} %"
    if float(value).is_integer():
        return f"{number(int(value))} {_singular(unit, value)}".rstrip()
    plain = _short(value, lambda more: f"{value:.{3 + more}g}", beside).replace("e-0", "e-")
    return f"{plain} {_singular(unit, value)}".rstrip()


def _short(value: float, written: Callable[[int], str], beside: float | None, scale: int = 1) -> str:
    """The number with the fewest digits, by how many `written` has more than usual, that is not moved over a bound."""
    if not math.isfinite(value):
        return number(value)
    texts = map(written, range(15))
    return next(
        (text for text in texts if beside is None or _side(float(text) / scale, beside) == _side(value, beside)),
        written(15),
    )


def _side(value: float, bound: float) -> int:
    return (value > bound) - (value < bound)


def _singular(noun: str, count: float) -> str:
    if count != 1 or not noun.endswith("s") or noun.endswith("ss"):
        return noun
    return noun[:-2] if noun.endswith("ches") else noun[:-1]


def _confidence(found: _Found, verdict: Verdict, part: Judged, prefix: str) -> str:
    """An interval by its name; where there is none, how much was counted or measured."""
    interval, ends = found.rule.interval, _ends(found, verdict, prefix)
    if interval is not None and ends is not None:
        stated = interval.confidence
        level = stated if isinstance(stated, float) else part.value_at(stated)
        low, high = (_number(value, found.unit, percent=found.rule.percent, beside=found.own_bound) for value in ends)
        over = f" over {_counted(verdict, prefix, interval.over)}"
        sure = f"{100 * level:.6g} % " if isinstance(level, float) else ""
        return f"{low} to {high}: {sure}{interval.called}{over}"
    counted = ", ".join(_counted(verdict, prefix, name) for name in _rests_on(verdict, prefix))
    how = "counted" if found.rule.rule in ("none", "exactly") else "measured"
    return f"{how} over {counted}" if counted else how


def _rests_on(verdict: Verdict, prefix: str) -> list[str]:
    """The first two denominators of the part."""
    return [name.removeprefix(prefix) for name in verdict.denominators if name.startswith(prefix)][:2]


def _counted(verdict: Verdict, prefix: str, name: str) -> str:
    count = verdict.denominators.get(prefix + name)
    return words(name) if count is None else f"{count:,} {_singular(words(name), count)}"


@dataclass(frozen=True)
class Measured:
    """A figure that the table of kinds lists, as numbers: `low` and `high` where it has an interval.

    figure: as the table names it, whichever of several it stands for. demand: `at least 1.10x`, with the number in it.
    """

    figure: str
    value: float
    unit: str
    low: float | None
    high: float | None
    demand: str
    bound: float | None


def measured(verdict: Verdict, part: Judged, prefix: str = "") -> list[Measured]:
    """Of one part of a verdict's claim, whatever the verdict: its first figure, and every other with an interval."""
    found = list(_found(verdict, part, prefix))
    return [_measured(one, verdict, part, prefix) for one in found if one is found[0] or _ends(one, verdict, prefix)]


def _measured(found: _Found, verdict: Verdict, part: Judged, prefix: str) -> Measured:
    rule = found.rule
    low, high = _ends(found, verdict, prefix) or (None, None)
    demand = (
        ""
        if found.bound is None
        else f"{rule.rule} {_number(found.bound, found.unit, percent=rule.percent, beside=found.bound)}"
    )
    demand = "none may" if rule.rule == "none" else f"{demand} {rule.of_demand}".strip()
    name = prefix + rule.figure.format_map(_Fields(part)).replace("*", "largest")
    return Measured(name, found.value, rule.noun or found.unit, low, high, demand, found.own_bound)


def _ends(found: _Found, verdict: Verdict, prefix: str) -> tuple[float, float] | None:
    """What the figure was measured to lie between, if the table and the verdict have both ends."""
    interval = found.rule.interval
    ends = [verdict.figures.get(prefix + name) for name in (interval.low, interval.high)] if interval else []
    values = [end.value for end in ends if end is not None]
    numbers = [float(value) for value in values if isinstance(value, int | float)]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else None

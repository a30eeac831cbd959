"""Describe in a few words which figure decided a verdict, and what the claim demands of this figure.
`harness.judging.verdict` defines the figure and the demand."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from harness.judging.verdict import Demanded, Interval, Status, Verdict
from harness.numbers import agreed
from harness.report.glance import counted_ratios
from harness.report.text import number, of_count, words

LONGEST = 12  # a bound with at most this number of characters is shown as the contract states it


@dataclass(frozen=True)
class Decided:
    """The figure that decided a verdict, with its demand, such as `1.531x, at least 1.1x`.

    name: the name of the figure, or "" if the text already says what was counted. confidence: how sure the verdict is.
    """

    text: str
    name: str
    confidence: str


def decided(verdict: Verdict) -> Decided | None:
    """Return the figure that decided a verdict, or None if no figure did."""
    found = verdict.decided
    if found is None or verdict.status in {Status.NOT_RUN, Status.ERROR}:
        return None
    name = "" if found.relation == "none" or found.noun == found.figure else words(found.figure)
    return Decided(_text(found), name, _confidence(found, verdict))


def sure(verdict: Verdict) -> str:
    """Return how sure a verdict is, without statistical terms.

    If the figure has an interval, the text names only the end of the interval that matters for the demand.
    """
    found, told = verdict.decided, decided(verdict)
    if found is None or told is None:
        return "no figure decided it"
    interval = found.interval
    if interval is None:
        return f"{told.confidence}; nothing was estimated"
    met = [replace(found, value=end).is_met for end in (interval.low, interval.high)]
    lower, is_open = (found.relation == "at least") == any(met), any(met) and not all(met)
    end = _ends(found, interval)[0 if lower else 1]
    if is_open:
        chance = f"by chance it could be as {'low' if lower else 'high'} as {end}"
    else:
        chance = f"even allowing for chance it is at {'least' if lower else 'most'} {end}"
    sample = f"{100 * interval.confidence:.6g} % confidence, {_counted(verdict, found.part, interval.over)}"
    limit = f"{demand(found)} is {'allowed' if found.relation == 'at most' else 'required'}"
    why = ", so it is open" if is_open else "; something else leaves it open"
    return f"{chance} ({sample}); {limit}{why if verdict.status is Status.INCONCLUSIVE else ''}"


def demand(found: Demanded) -> str:
    """Return the demand as text, such as `at least 1.1x`, or `none may` if nothing is allowed."""
    if found.relation == "none":
        return "none may"
    unit, percent = found.noun if found.noun == "x" else "", found.percent
    stated = f"{found.bound:g}x" if unit else _number(found.bound, unit, percent=percent, beside=found.bound)
    # A computed bound, such as a share of a measured value, can have more digits than are meaningful. Therefore round
    # it.
    shown = stated if len(stated) <= LONGEST else _number(found.bound, unit, percent=percent, beside=found.value)
    return f"{found.relation} {shown}"


def _text(found: Demanded) -> str:
    if found.relation == "none":
        of = f" of {number(found.of)}" if found.of is not None else ""
        return agreed(f"{number(int(found.value))}{of} {found.noun}, none may")
    return f"{_number(found.value, found.noun, percent=found.percent, beside=found.bound)}, {demand(found)}"


def _number(
    value: float,
    unit: str,
    *,
    percent: bool,
    beside: float | None = None,
    outward: Callable[[float], int] | None = None,
) -> str:
    """Return a number with its unit of measurement: `1.531x` (three decimals), `0.07 %`, `12 steps` (three digits).

    outward: for an end of an interval, a function that rounds its last decimal away from the middle of the interval.
    beside: the bound with which the number is compared. The text gets as many digits as it needs to show on which side
    of the bound the exact number is. Otherwise a rounded number could seem to meet its demand.
    """
    if unit == "x":
        return f"{_short(value, lambda more: _decimals(value, 3 + more, outward), beside)}x"
    if percent:
        return f"{_short(value, lambda more: f'{100 * value:.{3 + more}g}', beside, 100)} %"
    if float(value).is_integer():
        return f"{number(int(value))} {of_count(unit, value)}".rstrip()
    plain = _short(value, lambda more: f"{value:.{3 + more}g}", beside).replace("e-0", "e-")
    return f"{plain} {of_count(unit, value)}".rstrip()


def _decimals(value: float, places: int, outward: Callable[[float], int] | None) -> str:
    return f"{value if outward is None else outward(value * 10**places) / 10**places:.{places}f}"


def _short(value: float, written: Callable[[int], str], beside: float | None, scale: int = 1) -> str:
    """Return the shortest text whose rounded value is on the same side of the bound `beside` as `value`.

    written: a function that returns the number as text, with the given number of extra digits.
    """
    if not math.isfinite(value):
        return number(value)
    texts = map(written, range(15))
    return next(
        (text for text in texts if beside is None or _side(float(text) / scale, beside) == _side(value, beside)),
        written(15),
    )


def _side(value: float, bound: float) -> int:
    return (value > bound) - (value < bound)


def _ends(found: Demanded, interval: Interval) -> tuple[str, str]:
    """Return both ends of the interval with their unit of measurement, rounded away from the middle."""
    low = _number(interval.low, found.noun, percent=found.percent, beside=found.bound, outward=math.floor)
    high = _number(interval.high, found.noun, percent=found.percent, beside=found.bound, outward=math.ceil)
    return low, high


def _confidence(found: Demanded, verdict: Verdict) -> str:
    """Return a text with the figure's interval and the interval's name. If the figure has no interval, return a text
    with the number of items over which the figure was counted or measured."""
    interval = found.interval
    if interval is not None:
        low, high = _ends(found, interval)
        low = low.removesuffix(f" {high.rpartition(' ')[2]}")  # write the unit only once
        over = _counted(verdict, found.part, interval.over)
        return f"{low} to {high}: {100 * interval.confidence:.6g} % {interval.called} over {over}"
    rests_on = [name.removeprefix(found.part) for name in verdict.denominators if name.startswith(found.part)][:2]
    counted = ", ".join(_counted(verdict, found.part, name) for name in rests_on)
    how = "counted" if found.relation in ("none", "exactly") else "measured"
    return f"{how} over {counted}" if counted else how


def _counted(verdict: Verdict, prefix: str, name: str) -> str:
    count = verdict.denominators.get(prefix + name)
    if count is None:
        return words(name)
    left_in = len(counted_ratios(verdict, prefix)) if name == "processes" else 0
    return f"{f'{left_in} of ' if 0 < left_in < count else ''}{count:,} {of_count(words(name), count)}"

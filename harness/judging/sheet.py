"""Collect what a judge writes: figures, denominators, and the one way to a conclusion.

A check that settles the judgement raises `Settled`; `concluded` is the only place that catches it. Only `Sheet.held`
returns PASS, and it refuses when nothing was counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NoReturn

from harness.judging import reasons
from harness.judging.verdict import Demanded, Figure, Interval, Judgement, Relation, Status, tightest
from harness.numbers import agreed, rounded


class Settled(Exception):  # noqa: N818 - it carries a conclusion, it is not an error
    """The judgement is reached: `reason` is a code of `reasons`, `message` one sentence with numbers."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason, self.message = reason, message


def settle(reason: str, message: str) -> NoReturn:
    """End the judgement here: raise `Settled`."""
    raise Settled(reason, message)


class Sheet:
    """Collects figures and denominators while a judge works."""

    def __init__(self, mechanism: str | None = None) -> None:
        self.mechanism = mechanism
        self.figures: dict[str, Figure] = {}
        self.denominators: dict[str, int] = {}
        self._demands: list[Demanded] = []
        self._unmet: Demanded | None = None
        self._open: Judgement | None = None

    def leave_open(self, reason: str, message: str) -> None:
        """Note why the claim cannot hold, and let the judge go on: a violation that it finds later still counts.

        Of several reasons the first one counts, with the figures so far. Use it where later figures remain valid.
        """
        noted = self.conclude(reason, message)
        so_far = {"figures": dict(self.figures), "denominators": dict(self.denominators)}
        self._open = self._open or noted.model_copy(update=so_far)

    def figure(self, name: str, value: bool | float | str | None, unit: str = "") -> None:
        """Note a number with its unit; floats are rounded to 12 digits so that machines agree."""
        plain = rounded(value) if isinstance(value, float) else value
        self.figures[name] = Figure(value=plain, unit=unit)

    def count(self, name: str, number: int) -> None:
        """Note a denominator: how many of something the judgement rests on."""
        self.denominators[name] = int(number)

    def meets(
        self,
        figure: str,
        value: float,
        relation: Relation,
        bound: float = 0,
        noun: str = "",
        *,
        of: int | None = None,
        percent: bool = False,
        interval: Interval | None = None,
        beside: bool = False,
    ) -> bool:
        """Return True if a figure meets its demand, given with the arguments of `Demanded`."""
        return self.holds(Demanded(figure, value, relation, bound, noun, of, percent, interval, beside))

    def holds(self, demanded: Demanded) -> bool:
        """Return True if the demand is met. A judge settles right after an unmet demand: that demand decided."""
        self.note(demanded)
        self._unmet = None if demanded.is_met else demanded
        return demanded.is_met

    def note(self, demanded: Demanded) -> None:
        """Note a demand whose figure alone does not decide, such as that of a mean which has an interval."""
        self._demands.append(demanded)

    def conclude(self, reason: str, message: str) -> Judgement:
        """Return the judgement for a reason code. Raises KeyError for one that neither `reasons` nor a kind lists."""
        listed = reasons.reason_of(reason)
        if listed is None:
            raise KeyError(reason)
        return Judgement(
            status=listed.status,
            reason=reason,
            message=agreed(message),
            figures=self.figures,
            denominators=self.denominators,
            mechanism=self.mechanism,
            demands=tuple(self._demands),
            decided=self._decided(listed.status),
        )

    def _decided(self, status: Status) -> Demanded | None:
        if status is Status.FAIL:
            return self._unmet
        # a guard, or a demand that is met, says nothing of why the claim is undecided
        return tightest([each for each in self._demands if status is Status.PASS or (each.is_open and not each.beside)])

    def decided(self, judgement: Judgement) -> Judgement:
        """Return what was left open before, if anything, instead of PASS or INCONCLUSIVE; else the judgement."""
        if self._open is None or judgement.status not in (Status.PASS, Status.INCONCLUSIVE):
            return judgement
        return self._open

    def held(self, message: str) -> Judgement:
        """Return PASS, or what was left open. Settle FAIL `vacuous_nothing_compared` where nothing was counted."""
        if self._open is not None:  # a zero may come of it
            return self._open
        empty = sorted(name for name, number in self.denominators.items() if number <= 0)
        if empty or not self.denominators:
            settle(reasons.VACUOUS_NOTHING_COMPARED, f"nothing was compared: {', '.join(empty) or 'nothing'} counted 0")
        return self.conclude(reasons.HELD, message)


def instead(judgement: Judgement, reason: str, message: str, **figures: str) -> Judgement:
    """Return the judgement with another reason, its status and message, and more figures."""
    added = {name: Figure(value=value) for name, value in figures.items()}
    status = reasons.REASONS[reason].status
    update = {"status": status, "reason": reason, "message": message, "figures": {**judgement.figures, **added}}
    return judgement.model_copy(update=update)


def require_steps(steps: int, demanded: int, sheet: Sheet, message: str = "") -> None:
    """Note how many steps were run; settle FAIL where they are fewer than demanded."""
    sheet.figure("steps_run", steps, "steps")
    if not sheet.meets("steps_run", steps, "at least", demanded, "steps", beside=True):
        settle(reasons.VACUOUS_STEPS, message or f"{steps} steps were compared, {demanded} are demanded")


def concluded(judge: Callable[[Sheet], Judgement], mechanism: str | None) -> Judgement:
    """Run a judge on a fresh sheet. An exception in it is ERROR `judge_error`, never a verdict."""
    sheet = Sheet(mechanism)
    try:
        try:
            judgement = judge(sheet)
        except Settled as settled:
            judgement = sheet.conclude(settled.reason, settled.message)
        return sheet.decided(judgement)
    except Exception as error:
        return sheet.conclude(reasons.JUDGE_ERROR, f"the judge failed with {type(error).__name__}: {error}")


def number(value: float) -> str:
    """Return a number for a sentence, with three significant digits."""
    return f"{value:.3g}"


_REGISTERED = ("parameters", "frozen", "buffers", "generators", "optimizer")
OF_GROUP = re.compile(r"(?:^|[. ])(group\d+\..+)")  # in the path to a setting of an optimizer, its name among its state


def weight(name: str) -> int:
    """Return the place at which a sentence lists a thing of the state, given by `category name`.

    A user's own named state comes first, an optimizer's settings after all that it trains, and its moments last.
    """
    category, _, own = name.partition(" ")
    moment = category == "optimizer" and not OF_GROUP.search(own)
    return _REGISTERED.index(category) + 1 + moment if category in _REGISTERED else 0


def some(names: list[str], limit: int = 3) -> str:
    """Return a list's first few names, by their weight where they are of the state, and how many more there are."""
    shown = ", ".join(sorted(names, key=weight)[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"

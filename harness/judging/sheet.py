"""Collect the figures, denominators and demands of a judge on a sheet, and turn them into a judgement.

A demand is a figure together with the bound that a claim sets for it. A check ends the judgement by raising `Settled`,
which `concluded` catches. In docstrings, "raise FAIL" means: raise `Settled` with a reason code of this status. Only
`Sheet.held` returns PASS, and only if something was counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NoReturn

from harness.judging import reasons
from harness.judging.verdict import Demanded, Figure, Judgement, Relation, Status, tightest
from harness.numbers import agreed, rounded


class Settled(Exception):  # noqa: N818 - it carries a result and is not an error
    """An exception that ends the judgement of a claim, and carries the result. reason: a reason code, which determines
    the verdict (see `reasons`). message: one sentence with numbers."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason, self.message = reason, message


def settle(reason: str, message: str) -> NoReturn:
    """End the judgement of the claim with this reason code and message, by raising `Settled`."""
    raise Settled(reason, message)


class Sheet:
    """Collects figures, denominators and demands while a judge works."""

    def __init__(self, mechanism: str | None = None) -> None:
        self.mechanism = mechanism
        self.figures: dict[str, Figure] = {}
        self.denominators: dict[str, int] = {}
        self._demands: list[Demanded] = []
        self._unmet: Demanded | None = None
        self._open: Judgement | None = None

    def leave_open(self, reason: str, message: str) -> None:
        """Record why the claim cannot pass, and let the judge continue, so that a later check can still find a
        violation.

        Only the first call has an effect. The result that it records contains only the figures recorded before it. Call
        this method only if later checks are still valid.
        """
        noted = self.conclude(reason, message)
        so_far = {"figures": dict(self.figures), "denominators": dict(self.denominators)}
        self._open = self._open or noted.model_copy(update=so_far)

    def figure(self, name: str, value: bool | float | str | None, unit: str = "") -> None:
        """Record a figure with its unit. Floats are rounded to 12 digits, so that figures are equal on all machines."""
        plain = rounded(value) if isinstance(value, float) else value
        self.figures[name] = Figure(value=plain, unit=unit)

    def count(self, name: str, number: int) -> None:
        """Record a denominator: the number of things that were judged, such as compared steps."""
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
        beside: bool = False,
    ) -> bool:
        """Record a demand: a figure, and the bound that a claim sets for it. Return True if the demand is met.
        Arguments: fields of `Demanded`."""
        return self.holds(Demanded(figure, value, relation, bound, noun, of, percent, beside=beside))

    def holds(self, demanded: Demanded) -> bool:
        """Record a demand (figure and bound). Return True if it is met. A demand that is not met decides the verdict,
        and the caller must raise `Settled`."""
        self.note(demanded)
        self._unmet = None if demanded.is_met else demanded
        return demanded.is_met

    def note(self, demanded: Demanded) -> None:
        """Record a demand that another check decides. For example, a mean's interval decides a demand on the mean."""
        self._demands.append(demanded)

    def conclude(self, reason: str, message: str) -> Judgement:
        """Return a judgement with this reason code and all that was recorded. Raises KeyError for an unknown code."""
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
        # An undecided claim is undecided because of a demand whose interval has values beyond its bound. Leave out all
        # guards, and the demands that are clearly met.
        return tightest([each for each in self._demands if status is Status.PASS or (each.is_open and not each.beside)])

    def decided(self, judgement: Judgement) -> Judgement:
        """Return the judgement. If it is PASS or INCONCLUSIVE, return the result from `leave_open` instead, if any."""
        if self._open is None or judgement.status not in (Status.PASS, Status.INCONCLUSIVE):
            return judgement
        return self._open

    def held(self, message: str) -> Judgement:
        """Return PASS, or what `leave_open` recorded. Raises FAIL `vacuous_nothing_compared` if nothing was counted."""
        if self._open is not None:  # check this before the denominators, which may be 0 for the same reason
            return self._open
        empty = sorted(name for name, number in self.denominators.items() if number <= 0)
        if empty or not self.denominators:
            settle(
                reasons.VACUOUS_NOTHING_COMPARED,
                f"nothing was compared: the evidence holds 0 {', '.join(empty) or 'values'}",
            )
        return self.conclude(reasons.HELD, message)


def instead(judgement: Judgement, reason: str, message: str, **figures: str) -> Judgement:
    """Return the judgement with another reason code and its status, another message, and additional figures."""
    added = {name: Figure(value=value) for name, value in figures.items()}
    status = reasons.REASONS[reason].status
    update = {"status": status, "reason": reason, "message": message, "figures": {**judgement.figures, **added}}
    return judgement.model_copy(update=update)


def require_steps(steps: int, demanded: int, sheet: Sheet, message: str = "") -> None:
    """Record the number of executed steps. Raises FAIL if it is smaller than `demanded`."""
    sheet.figure("steps_run", steps, "steps")
    if not sheet.meets("steps_run", steps, "at least", demanded, "steps", beside=True):
        settle(reasons.VACUOUS_STEPS, message or f"{steps} steps were compared, but {demanded} are required")


def concluded(judge: Callable[[Sheet], Judgement], mechanism: str | None) -> Judgement:
    """Call a judge with a new sheet. Return its judgement, or ERROR `judge_error` for an exception except `Settled`."""
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
    """Return a number as text with three significant digits, for messages."""
    return f"{value:.3g}"


_REGISTERED = ("parameters", "frozen", "buffers", "generators", "optimizer")
OF_GROUP = re.compile(r"(?:^|[. ])(group\d+\..+)")  # matches the path to a setting in a parameter group of an optimizer


def weight(name: str) -> int:
    """Return the key by which messages sort the names (`category name`) of tensors of the state. The order is: state
    that the user named, state of the model, settings of an optimizer, and last an optimizer's moments."""
    category, _, own = name.partition(" ")
    moment = category == "optimizer" and not OF_GROUP.search(own)
    return _REGISTERED.index(category) + 1 + moment if category in _REGISTERED else 0


def some(names: list[str], limit: int = 3) -> str:
    """Return a text with the first `limit` names in the order of `weight`, and the number of the remaining names."""
    shown = ", ".join(sorted(names, key=weight)[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"

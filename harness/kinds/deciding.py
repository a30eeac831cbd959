"""Which figures of a verdict decide claims of a kind, each with its demand: for the rows of the table of kinds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Rule = Literal["none", "exactly", "at least", "at most"]


@dataclass(frozen=True)
class Interval:
    """What a figure was measured to lie between, by its own name for itself.

    low, high: figures. confidence: the model's field that has it, or a number. over: a denominator.
    """

    low: str
    high: str
    confidence: str | float
    called: str
    over: str


@dataclass(frozen=True)
class Deciding:
    """A figure and the demand that it is held against.

    figure: its name in the verdict, or a denominator's; `*` stands for any, of which the worst counts, `{field}` for
    the model's own value. demand: the model's field that demands it, in the words of `broken_by`. Under `none` the
    field has no number: of the denominator `of`, nothing may be what `noun` says.
    """

    figure: str
    rule: Rule
    demand: str
    of: str = ""
    noun: str = ""  # follows the figure in place of its unit
    when: tuple[str, object] | None = None  # a field of the model and its value; elsewhere this figure decides nothing
    bound: float | None = None  # in place of the number at `demand`
    of_demand: str = ""  # follows the demand where it is no plain number of the figure's unit, such as `a layer`
    percent: bool = False  # a share, which people read in percent
    interval: Interval | None = None
    refutes: bool = False  # what decides a violation, and nothing that holds: it is read in the candidate's favour

"""Counts that a claim lets end apart (`may_end_apart`), and which of its excuses were needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from harness.evidence.arm_records import State
from harness.judge.sheet import Sheet, some

EXCUSED_ENDS, IDLE_EXCUSES = "excused_ends", "idle_excuses"  # names of figures


class ExcusedEnds:
    """The excuses of a claim by `category name`. `sentence` says at the end which were needed.

    An excuse is for a count: a whole number wherever it was recorded, so that no tensor is excused that training reads.
    """

    def __init__(self, own: Mapping[str, str], others: Iterable[str] = ()) -> None:
        """own: of the claim that is judged; others: of a claim that it names, whose excuses need not be needed here."""
        self._own = own
        self._named = {*own, *others}
        self._needed: set[str] = set()
        self._compared = False

    def excuses(self, name: str, *ends: State | None) -> bool:
        """Return True if what ended apart is an excused count in every state that has it."""
        self._compared = True
        category, _, tensor = name.partition(" ")
        holders = [each for each in ends if each is not None and tensor in each.digests.get(category, {})]
        values = [(each.numbers or {}).get(name) for each in holders]
        excused = name in self._named and all(value is not None and value.is_integer() for value in values)
        self._needed |= {name} if excused else set()
        return excused

    def compared(self) -> None:
        """Note that ends were compared, whether or not they lay apart."""
        self._compared = True

    def sentence(self, sheet: Sheet) -> str:
        """Note the figures, and return the tail of a sentence that says which excuses were needed and which were not.

        A claim that compared no ends says nothing of its excuses.
        """
        idle = sorted(self._own.keys() - self._needed) if self._compared else []
        if self._needed:
            sheet.figure(EXCUSED_ENDS, len(self._needed), "counts")
        if idle:
            sheet.figure(IDLE_EXCUSES, ", ".join(idle))
        needed = f"; excused by the contract, {some(sorted(self._needed))} ended apart" if self._needed else ""
        return needed + (f"; warning: nothing needed the excuse of {some(idle)}" if idle else "")

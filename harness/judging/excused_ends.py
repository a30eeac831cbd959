"""Excuse counts that may end apart: named by a claim's `may_end_apart`, or numbers that no replay changes."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from harness.evidence.arm_records import State
from harness.judging.sheet import OF_GROUP, Sheet, some

_OF_STATE = re.compile(r"(?:^|[. ])state\.\d+(\..+)")  # in the path to what an optimizer keeps for a parameter
EXCUSED_ENDS, IDLE_EXCUSES = "excused_ends", "idle_excuses"  # names of figures


def own_name(path: str) -> str:
    """Return how a number of an optimizer ends the names by which ends are compared: its group and name, or `.` and the
    name that it has in the state of each parameter. Return "" for any other path.
    """
    group, state = OF_GROUP.search(path), _OF_STATE.search(path)
    return group[1] if group else state[1] if state else ""


class ExcusedEnds:
    """The excuses of a claim by `category name`. `sentence` says which were needed, and what is only counted.

    An excuse is for a count: a whole number wherever it was recorded, so that no tensor is excused that training reads.
    counted: paths of Python numbers that captured steps count, and read nowhere.
    """

    def __init__(self, own: Mapping[str, str], others: Iterable[str], host_values: Collection[str]) -> None:
        """Take the excuses: `own` of the judged claim, `others` of a claim that it names, which may be unused here.

        host_values: paths of numbers that no replay has to change, by the contract.
        """
        self._own, self._named, self._host_values = own, {*own, *others}, host_values
        self.counted: set[str] = set()
        self._needed: set[str] = set()
        self._compared = False

    def excuses(self, name: str, *ends: State | None) -> bool:
        """Return True if what ended apart is an excused count in every state that has it."""
        category, _, tensor = name.partition(" ")
        holders = [each for each in ends if each is not None and tensor in each.digests.get(category, {})]
        values = [(each.numbers or {}).get(name) for each in holders]
        named = name in self._named or bool({*self.paths_of([name])} & {*self._host_values})
        excused = named and all(value is not None and value.is_integer() for value in values)
        self._needed |= {name} if excused else set()
        return excused

    def paths_of(self, apart: Iterable[str]) -> list[str]:
        """Return the paths of the counted numbers among what ended apart."""
        names = {each.split(" (")[0].removeprefix("optimizer ") for each in apart if each.startswith("optimizer ")}
        found = ((path, own_name(path)) for path in sorted(self.counted))
        return [
            path
            for path, own in found
            if own and (path in names or any(each == own or (own[0] == "." and each.endswith(own)) for each in names))
        ]

    def are_counted(self, apart: Collection[str]) -> bool:
        """Return True if everything that ended apart is a counted number."""
        return all(self.paths_of([each]) for each in apart)

    def compared(self) -> None:
        """Note that ends were compared, whether or not they differed."""
        self._compared = True

    def sentence(self, sheet: Sheet) -> str:
        """Note the figures and return a sentence's tail: numbers that are only counted, excuses, unneeded excuses.

        A claim that compared no ends says nothing about its excuses.
        """
        idle = sorted(self._own.keys() - self._needed) if self._compared else []
        clauses = []
        if self.counted:
            clauses.append(f"no replay counts {some(sorted(self.counted))}, which no step reads")
        if self._needed:
            sheet.figure(EXCUSED_ENDS, len(self._needed), "counts")
            clauses.append(f"excused by the contract, {some(sorted(self._needed))} ended apart")
        if idle:
            sheet.figure(IDLE_EXCUSES, ", ".join(idle))
            clauses.append(f"warning: nothing needed the excuse of {some(idle)}")
        return "".join(f"; {clause}" for clause in clauses)

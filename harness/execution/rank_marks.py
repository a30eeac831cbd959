"""Mark how far a rank is in a small file mapped into memory: written without a wait, read by its watcher."""

from __future__ import annotations

import mmap
from pathlib import Path
from struct import Struct
from typing import NamedTuple

MARKS = "marks"
_WORK, _COLLECTIVES = Struct("=4q"), Struct("=q")  # the second behind the first, since another thread writes it


class Position(NamedTuple):
    """Ranks execute one program: of two in an arm, the one with the smaller position lets the other wait.

    joined: arms with several ranks that it entered; phases, steps, collectives: what it began there. Collectives are
    those of torch's process groups.
    """

    joined: int = 0
    phases: int = 0
    steps: int = 0
    collectives: int = 0


class Marks:
    """One rank's. Who watches the ranks makes the file (`new_marks`), the rank itself writes it."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _WORK.size + _COLLECTIVES.size)
        self._joined = self._phases = self._steps = 0

    def enter(self) -> None:
        """Mark that an arm of several ranks begins."""
        self._joined, self._phases, self._steps = self._joined + 1, 0, 0
        self.collectives(0)
        self._write(accountable=True)

    def leave(self) -> None:
        """Mark that the arm is over: what the rank does now, it does for itself alone."""
        self._write(accountable=False)

    def phase(self, *, waits: bool) -> None:
        """Mark that a phase of the arm begins. waits: this rank alone waits for the harness, and resumes its phase."""
        self._phases += self.read()[1] and not waits
        self._write(accountable=not waits)

    def step(self) -> None:
        """Mark that a step of the arm begins."""
        self._steps += 1
        self._write(accountable=True)

    def collectives(self, number: int) -> None:
        """Mark how many collectives were begun in this arm."""
        _COLLECTIVES.pack_into(self._memory, _WORK.size, number)

    def read(self) -> tuple[Position, bool]:
        """Return the position that the rank wrote last, and whether others may wait for this rank."""
        joined, phases, steps, accountable = _WORK.unpack_from(self._memory)
        (collectives,) = _COLLECTIVES.unpack_from(self._memory, _WORK.size)
        return Position(joined, phases, steps, collectives), bool(accountable)

    def close(self) -> None:
        self._memory.close()

    def _write(self, *, accountable: bool) -> None:
        _WORK.pack_into(self._memory, 0, self._joined, self._phases, self._steps, int(accountable))


def new_marks(path: Path) -> Marks:
    """Make the marks of a rank that has not begun."""
    path.write_bytes(bytes(_WORK.size + _COLLECTIVES.size))
    return Marks(path)

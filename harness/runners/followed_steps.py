"""Choose the steps of an execution that a ledger follows, and those before which it looks for new tensors.

A dispatch mode makes a small step last twice as long. So the first steps are followed, the last two and two drawn ones.
Where a look finds a tensor of which nobody knows what it is made of, steps are followed until one shows it.
"""

from __future__ import annotations

import random

FIRST = 3  # the second step reads what the first one made, and the third one what a warm-up has left
LAST = 2  # what each step binds anew shows by two in a row
_DRAWN, _LOOKS, _APART, _MOST_WAITED = 2, 13, 16, 128


class FollowedSteps:
    """The choice for one execution of so many steps, equal for all executions of as many."""

    def __init__(self, steps: int) -> None:
        self._steps, self._apart = steps, max(_APART, steps // _LOOKS)
        between = range(FIRST, steps - LAST)
        self._drawn = frozenset(random.Random(steps).sample(between, min(_DRAWN, len(between))))
        self._left = min(steps // 2, _MOST_WAITED)  # steps that may be followed in waiting
        self._waits = False

    def looks_before(self, index: int) -> bool:
        """Return True if new tensors are looked for before a step: at even distances, and where following begins."""
        begins = index in self._drawn or index == self._steps - LAST
        return FIRST <= index < self._steps - 1 and (begins or index % self._apart == 0)

    def wait(self, *, unexplained: bool) -> None:
        """Follow the next steps up to the next look where some tensor is unexplained, as long as steps are left."""
        self._waits = unexplained

    def is_followed(self, index: int) -> bool:
        """Return True if a step is followed. Call it once for each step."""
        if index < FIRST or index in self._drawn or index >= self._steps - LAST:
            return True
        self._left -= self._waits
        return self._waits and self._left >= 0

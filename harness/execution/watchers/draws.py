"""Watch what draws random numbers in one step of an arm, so that arms whose masks differ are known as such."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Self

from harness.evidence.arm_records import Draws
from harness.system.replay import generators
from harness.system.replay.operations import OperatorWatch


class DrawWatch:
    """Keeps the states of the process's generators around its block; `watch` collects the operators of a step in it.

    Reading a state is work: between the two are the watchers that count what a step does.
    """

    def __init__(self, step: int) -> None:
        self._step = step
        self.watch = OperatorWatch()
        self._before: dict[str, str] = {}
        self._after: dict[str, str] = {}

    def __enter__(self) -> Self:
        self._before = state_digests(generators.global_generators())
        return self

    def __exit__(self, *_raised: object) -> None:
        self._after = state_digests(generators.global_generators())

    @property
    def operators(self) -> set[str]:
        """Return the operators that compute, each once."""
        return self.watch.names

    @property
    def form(self) -> str:
        """Return the digest of all operators of the step."""
        return self.watch.form

    def record(self, captured: Sequence[Sequence[str]]) -> Draws:
        """Return what drew random numbers. captured: the operators that draw, of each capture of the arm."""
        moved = {name: state for name, state in self._after.items() if state != self._before.get(name)}
        return Draws(
            step=self._step,
            operators=self.watch.draws,
            captured=[list(each) for each in captured],
            generators=moved,
        )


def state_digests(accessors: Mapping[str, generators.Accessors]) -> dict[str, str]:
    """Return a digest of each generator's present state."""
    return {
        name: hashlib.sha256(generators.as_tensor(each).numpy().tobytes()).hexdigest()[:16]
        for name, each in generators.states(accessors).items()
    }

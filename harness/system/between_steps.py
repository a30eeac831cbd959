"""What an arm of a step function does between its steps: it evaluates, or goes on from what it saved, built anew.

Two arm settings of every step-function system. An arm with one of them, compared with an arm without it, shows that
evaluation leaves training alone, or that a resumed training is the uninterrupted one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.system.adapter_checks import AdapterError
from harness.system.built import StepFunction
from harness.system.protocol import Scalar

EVALUATE_EVERY, RESUME_AT = "evaluate_every", "resume_at"
OPTIONS: Mapping[str, type] = {EVALUATE_EVERY: int, RESUME_AT: int}
_NEEDED = {EVALUATE_EVERY: ("evaluate",), RESUME_AT: ("save", "load")}


@dataclass(frozen=True)
class BetweenSteps:
    """The settings of one arm; `rebuild` gives its functions as a new process would, generators seeded anew."""

    evaluate_every: int | None
    resume_at: int | None
    rebuild: Callable[[], StepFunction]

    def evaluates_before(self, index: int) -> bool:
        return self.evaluate_every is not None and index > 0 and index % self.evaluate_every == 0

    def resumed(self, function: StepFunction) -> StepFunction:
        """Its training, saved, and loaded into functions that were built anew."""
        if function.save is None:
            raise ValueError("nothing saves this training")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "checkpoint"
            function.save(path)
            anew = self.rebuild()
            if anew.load is None:
                raise ValueError("nothing loads this training")
            anew.load(path)
        return anew


def between_steps(
    settings: Mapping[str, Scalar], function: StepFunction, rebuild: Callable[[], StepFunction], where: str
) -> BetweenSteps:
    """What an arm's settings ask for. Raises `AdapterError` where the functions for it are missing, at `where`."""
    asked: dict[str, int | None] = {}
    for option, needed in _NEEDED.items():
        value = settings.get(option)
        asked[option] = int(value) if value is not None else None
        if value is None:
            continue
        if int(value) < 1:
            raise AdapterError(f"an arm's `{option}` counts steps from 1", got=f"{option}: {value}")
        missing = [name for name in needed if getattr(function, name) is None]
        if missing:
            raise AdapterError(
                f"an arm with `{option}` needs {' and '.join(f'`{name}`' for name in needed)} of what build returns",
                where=where,
                got=f"no {' and no '.join(f'`{name}`' for name in missing)}",
                remedy=f"return StepFunction(…, {', '.join(f'{name}={name}' for name in needed)})",
            )
    return BetweenSteps(asked[EVALUATE_EVERY], asked[RESUME_AT], rebuild)

"""Ask the parts of an execution: detectors and recorders next to its series. An error in one costs its claims alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from harness.errors import UsageError
from harness.evidence.run_records import Part, PartFailed
from harness.execution.opening import release_memory
from harness.execution.recorder import Recorder
from harness.system.protocol import NotAvailable
from harness.system.users_code import message_of, obstacle_of, stack_of

Seen = TypeVar("Seen")


class Parts:
    """The parts of one execution of an arm, with the record of each that failed."""

    def __init__(self, arm: str, replica: int, recorder: Recorder) -> None:
        self._arm, self._replica, self._recorder = arm, replica, recorder
        self.failed: set[Part] = set()

    def ask(self, question: Callable[[], Seen], *parts: Part) -> Seen | None:
        """Return what a detector or recorder of these parts gives; None if it raises, or has raised before.

        An error is recorded as the failure of the parts, and the execution goes on. Raises the device's own error
        once the device cannot be used any more, and `UsageError`, since a wrong plan is not a part's failure.
        """
        if not self.failed.isdisjoint(parts):
            return None
        try:
            return question()
        except UsageError:
            raise
        except BaseException as error:  # what belongs to a system may raise anything, SystemExit included
            self._record(error, parts)
        release_memory()  # a CUDA error is sticky: it is raised again here, and the arm ends
        return None

    def _record(self, error: BaseException, parts: tuple[Part, ...]) -> None:
        self.failed.update(parts)
        for part in parts:
            self._recorder.write(
                PartFailed(
                    arm=self._arm,
                    replica=self._replica,
                    part=part,
                    detail=message_of(error),
                    phase=self._recorder.current_phase,
                    stack=stack_of(error),
                    obstacle=obstacle_of(error) if isinstance(error, NotAvailable) else None,
                )
            )

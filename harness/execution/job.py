"""Define what a process of a run is asked to do, and what it answers: the models that cross its line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NoReturn, Self, TypeVar

from harness.evidence import layout
from harness.evidence.base import Obstacle, Record
from harness.evidence.plan_records import Run
from harness.execution.process_end import end_process
from harness.processes.child import Child, Ending
from harness.processes.line import Line
from harness.system.protocol import NotAvailable
from harness.system.raised import message_of, obstacle_of, stack_of


class Job(Record):
    """A job in a run's folder.

    folder: its path's bytes in hexadecimal; a path need be no text that JSON can hold.
    """

    folder: str

    @property
    def directory(self) -> Path:
        return Path(os.fsdecode(bytes.fromhex(self.folder)))

    def run(self) -> Run:
        """Read the run whose evidence the folder holds."""
        return Run.model_validate_json((self.directory / layout.RUN).read_bytes())


def name_of(directory: Path) -> str:
    """Return a folder's path as `Job.folder` holds it: its bytes in hexadecimal."""
    return os.fsencode(directory.resolve()).hex()


class Answer(Record):
    """What came of a job. failed: an exception's message; None where all was done."""

    failed: str | None = None
    stack: str = ""
    obstacle: Obstacle | None = None

    @classmethod
    def of(cls, error: BaseException, **more: Any) -> Self:
        """Return the answer of a process whose system raised this error."""
        if isinstance(error, NotAvailable):
            return cls(failed=message_of(error), obstacle=obstacle_of(error), **more)
        return cls(failed=message_of(error), stack=stack_of(error), **more)


def leave(line: Line, answer: Answer) -> NoReturn:
    """Send the last answer, and end this process at once."""
    line.send(answer.model_dump_json())
    end_process(0)


Answered = TypeVar("Answered", bound=Answer)


class ProcessFailed(Exception):  # noqa: N818 - what failed is the system's
    """A process raised, or ended, before it was done; its own stack is a note."""


def answered(child: Child, model: type[Answered], named: str, limit_s: float | None = None) -> Answered:
    """Wait for a child's answer. Raises `ProcessFailed`, and NotAvailable as the child's system does.

    named: what the child is, for the message. limit_s: None if the run's limits apply to the child.
    """
    answer = child.receive(model.model_validate_json, limit_s)
    if answer is None:
        raise ProcessFailed(f"{named}: its process took more than {limit_s:g} s")
    if isinstance(answer, Ending):
        raise ProcessFailed(f"{named}: its process {answer}")
    if answer.obstacle is not None:
        raise NotAvailable(answer.obstacle.message)
    if answer.failed is not None:
        failure = ProcessFailed(f"{named}: {answer.failed}")
        if answer.stack:
            failure.add_note(answer.stack)
        raise failure
    return answer

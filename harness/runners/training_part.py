"""A process that trains an arm over some of its steps: `python -m harness.runners.training_part`.

It takes a `TrainingPart` from the line on its standard input and answers with a `PartAnswer`. Records and series it
writes itself into the run's directory: the worker that started it waits. What does not begin with the first step is
loaded, what does not end with the last is saved. It ends at once when that is done, as a process does that is stopped
then: what `save` left to a thread, or to the interpreter's end, is lost.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

from harness.evidence import layout
from harness.evidence.base import Obstacle, Record
from harness.evidence.plan_records import Run
from harness.runners.line import Line, take_standard_input
from harness.runners.process_end import end_process
from harness.runners.raised import message_of, obstacle_of, stack_of
from harness.runners.recorder import Recorder
from harness.runners.stacks import leave_stacks
from harness.system.protocol import NotAvailable


class TrainingPart(Record):
    """folder: of the run's evidence, its path's bytes in hexadecimal; replica: the number of this execution.

    first, until: the steps, the second not among them; seed: in the place of the workload's, and among the facts.
    """

    folder: str
    arm: str
    replica: int
    first: int = 0
    until: int
    seed: int | None = None


class PartAnswer(Record):
    """`failed` is an exception's message; None where the steps were made, and saved where they are to be."""

    failed: str | None = None
    stack: str = ""
    obstacle: Obstacle | None = None


def main() -> NoReturn:
    """Load, train, save, answer, end."""
    line = take_standard_input()
    part = TrainingPart.model_validate_json(line.receive(None) or "")
    directory = Path(os.fsdecode(bytes.fromhex(part.folder)))
    leave_stacks(directory)
    run = Run.model_validate_json((directory / layout.RUN).read_bytes())
    with Recorder(directory) as recorder:
        try:
            train(run, part, recorder, line)
        except NotAvailable as error:
            answer = PartAnswer(failed=message_of(error), obstacle=obstacle_of(error))
        except BaseException as error:  # a system may raise anything, SystemExit included
            answer = PartAnswer(failed=message_of(error), stack=stack_of(error))
    _end(line, answer)


def _end(line: Line, answer: PartAnswer) -> NoReturn:
    line.send(answer.model_dump_json())
    end_process(0)


def train(run: Run, part: TrainingPart, recorder: Recorder, line: Line) -> NoReturn:
    """Open the arm, make the steps, and end this process. Raises what the system raises."""
    # torch, and with it what the system needs
    from harness.runners.checkpoints import load_checkpoint, save_checkpoint, save_earlier
    from harness.runners.opening import opened
    from harness.runners.state_watch import Ends
    from harness.runners.stretch import Stretch

    facts = {} if part.seed is None else {"seed": part.seed}
    seeded = run.model_copy(update={"workload": run.workload.model_copy(update=facts)})
    recorder.phase(f"{part.arm}.{part.replica}: open")
    with opened(seeded, part.arm) as training:
        stretch = Stretch(seeded, part.arm, part.replica, training, recorder, facts)
        if part.first:
            load_checkpoint(training, part.arm, part.replica, stretch, recorder, steps_before=0)
        saves, earlier = part.until < run.workload.steps, (part.first + part.until) // 2

        def after(steps: int) -> None:
            if saves and part.first < earlier == steps:
                save_earlier(training, part.arm, part.replica, recorder)

        stretch.steps(range(part.first, part.until), after)
        stretch.end(Ends())
        if saves:
            save_checkpoint(training, part.arm, part.replica, recorder, steps=part.until)
        _end(line, PartAnswer())  # before the arm is closed, which might yet write


if __name__ == "__main__":
    main()

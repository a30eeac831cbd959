"""Train an arm over a part of its steps in a separate process: `python -m harness.execution.probes.training_part`.

The process reads a `TrainingPart` from its standard input and answers with an `Answer`. It writes records and series
directly into the run's directory, while the worker that started it waits (see `train_elsewhere`).

The process imports torch before it receives the `TrainingPart`. All parts except the first begin by loading a
checkpoint. All parts except the last end by saving a checkpoint. After the save the process makes a few more steps,
which must not change the checkpoint. Then it waits for its threads and ends.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import NoReturn

from harness.evidence.base import Cause
from harness.evidence.plan_records import Run
from harness.evidence.run_records import ArmFailed
from harness.execution.job import Answer, Job, LeftStacks, end_threads, leave, leave_stacks
from harness.execution.recorder import HEARTBEAT, Recorder
from harness.processes.child import Child, Ending, Line, start_child, take_standard_input

# The first step after a save changes every saved tensor. A system that saves in the background may wait for the second
# step before it writes the tensors.
STEPS_AFTER_SAVE = 2


class TrainingPart(Job):
    """A part of a training: the steps from `first` up to, but not including, `until`. replica: number of this
    execution. seed: replaces the workload's seed and is recorded as a fact; None to keep the workload's seed."""

    arm: str
    replica: int
    first: int = 0
    until: int
    seed: int | None = None


def train_elsewhere(parts: Sequence[TrainingPart], recorder: Recorder) -> ArmFailed | None:
    """Train the parts one after the other, each in its own process. Return the first failure, or None.

    All processes are started at once, because the import of torch takes longer than a small training.
    """
    with ExitStack() as stack:
        children = [stack.enter_context(start_child("harness.execution.probes.training_part")) for _ in parts]
        failures = (_train_in(child, part, recorder) for child, part in zip(children, parts, strict=True))
        return next((failure for failure in failures if failure is not None), None)


def _train_in(child: Child, part: TrainingPart, recorder: Recorder) -> ArmFailed | None:
    recorder.phase(f"{part.arm}.{part.replica}: start a process for a part")
    stacks = LeftStacks(recorder.directory)
    child.send(part)
    answer = child.receive(Answer.model_validate_json)
    ending = answer if isinstance(answer, Ending) else child.ended()
    cause: Cause = "exception"
    if not isinstance(answer, Answer) or (answer.failed is None and ending.code != 0):
        what = "the process that was to load a checkpoint" if part.first else "the process that was to save"
        answer, cause = Answer(failed=f"{what} {ending}", stack=stacks.read()), ending.cause
    if answer.failed is None:
        return None
    return ArmFailed(
        arm=part.arm,
        cause=cause,
        detail=answer.failed,
        phase=_last_phase(recorder),
        stack=answer.stack,
        obstacle=answer.obstacle,
    )


def _last_phase(recorder: Recorder) -> str:
    """Return the last phase in the heartbeat file. The process of a part records its phases in this file, and this
    worker does too."""
    with suppress(OSError):
        return (recorder.directory / HEARTBEAT).read_text(encoding="utf-8", errors="replace").partition("\n")[0]
    return recorder.current_phase


def main() -> NoReturn:
    """Read a part, load the checkpoint, train the part, save, send the parent process an `Answer`, and exit."""
    line = take_standard_input()
    importlib.import_module("harness.execution.arm")  # this imports torch before the job arrives
    part = TrainingPart.model_validate_json(line.receive(None) or "")
    leave_stacks(part.directory)
    with Recorder(part.directory) as recorder:
        try:
            train(part.run(), part, recorder, line)
        except BaseException as error:  # user code may raise anything, also SystemExit
            answer = Answer.of(error)
    leave(line, answer)


def train(run: Run, part: TrainingPart, recorder: Recorder, line: Line) -> NoReturn:
    """Open the arm, load, make the part's steps, save, answer, and end this process. Errors of user code are raised."""
    # import these modules here and not at the top, because they import torch
    from harness.execution.arm import ArmLife
    from harness.execution.probes.checkpoints import load_checkpoint, record_saved, save

    facts = {} if part.seed is None else {"seed": part.seed}
    seeded = run.model_copy(update={"workload": run.workload.model_copy(update=facts)})
    with ArmLife(seeded, part.arm, recorder, part.replica, facts=facts) as life:
        life.start()
        if part.first:
            load_checkpoint(life, steps=part.first, steps_before=0)
        saves, earlier = part.until < run.workload.steps, (part.first + part.until) // 2

        def after(steps: int) -> None:
            """Save one extra checkpoint in the middle of the part. It is never loaded, but it reveals two faults of a
            training system: the system keeps its first checkpoint instead of its last one, or a save changes the
            training."""
            if saves and part.first < earlier == steps:
                life.phase("save earlier")
                save(life, steps=steps)
                life.phase("steps")

        # If `seed` is given, do not observe the steps: a profile takes seconds in each process, and a run with several
        # seeds has many processes.
        life.train_on(range(part.first, part.until), after, watched=part.seed is None)
        if saves:
            life.phase("save")
            save(life, steps=part.until)
            more = range(part.until, min(part.until + STEPS_AFTER_SAVE, run.workload.steps))
            life.phase("steps after the save")
            for index in more:
                life.training.step(index)
            life.phase("threads after the save")
            end_threads()
            record_saved(life, steps=part.until, steps_after=len(more))
        leave(line, Answer())  # end before the arm is closed, because closing it could still write files


if __name__ == "__main__":
    main()

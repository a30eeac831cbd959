"""One arm of a timing of two commits, in a process of its own: `python -m harness.runners.arm_process`.

It takes an `ArmJob` from the line on its standard input, then a `Command` at a time, and answers each. Records and
series it writes itself into the run's directory: while it works, the process that commands it waits.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

from harness.commits.import_path import ImportPath
from harness.evidence import layout
from harness.evidence.base import Obstacle, Record
from harness.evidence.plan_records import Run
from harness.evidence.run_records import Block, TimingEvidence
from harness.numbers import Real
from harness.runners.line import Line, take_standard_input
from harness.runners.process_end import end_process
from harness.runners.raised import message_of, obstacle_of, stack_of
from harness.runners.recorder import Recorder
from harness.runners.stacks import leave_stacks
from harness.system.protocol import NotAvailable


class ArmJob(Record):
    """folder: of the run's evidence, its path's bytes in hexadecimal; baseline: None for the tree that stands there."""

    folder: str
    arm: str
    baseline: ImportPath | None


class Command(Record):
    """What to do next; a block's round, position and steps."""

    what: Literal["open", "warm_up", "begin", "block", "finish", "watch"]
    round: int = 0
    position: int = 0
    steps: int = 0


class Answer(Record):
    """What came of a command: `failed` is an exception's message, and nothing else is given then but its stack."""

    failed: str | None = None
    stack: str = ""
    obstacle: Obstacle | None = None
    block: Block | None = None
    least_pace: Real | None = None
    timing: TimingEvidence | None = None


def main() -> int:
    """Answer commands until the line is closed."""
    line = take_standard_input()
    job = ArmJob.model_validate_json(line.receive(None) or "")
    directory = Path(os.fsdecode(bytes.fromhex(job.folder)))
    leave_stacks(directory)
    run = Run.model_validate_json((directory / layout.RUN).read_bytes())
    if job.baseline is not None:
        job.baseline.use()
    with Recorder(directory) as recorder:
        try:
            _serve(line, run, job.arm, recorder)
        except NotAvailable as error:
            line.send(Answer(failed=message_of(error), obstacle=obstacle_of(error)).model_dump_json())
        except BaseException as error:  # a system may raise anything, SystemExit included
            line.send(Answer(failed=message_of(error), stack=stack_of(error)).model_dump_json())
            return 1
    return 0


def _serve(line: Line, run: Run, arm: str, recorder: Recorder) -> None:
    # torch, and with it what looks for a device: by now the path is the commit's
    from harness.runners.quiet import wait_for_quiet_device
    from harness.runners.throughput import TimedProcess
    from harness.runners.timed_arm import raise_clocks

    with ExitStack() as opened, ExitStack() as counting:
        process = TimedProcess(run, recorder, opened)
        while message := line.receive(None):
            command = Command.model_validate_json(message)
            answer = Answer()
            match command.what:
                case "open":
                    process.open(arm)
                case "warm_up":
                    process.warm_up(arm)
                case "begin":
                    counting.enter_context(process.counting())
                    wait_for_quiet_device()
                    raise_clocks()
                case "block":
                    block = process.timed_block(arm, command.round, command.position, command.steps)
                    answer = Answer(block=block, least_pace=process.paces.least)
                case "finish":
                    counting.close()
                    process.end()
                case "watch":
                    answer = Answer(timing=process.watch())
            line.send(answer.model_dump_json())


if __name__ == "__main__":
    end_process(main())

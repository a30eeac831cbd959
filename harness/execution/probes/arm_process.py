"""Execute one arm of a timing of two commits in a separate process: `python -m harness.execution.probes.arm_process`.

The process reads an `ArmJob` from its standard input. Then it reads one `Command` at a time, and answers each command
with an `ArmAnswer`. It writes records and series into the run's directory, while the process that sent the command
waits.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Literal

from harness.commits.import_path import ImportPath
from harness.devices.telemetry import wait_for_quiet_device
from harness.evidence.base import Record
from harness.evidence.plan_records import Run
from harness.evidence.run_records import Block, TimingEvidence
from harness.execution.job import Answer, Job, end_process, leave_stacks
from harness.execution.recorder import Recorder
from harness.numbers import Real
from harness.processes.child import Line, take_standard_input


class ArmJob(Job):
    """The arm to execute. baseline: the import path of the arm's commit; None if the arm uses the working tree."""

    arm: str
    baseline: ImportPath | None


class Command(Record):
    """A command to the process of an arm. round: number of the round. position: the block's position in the round.
    steps: number of steps of the block."""

    what: Literal["open", "warm_up", "begin", "block", "finish", "watch"]
    round: int = 0
    position: int = 0
    steps: int = 0


class ArmAnswer(Answer):
    """The result of a command. block: the timed block, after the command `block`. timing: the evidence of the timing
    except its timed blocks, after the command `watch`.

    least_pace: the shortest time, in seconds, that a fixed amount of work took in this process so far. This time shows
    how fast an undisturbed processor is.
    """

    block: Block | None = None
    least_pace: Real | None = None
    timing: TimingEvidence | None = None


def main() -> int:
    """Read the job, and answer commands until their sender closes the connection. Return the exit status."""
    line = take_standard_input()
    job = ArmJob.model_validate_json(line.receive(None) or "")
    leave_stacks(job.directory)
    run = job.run()
    if job.baseline is not None:
        job.baseline.use()
    with Recorder(job.directory) as recorder:
        try:
            _serve(line, run, job.arm, recorder)
        except BaseException as error:  # user code may raise anything, also SystemExit
            line.send(ArmAnswer.of(error).model_dump_json())
            return 1
    return 0


def _serve(line: Line, run: Run, arm: str, recorder: Recorder) -> None:
    # Import these modules here and not at the top, because they import torch and look for a device. Before such an
    # import, the folder of the arm's commit must be on the import path.
    from harness.execution.probes.throughput import TimedProcess
    from harness.execution.probes.timed_arm import raise_clocks

    with ExitStack() as opened, ExitStack() as counting:
        process = TimedProcess(run, recorder, opened)
        while message := line.receive(None):
            command = Command.model_validate_json(message)
            answer = ArmAnswer()
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
                    answer = ArmAnswer(block=block, least_pace=process.paces.least)
                case "finish":
                    counting.close()
                    process.end()
                case "watch":
                    answer = ArmAnswer(timing=process.watch())
            line.send(answer.model_dump_json())


if __name__ == "__main__":
    end_process(main())

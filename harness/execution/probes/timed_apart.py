"""Time two arms of different commits. Each arm has a process, and the two processes time their blocks in turns.

The modules of both commits have the same names, so one process cannot import the modules of both. This process opens no
arm itself, so that both arms have equal conditions. It starts a process for each arm, sends commands to the processes
in turn, and waits while one of them works. Meanwhile the other arm's process waits too, and its arm stays open, as in a
timing of both arms in one process. The blocks of a round are in ABBA order. The arm that is opened first alternates
from one pair of processes to the next pair.

Each pair of processes adds noise to a timing. The verdict accounts for this noise, because the noise increases the
spread of the pairs' ratios. An arm's first block in a round begins after a wait, and may therefore be slower than the
arm's second block. When an arm is timed against itself, the ratio that is measured includes this slowdown.
"""

from __future__ import annotations

import math
from contextlib import ExitStack

from harness.commits.import_path import ImportPath
from harness.evidence.environment_records import SHORT
from harness.evidence.plan_records import Run
from harness.evidence.run_records import TIMED_PHASE, Block, TimingEvidence, disturbed
from harness.execution.job import ProcessFailed, answered, name_of
from harness.execution.probes.arm_process import ArmAnswer, ArmJob, Command
from harness.execution.probes.timed_arm import arms_of, joined_timing, timed_rounds
from harness.execution.recorder import Recorder
from harness.processes.child import start_child

ENDING_S = 10.0  # seconds that a process may take to close its arm


def execute(run: Run, recorder: Recorder, baseline: ImportPath) -> None:
    """Open each arm in a process, warm both arms up, and time them. If this pair of processes is profiled, observe an
    untimed block of each arm at the end."""
    candidate, reference = arms_of(run)
    order = (reference, candidate) if run.process % 2 == 0 else (candidate, reference)
    with ExitStack() as stack:
        arms = {
            name: ArmProcess(name, recorder, baseline if planned.commit is not None else None, stack)
            for name, planned in run.arms.items()
        }
        for what in ("open", "warm_up"):
            for name in order:
                arms[name].do(Command.model_validate({"what": what}))
        with recorder.alone():
            for name in order:
                arms[name].do(Command(what="begin"))
            recorder.phase(TIMED_PHASE)

            def timed_block(arm: str, number: int, position: int, steps: int) -> Block:
                return arms[arm].block(number, position, steps)

            def is_disturbed(block: Block) -> bool:
                least = min(each.least_pace for each in arms.values())
                return block.pace is not None and disturbed(block.pace, least)

            blocks = timed_rounds(run, timed_block, is_disturbed)
            # this ends the timed phase, before the observed blocks, which telemetry must not include
            recorder.phase("end")
        for name in order:
            arms[name].do(Command(what="finish"))
        with recorder.alone():
            seen = [arms[name].timing() for name in order]
        for name in order:
            arms[name].close()
        recorder.write(joined_timing(run, blocks, seen))


class ArmProcess:
    """The process of one arm. The process ends when `close` is called, or else when `stack` is closed."""

    def __init__(self, arm: str, recorder: Recorder, baseline: ImportPath | None, stack: ExitStack) -> None:
        self._named = f"arm {arm}" + (f" at {baseline.commit[:SHORT]}" if baseline is not None else "")
        self.least_pace = math.inf
        self._child = stack.enter_context(start_child("harness.execution.probes.arm_process"))
        self._child.send(ArmJob(folder=name_of(recorder.directory), arm=arm, baseline=baseline))

    def do(self, command: Command) -> ArmAnswer:
        """Send a command and return the process's answer. Raises `ProcessFailed` if the process fails, and
        `NotAvailable` if the arm's system raises `NotAvailable`."""
        self._child.send(command)
        return answered(self._child, ArmAnswer, self._named)

    def block(self, number: int, position: int, steps: int) -> Block:
        """Let the process time a block, and return the block. Raises `ProcessFailed` if the answer contains no block.
        number: the round's number. position: the block's position in the round. steps: the block's number of steps."""
        answer = self.do(Command(what="block", round=number, position=position, steps=steps))
        if answer.block is None or answer.least_pace is None:
            raise ProcessFailed(f"{self._named}: its process reported no block")
        self.least_pace = answer.least_pace
        return answer.block

    def timing(self) -> TimingEvidence:
        """Let the process make and observe an untimed block, and return the evidence of the timing. Raises
        `ProcessFailed` if the process returns no such evidence."""
        answer = self.do(Command(what="watch"))
        if answer.timing is None:
            raise ProcessFailed(f"{self._named}: its process reported no timing")
        return answer.timing

    def close(self) -> None:
        """Let the process close its arm, and end the process."""
        self._child.close(ENDING_S)

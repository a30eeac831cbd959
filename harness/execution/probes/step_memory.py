"""Measure the memory that torch reserves for an arm's steps: `python -m harness.execution.probes.step_memory`.

The process takes a run of one arm from the line on its standard input, opens the arm, answers, and
waits for `GO`. Then, and not before, it trains and measures, and answers again.
"""

from __future__ import annotations

from typing import NoReturn, Self

from harness.evidence.base import Record
from harness.evidence.plan_records import Run
from harness.execution.job import Answer, ProcessFailed, answered, end_process, leave
from harness.execution.opening import of_shapes, opened
from harness.execution.probes.kernels import train
from harness.processes.child import GO, Line, start_child, take_standard_input
from harness.system.protocol import TrainingRun

LIMIT_S = 600.0  # for opening, and again for measuring
NAMED = "measuring a step's memory"
# Bytes: torch serves allocations of at most 1 MiB from a pool of their own (kSmallSize of CUDACachingAllocator).
SMALL_ALLOCATION = 2**20


class StepMemory(Record):
    """Bytes that steps need besides an opened run: torch's reserve at its peak, by pool, and a graph's own memory.

    `segments` are the sizes of the large pool's driver allocations that were there at the end, captures included.
    """

    large_bytes: int
    small_bytes: int
    outside_bytes: int  # what the driver gave besides torch's pools; 0 for an arm that captures nothing
    segments: list[int]


class MemoryAnswer(Answer):
    """memory: None for an arm that is open, and has made no step."""

    memory: StepMemory | None = None


class MemoryProbe:
    """Measures what torch's allocator reserves for the steps of an arm, in a process of its own, without a fault.

    The process is started at once, and opens the arm while the worker opens its own. Only what comes then is sensitive
    to neighbours on the device: it trains and measures when it is asked to, and is gone before the worker goes on. A
    context manager: the process ends with the block at the latest. Each wait raises ProcessFailed where the process
    fails, or takes longer than LIMIT_S, and NotAvailable as the arm's system does.
    """

    def __init__(self, run: Run, arm: str) -> None:
        """Start the process that measures."""
        self._child = start_child("harness.execution.probes.step_memory")
        self._child.send(run.model_copy(update={"arms": {arm: run.arms[arm]}, "fault": None, "fault_arms": []}))

    def wait_until_ready(self) -> None:
        """Wait until the process has opened the arm. It makes no step before `measure`."""
        answered(self._child, MemoryAnswer, NAMED, LIMIT_S)

    def measure(self) -> StepMemory:
        """Let the process train and measure. Return its result once it has ended and given its memory back."""
        self._child.line.send(GO)
        memory = answered(self._child, MemoryAnswer, NAMED, LIMIT_S).memory
        self._child.close(LIMIT_S)
        if memory is None:
            raise ProcessFailed(f"{NAMED}: its process answered without a measurement")
        return memory

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self._child.close()


def main() -> NoReturn:
    """Measure, answer, and end this process."""
    line = take_standard_input()
    try:
        answer = _measure(Run.model_validate_json(line.receive(None) or ""), line)
    except BaseException as error:  # a system may raise anything, SystemExit included
        answer = MemoryAnswer.of(error)
    leave(line, answer)


def _measure(run: Run, line: Line) -> MemoryAnswer:
    """Open the arm, wait for permission to train, train every shape twice, and return what that reserved."""
    (arm,) = run.arms
    with opened(run, arm) as training:
        line.send(MemoryAnswer().model_dump_json())
        if line.receive(None) != GO:
            end_process(0)  # the worker ended before it asked for the measurement
        return MemoryAnswer(memory=measured(run, arm, training))


def measured(run: Run, arm: str, training: TrainingRun) -> StepMemory:
    """Train every shape of `arm`, which is open and made no step yet, twice. Return the memory that this reserved.

    What lies outside torch's pools is known by the whole device's free memory, so nothing else may use the device.
    """
    from harness.devices.device_memory import growth

    grown = growth(lambda: train(training, of_shapes(run)))
    # An instantiated graph lives outside torch's pools. Without one, whatever the driver gives is made too late.
    outside = max(0, grown.taken - grown.reserved) if run.arms[arm].arm.capture != "none" else 0
    return StepMemory(large_bytes=grown.large, small_bytes=grown.small, outside_bytes=outside, segments=grown.segments)


if __name__ == "__main__":
    main()

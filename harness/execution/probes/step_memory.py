"""Measure the memory that torch reserves for an arm's steps: `python -m harness.execution.probes.step_memory`.

The process reads a run of one arm from its standard input, opens the arm, answers with a `MemoryAnswer`, and waits for
the message `GO`. Then it trains, and answers again with the measured memory.
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

LIMIT_S = 600.0  # largest number of seconds for opening the arm; the same limit holds for measuring
NAMED = "measuring a step's memory"
# In bytes. Torch uses a separate memory pool for allocations of at most 1 MiB (kSmallSize of CUDACachingAllocator).
SMALL_ALLOCATION = 2**20


class StepMemory(Record):
    """The memory, in bytes, that the steps of an opened arm need in addition to the memory that the arm has already.

    large_bytes, small_bytes: by how much torch's largest reservation exceeds the reservation before the steps, in its
    pools of large and of small allocations. segments: the sizes of the memory segments that the steps added to the pool
    of large allocations and that exist at the end; segments of captures are included.
    """

    large_bytes: int
    small_bytes: int
    outside_bytes: int  # memory that the driver uses outside of torch's pools; 0 for an arm without captures
    segments: list[int]


class MemoryAnswer(Answer):
    """The answer of the measuring process. memory: None if the arm was only opened."""

    memory: StepMemory | None = None


class MemoryProbe:
    """Measures, in another process, the memory that torch's allocator reserves for an arm's steps. No fault is planted.

    The process starts at once, and opens the arm while the worker opens the same arm. During this time other processes
    may use the device. `measure` lets the process train and measure, and returns after the process has ended. At the
    latest, the process ends when the `with` block of this context manager ends. `wait_until_ready` and `measure` raise
    `ProcessFailed` if the process fails or takes longer than LIMIT_S seconds, and `NotAvailable` if the arm's system
    raises `NotAvailable`.
    """

    def __init__(self, run: Run, arm: str) -> None:
        """Start the measuring process."""
        self._child = start_child("harness.execution.probes.step_memory")
        self._child.send(run.model_copy(update={"arms": {arm: run.arms[arm]}, "fault": None, "fault_arms": []}))

    def wait_until_ready(self) -> None:
        """Wait until the process has opened the arm. The process makes no step before `measure` is called."""
        answered(self._child, MemoryAnswer, NAMED, LIMIT_S)

    def measure(self) -> StepMemory:
        """Let the process train and measure. Return the result after the process has ended and released its memory."""
        self._child.line.send(GO)
        memory = answered(self._child, MemoryAnswer, NAMED, LIMIT_S).memory
        self._child.close(LIMIT_S)
        if memory is None:
            raise ProcessFailed(f"{NAMED}: its process returned no measurement")
        return memory

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self._child.close()


def main() -> NoReturn:
    """Measure the memory of an arm's steps, send the answer, and end this process."""
    line = take_standard_input()
    try:
        answer = _measure(Run.model_validate_json(line.receive(None) or ""), line)
    except BaseException as error:  # user code may raise anything, also SystemExit
        answer = MemoryAnswer.of(error)
    leave(line, answer)


def _measure(run: Run, line: Line) -> MemoryAnswer:
    """Open the arm, wait for `GO`, make the arm's steps, and return the memory that these steps reserved."""
    (arm,) = run.arms
    with opened(run, arm) as training:
        line.send(MemoryAnswer().model_dump_json())
        if line.receive(None) != GO:
            end_process(0)  # the worker has ended and will not request the measurement any more
        return MemoryAnswer(memory=measured(run, arm, training))


def measured(run: Run, arm: str, training: TrainingRun) -> StepMemory:
    """Warm up `arm` and make two steps with every shape of batches. Return the memory that all these steps reserved.

    training: the opened run, which has made no step. No other process may use the device meanwhile, because memory
    outside of torch's pools is computed from the device's free memory.
    """
    from harness.devices.device_memory import growth

    grown = growth(lambda: train(training, of_shapes(run)))
    # A graph needs memory outside of torch's pools, so record this memory for a captured arm. An arm without graphs
    # must take such memory before its first step, so record 0.
    outside = max(0, grown.taken - grown.reserved) if run.arms[arm].arm.capture != "none" else 0
    return StepMemory(large_bytes=grown.large, small_bytes=grown.small, outside_bytes=outside, segments=grown.segments)


if __name__ == "__main__":
    main()

"""How much memory torch's allocator reserves for the steps of one arm: `python -m harness.runners.step_memory`.

Takes a run of one arm as a line of JSON on stdin, opens the arm, prints `READY` as a line of its own, and waits for
another line. Then, and not before, it trains and measures, and prints a `StepMemory` as the last line of stdout.
"""

from __future__ import annotations

import os
import sys

from harness.evidence.base import Record
from harness.evidence.plan_records import Run
from harness.runners.announced import ROUNDS, shapes_of
from harness.runners.kernels import train
from harness.runners.opening import opened
from harness.runners.process_end import end_process, flush_streams
from harness.system.protocol import TrainingRun

# Bytes: torch serves allocations of at most 1 MiB from a pool of their own (kSmallSize of CUDACachingAllocator).
SMALL_ALLOCATION = 2**20
READY = "step_memory: the arm is open"  # then it waits until nothing else uses the device


class StepMemory(Record):
    """Bytes that steps need beside an opened run: torch's reserve at its peak, by pool, and a graph's own memory.

    `segments` are the sizes of the large pool's driver allocations that were there at the end, captures included.
    """

    large_bytes: int
    small_bytes: int
    outside_bytes: int  # what the driver gave beside torch's pools; 0 for an arm that captures nothing
    segments: list[int]


def main() -> None:
    """Open the arm, wait for leave to train, train every shape twice, print what that reserved."""
    questions = sys.stdin
    run = Run.model_validate_json(questions.readline())
    (arm,) = run.arms
    answers = os.dup(1)  # a system may close standard output, or put something else in its place
    with opened(run, arm) as training:
        _answer(answers, READY)
        if not questions.readline():
            sys.exit("the worker ended before it asked for the measurement")
        memory = measured(run, arm, training)
    _answer(answers, memory.model_dump_json())


def _answer(answers: int, line: str) -> None:
    """A line of its own, behind what the system has printed."""
    flush_streams()
    text = f"\n{line}\n".encode()
    while text:
        text = text[os.write(answers, text) :]


def measured(run: Run, arm: str, training: TrainingRun) -> StepMemory:
    """Train every shape of `arm`, which is open and made no step yet, twice; what that reserved.

    What lies outside torch's pools is told by the whole device's free memory: nothing else may use the device.
    """
    import torch

    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before, free_before = torch.cuda.memory_stats(), torch.cuda.mem_get_info()[0]
    known = _large_segments()
    train(training, shapes_of(run) * ROUNDS)
    after, free_after = torch.cuda.memory_stats(), torch.cuda.mem_get_info()[0]
    segments = [size for address, size in _large_segments().items() if address not in known]
    growth = {
        pool: after[f"reserved_bytes.{pool}_pool.peak"] - before[f"reserved_bytes.{pool}_pool.current"]
        for pool in ("large", "small")
    }
    # An instantiated graph lives outside torch's pools. Without one, whatever the driver gives is made too late.
    reserved = sum(figures["reserved_bytes.all.current"] * sign for figures, sign in ((after, 1), (before, -1)))
    outside = max(0, free_before - free_after - reserved) if run.arms[arm].arm.capture != "none" else 0
    return StepMemory(
        large_bytes=growth["large"], small_bytes=growth["small"], outside_bytes=outside, segments=segments
    )


def _large_segments() -> dict[int, int]:
    """Bytes by address of what torch's large pools, those of graphs too, hold of the driver's memory."""
    import torch

    snapshot = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
    return {one["address"]: one["total_size"] for one in snapshot if one["segment_type"] == "large"}


if __name__ == "__main__":
    main()
    end_process(0)

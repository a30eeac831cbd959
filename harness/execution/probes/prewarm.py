"""The prewarm probe: open an arm that prewarms, fill the device's memory, and train in what was reserved.

What a step needs is measured by another process, because no step may have run here before. That much is
reserved once in torch's cache, the driver is asked for all the rest, and then the steps run: whatever
is still made lazily by then (a library's handle, a module) finds no memory.

Both processes open the arm at the same time, next to whatever else uses the device. From the
measurement to the last step nothing else may use it, since free memory is counted for the whole device.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict

import torch

from harness.devices import device_memory
from harness.devices.cuda_driver import devices
from harness.devices.device import synchronize
from harness.devices.device_memory import empty_cache, free_bytes, reserved_bytes
from harness.evidence.plan_records import Run
from harness.evidence.run_records import JitEvent, PrewarmEvidence
from harness.execution.opening import of_shapes, opened
from harness.execution.probes.kernels import evidence, train
from harness.execution.probes.step_memory import SMALL_ALLOCATION, MemoryProbe, StepMemory
from harness.execution.recorder import Recorder
from harness.system.protocol import HasCapture, HasKernels, NotAvailable, TrainingRun

# One part of so many is reserved besides what was measured: in full memory torch may fit parts into blocks in another
# order than where it got a new block for each.
_SPARE_PARTS = 8


def execute(run: Run, recorder: Recorder) -> None:
    """Write inventory and ledger of every arm of the run."""
    for arm in run.arms:
        recorder.phase(f"{arm}: open")
        probe = MemoryProbe(run, arm) if run.settings["memory_filled"] else None
        with probe or nullcontext(), opened(run, arm) as training:
            _execute_arm(run, arm, training, probe, recorder)


def _execute_arm(run: Run, arm: str, training: TrainingRun, probe: MemoryProbe | None, recorder: Recorder) -> None:
    if not isinstance(training, HasKernels):
        raise NotAvailable("a JIT ledger needs the system's capability `kernels`")
    if probe is None:
        free, steps, failure = None, 0, None
        recorder.phase(f"{arm}: steps")
        train(training, of_shapes(run))
    else:
        probe.wait_until_ready()
        synchronize()  # what opening began is done: while the other measures, this process does nothing
        with recorder.alone():
            recorder.phase(f"{arm}: measure a step's memory in another process")
            memory = probe.measure()
            with full_memory(memory) as free:
                recorder.phase(f"{arm}: steps")
                steps, failure = _steps_in_full_memory(training, of_shapes(run))
            empty_cache()  # what was reserved, too
    # a capture that found no memory falls back to plain steps: they are not what was to run
    if failure is None and isinstance(training, HasCapture):
        failure = training.capture_record().failure
    # before the inventory, which compiles what the steps did not
    ledger = training.kernel_ledger()
    recorder.phase(f"{arm}: inventory")
    recorder.write(evidence(arm, training.kernel_inventory(), compiled_for=None, device=devices()))
    recorder.write(
        PrewarmEvidence(
            arm=arm,
            events=[JitEvent(**asdict(event)) for event in ledger.events],
            phases=dict(ledger.phases),
            handles=dict(ledger.handles),
            free_bytes_after_fill=free,
            steps_after_fill=steps,
            failure=failure,
        )
    )


def _steps_in_full_memory(training: TrainingRun, count: int) -> tuple[int, str | None]:
    """Return how many of the steps ran, and the error of the step that did not."""
    for index in range(count):
        try:
            training.step(index)
            synchronize()
        except RuntimeError as error:  # torch's out of memory, cuBLAS's failed handle: what filling is to show
            return index, f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    return count, None


@contextmanager
def full_memory(memory: StepMemory) -> Iterator[int]:
    """Reserve `memory` in torch's cache, take the rest from the driver, and yield the bytes that are left."""
    reserve(memory)
    with device_memory.full(but=memory.outside_bytes):
        yield free_bytes()


def reserve(memory: StepMemory) -> None:
    """Leave that much unused in torch's cache: the measured segments, the rest of the peak, and small allocations.

    A captured step takes its memory in a pool of its own, which gets none of the cache: before the capture
    torch gives whole unused segments back to the driver. Other memory that the step keeps holds the segment
    that it was cut from. With the segments of a run that had all memory, it holds as little as there.
    """
    synchronize()
    empty_cache()
    rest = memory.large_bytes - sum(memory.segments) + memory.large_bytes // _SPARE_PARTS
    held = [_grow_cache(size, size) for size in (*memory.segments, max(rest, 0))]
    held.append(_grow_cache(memory.small_bytes, SMALL_ALLOCATION))
    del held


def _grow_cache(size: int, part: int) -> list[torch.Tensor]:
    """Return tensors of `part` bytes that make torch hold `size` bytes more of the driver's memory than before.

    The first ones may fit into gaps that the upload left. No graph's pool gets those, so they don't count:
    on an H200 such gaps swallowed 386 of 3320 MiB, and a capture of 28 layers failed without 23.
    """
    goal = reserved_bytes() + size
    tensors: list[torch.Tensor] = []
    while reserved_bytes() < goal:
        tensors.append(torch.empty(part, dtype=torch.uint8, device="cuda"))
    return tensors

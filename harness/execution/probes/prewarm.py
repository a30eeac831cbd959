"""Probe prewarming (`prewarm`): open an arm that prewarms, fill the device's memory, and train in reserved memory.

Another process measures how much memory a step needs, because no step may have run in this process before. This process
reserves that much in torch's cache, allocates all other memory from the driver, and makes the steps. A step that still
creates something (a library's handle, a module) then finds no memory for it.

Both processes open the arm at the same time, while other processes may use the device. From the measurement to the last
step no other process may use the device, because free memory is counted for the whole device.
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

# Reserve 1/8 more memory than was measured. Torch may split cached blocks in another order here than it split new
# blocks in the measuring process, and may then need more.
_SPARE_PARTS = 8


def execute(run: Run, recorder: Recorder) -> None:
    """Record for every arm its kernel inventory, and the ledger of what was compiled when (JIT ledger)."""
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
        synchronize()  # Finish the work of opening the arm. So this process is idle while the other process measures.
        with recorder.alone():
            recorder.phase(f"{arm}: measure a step's memory in another process")
            memory = probe.measure()
            with full_memory(memory) as free:
                recorder.phase(f"{arm}: steps")
                steps, failure = _steps_in_full_memory(training, of_shapes(run))
            empty_cache()  # this call also frees the reserved memory
    # A capture that found no memory may fall back to plain steps. The test is about captured steps, so count this as a
    # failure.
    if failure is None and isinstance(training, HasCapture):
        failure = training.capture_record().failure
    # Read the ledger before the inventory, because the inventory compiles more kernels.
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
    """Make up to `count` steps. Return how many succeeded, and the error of the step that failed, or None."""
    for index in range(count):
        try:
            training.step(index)
            synchronize()
        except RuntimeError as error:
            # an error such as torch's out of memory, or the failed creation of a cuBLAS handle
            return index, f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    return count, None


@contextmanager
def full_memory(memory: StepMemory) -> Iterator[int]:
    """Reserve `memory` in torch's cache, allocate all other memory within the block, and yield how many bytes are
    free."""
    reserve(memory)
    with device_memory.full(but=memory.outside_bytes):
        yield free_bytes()


def reserve(memory: StepMemory) -> None:
    """Fill torch's cache with unused memory: the measured segments, the rest of the peak, and small allocations.

    A captured step allocates from its own pool, which cannot use the cache. Before a capture, torch returns cached
    segments to the driver, but only those in which the step keeps no allocation. The segments therefore get the sizes
    that they had in the measuring process, so that the step keeps no more memory here than there.
    """
    synchronize()
    empty_cache()
    rest = memory.large_bytes - sum(memory.segments) + memory.large_bytes // _SPARE_PARTS
    held = [_grow_cache(size, size) for size in (*memory.segments, max(rest, 0))]
    held.append(_grow_cache(memory.small_bytes, SMALL_ALLOCATION))
    del held


def _grow_cache(size: int, part: int) -> list[torch.Tensor]:
    """Allocate tensors of `part` bytes until torch has got `size` more bytes from the driver, and return the tensors.

    The first tensors may fit into gaps in torch's cache. They do not count, because no graph's pool can use these gaps.
    On an H200, gaps took 386 of 3320 MiB. When they counted, a capture of 28 layers lacked 23 MiB.
    """
    goal = reserved_bytes() + size
    tensors: list[torch.Tensor] = []
    while reserved_bytes() < goal:
        tensors.append(torch.empty(part, dtype=torch.uint8, device="cuda"))
    return tensors

"""Test an arm that compiles all kernels before its first step (probe `prewarm`): open the arm, fill the device's
memory, and make steps.

Another process measures how much memory the steps need. This process must not make a step before the test, so it cannot
measure the memory itself. This process then reserves the measured memory in torch's cache, allocates all other memory
from the driver, and makes the steps. If a step still creates something new, such as a library's handle or a module,
there is no memory for it, and the step fails.

Both processes open the arm at the same time, while other processes may use the device. From the measurement to the last
step, no other process may use the device, because free memory is measured for the whole device.
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

# Reserve 1/8 more memory than was measured. During the measurement the steps took their memory from the driver, but
# here they take it from torch's cache. Torch may therefore divide the memory differently and need more.
_SPARE_PARTS = 8


def execute(run: Run, recorder: Recorder) -> None:
    """Record, for every arm, the list of its kernels, and a list of what was compiled at which time. If the setting
    `memory_filled` is true, make the steps while the memory is full."""
    for arm in run.arms:
        recorder.phase(f"{arm}: open")
        probe = MemoryProbe(run, arm) if run.settings["memory_filled"] else None
        with probe or nullcontext(), opened(run, arm) as training:
            _execute_arm(run, arm, training, probe, recorder)


def _execute_arm(run: Run, arm: str, training: TrainingRun, probe: MemoryProbe | None, recorder: Recorder) -> None:
    if not isinstance(training, HasKernels):
        raise NotAvailable("recording when kernels are compiled and loaded needs the system's capability `kernels`")
    if probe is None:
        free, steps, failure = None, 0, None
        recorder.phase(f"{arm}: steps")
        train(training, of_shapes(run))
    else:
        probe.wait_until_ready()
        # Finish the work of opening the arm, because this process must be idle while the other process measures.
        synchronize()
        with recorder.alone():
            recorder.phase(f"{arm}: measure a step's memory in another process")
            memory = probe.measure()
            with full_memory(memory) as free:
                recorder.phase(f"{arm}: steps")
                steps, failure = _steps_in_full_memory(training, of_shapes(run))
            empty_cache()  # this also frees the memory that `full_memory` has reserved
    # If a capture finds no memory, the system may make plain steps instead. This counts as a failure, because captured
    # steps are tested.
    if failure is None and isinstance(training, HasCapture):
        failure = training.capture_record().failure
    # Read the list of compilations before the list of kernels, because listing the kernels compiles more kernels.
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
            # for example torch's error that memory is full, or a failed creation of a cuBLAS handle
            return index, f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    return count, None


@contextmanager
def full_memory(memory: StepMemory) -> Iterator[int]:
    """Reserve `memory` in torch's cache and fill the rest of the device's memory, for the duration of the `with` block.
    Yield the number of bytes that are still free."""
    reserve(memory)
    with device_memory.full(but=memory.outside_bytes):
        yield free_bytes()


def reserve(memory: StepMemory) -> None:
    """Fill torch's cache with unused memory: the measured segments, the rest of the measured peak, and small
    allocations.

    A captured step allocates memory from a separate pool, which cannot use torch's cache. Before a capture, torch
    returns a cached segment to the driver if no allocation of the step is in the segment. Therefore the segments here
    have the same sizes as in the process that measured. With other sizes, more segments could contain an allocation,
    and less memory would be left for the capture.
    """
    synchronize()
    empty_cache()
    rest = memory.large_bytes - sum(memory.segments) + memory.large_bytes // _SPARE_PARTS
    held = [_grow_cache(size, size) for size in (*memory.segments, max(rest, 0))]
    held.append(_grow_cache(memory.small_bytes, SMALL_ALLOCATION))
    del held


def _grow_cache(size: int, part: int) -> list[torch.Tensor]:
    """Allocate tensors of `part` bytes until torch has got `size` more bytes from the driver, and return the tensors.

    The first tensors may fit into gaps in torch's cache. Such tensors do not count towards `size`, because the pool of
    a graph cannot use the gaps. On an H200, gaps took 386 of 3320 MiB. When these tensors were counted too, the capture
    of a model of 28 layers lacked 23 MiB.
    """
    goal = reserved_bytes() + size
    tensors: list[torch.Tensor] = []
    while reserved_bytes() < goal:
        tensors.append(torch.empty(part, dtype=torch.uint8, device="cuda"))
    return tensors

"""The kernels probe: the inventory of an arm's kernels, on this machine's device or cross-compiled for a named one.

On the device the arm is opened and trains a few steps, so that the kernels it uses are those it launched. For a named
target the system compiles its plan and, where coverage is claimed, what a step asks for. This needs no device.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from harness.devices.cuda_driver import Devices, devices
from harness.devices.ptx import newest_version, read_module
from harness.evidence.plan_records import Run
from harness.evidence.run_records import KernelRecord, KernelsEvidence
from harness.execution.opening import of_shapes, opened
from harness.execution.recorder import Recorder
from harness.planning.gpu_needs import ON_DEVICE
from harness.system.protocol import (
    CrossCompiles,
    HasKernels,
    Kernel,
    KernelInventory,
    KernelRefusedError,
    NotAvailable,
    TrainingRun,
)
from harness.system.resolve import resolve


def execute(run: Run, recorder: Recorder) -> None:
    """Write the kernel inventory of every arm of the run, for the setting `target`."""
    target = str(run.settings["target"])
    for arm in run.arms:
        recorder.phase(f"{arm}: kernels for {target}")
        if target == ON_DEVICE:
            recorder.write(_on_device(run, arm, recorder))
        else:
            inventory = _cross_compiled(run, arm, target)
            recorder.write(evidence(arm, inventory, compiled_for=target, device=None))


def _cross_compiled(run: Run, arm: str, target: str) -> KernelInventory:
    planned = run.arms[arm]
    system = resolve(planned.system)
    if not isinstance(system, CrossCompiles):
        raise NotAvailable(f"kernels for {target} need the system's capability `cross_compiled`")
    # the harness's own faults change steps, and here there are none
    offered = run.fault in system.describe().faults and arm in run.fault_arms
    return system.cross_compiled(
        run.workload,
        planned.arm,
        target,
        with_used=run.settings.get("scope") == "coverage",
        fault=run.fault if offered else None,
        data=run.data,
        model_directory=run.model_directory,
    )


def _on_device(run: Run, arm: str, recorder: Recorder) -> KernelsEvidence:
    found = devices()
    if not found.gpus:
        return evidence(arm, KernelInventory((), ()), compiled_for=None, device=found)
    with opened(run, arm) as training:
        if not isinstance(training, HasKernels):
            raise NotAvailable("an inventory of kernels needs the system's capability `kernels`")
        try:
            train(training, of_shapes(run))
        except KernelRefusedError as refusal:
            recorder.phase(f"{arm}: inventory after {refusal}")
        return evidence(arm, training.kernel_inventory(), compiled_for=None, device=found)


def train(training: TrainingRun, steps: int) -> None:
    """Train from step 0 and wait for the device."""
    from harness.devices.device import synchronize

    for index in range(steps):
        training.step(index)
    synchronize()


def evidence(
    arm: str, inventory: KernelInventory, *, compiled_for: str | None, device: Devices | None
) -> KernelsEvidence:
    """Return the evidence of an inventory: what its PTX declares, and its device (None: no device was asked)."""
    gpu = device.gpus[0] if device is not None and device.gpus else None
    return KernelsEvidence(
        arm=arm,
        device=gpu.architecture if gpu is not None else None,
        device_readable=device is None or not device.unreadable,
        driver_ptx_version=_driver_ptx_version(device),
        compiled_for=compiled_for,
        planned=records(inventory.planned),
        used=records(inventory.used),
    )


def _driver_ptx_version(device: Devices | None) -> str | None:
    if device is None or device.cuda_version is None:
        return None
    major, _, minor = device.cuda_version.partition(".")
    newest = newest_version((int(major), int(minor)))
    return None if newest is None else f"{newest[0]}.{newest[1]}"


def records(kernels: Sequence[Kernel]) -> list[KernelRecord]:
    """Return what each kernel's PTX declares. Its digest is the SHA-256 of the text."""
    return [_record(kernel) for kernel in kernels]


def _record(kernel: Kernel) -> KernelRecord:
    module = read_module(kernel.ptx)
    return KernelRecord(
        key=kernel.key,
        name=kernel.name,
        ptx_digest=hashlib.sha256(kernel.ptx.encode()).hexdigest(),
        targets=module.targets,
        versions=module.versions,
        entries=module.entries,
        load_route=kernel.load_route,
        shared_memory_bytes=kernel.shared_memory_bytes,
        threads=kernel.threads,
    )

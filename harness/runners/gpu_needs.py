"""What a run asks of a GPU: whether it uses one at all, and how much of its memory, beside other runs."""

from __future__ import annotations

from collections.abc import Sequence

from harness.evidence.cuda_driver import Gpu
from harness.evidence.plan_records import Run

ON_DEVICE = "device"  # a `target` of the probe `kernels`: the machine's own GPU


def needs_gpu(run: Run) -> bool:
    """Whether the run uses the machine's GPU where there is one.

    Not on a workload for the processor, and not where kernels are compiled for a named target.
    """
    compiled_elsewhere = run.probe == "kernels" and run.settings.get("target", ON_DEVICE) != ON_DEVICE
    return run.workload.needs.device != "cpu" and not compiled_elsewhere


def gpus_of(run: Run, gpus: Sequence[Gpu]) -> list[str]:
    """UUIDs of the GPUs that the run uses: the machine's first one, and one more for each further rank."""
    return [gpu.uuid for gpu in gpus[: run.ranks]] if needs_gpu(run) else []


def gpu_memory_gib(run: Run) -> float | None:
    """GiB of the GPU's memory that the run may take; None where it never shares: its workload declares none, or its
    probe reads what the whole device has in use.

    What a workload declares is enough for each of its runs on a GPU that has no more (`harness.runners.obstacles`
    asks for that much, whatever the probe): a timing's process, with both arms open, is within it. A prewarm run that
    fills memory opens its arm in two processes before it has the device to itself, and may take twice as much.
    """
    if not needs_gpu(run):
        return 0.0
    if run.probe == "peak_memory":
        return None  # the driver counts the memory of all processes together
    declared = run.workload.needs.memory_gib
    if declared is None:
        return None
    return declared * (2 if run.probe == "prewarm" and run.settings.get("memory_filled") else 1)

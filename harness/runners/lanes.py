"""stub"""

from harness.evidence.plan_records import Run


def needs_gpu(run: Run) -> bool:
    return run.workload.needs.device != "cpu" and not (
        run.probe == "kernels" and run.settings.get("target") != "device"
    )


def gpu_memory_gib(run: Run) -> float | None:
    return run.workload.needs.memory_gib

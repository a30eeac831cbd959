"""Foresee, from a trial on a CPU, how the same step does on a GPU: one sentence each, with lines of code below it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from harness.devices import environment
from harness.evidence.arm_records import OnAGpu
from harness.evidence.run_evidence import RunEvidence

KEEP_ON_DEVICE = (
    "no capture takes such a copy: move the tensor to the device once, before the first step, or let the batch hold it"
)
KEEP_COUNT_ON_DEVICE = "no replay does that again: keep the tensor on the device"

CAPTURABLE = "torch's optimizer reads its step count on a CPU, and none there with `capturable=True`"
DOCUMENTED = "torch documents it of these operators, unless `torch.use_deterministic_algorithms` is on"


def foreseen(runs: Iterable[RunEvidence]) -> Iterator[tuple[str, list[str]]]:
    """Yield each sentence about a GPU, and the lines below it; none where the machine has a GPU."""
    if environment.machine().gpus:
        return
    seen = _seen(runs)
    if seen is None or seen.failure is not None:
        why = "" if seen is None else f": {seen.failure}"
        yield f"only a GPU decides whether a capture takes the step, and whether it repeats its bits there{why}", []
        return
    if seen.copies:
        yield "is not captured there: it copies from the host to the device", [*seen.copies, f"-> {KEEP_ON_DEVICE}"]
    if seen.changes:
        yield (
            "captured, trains otherwise there: it changes a tensor on the host",
            [
                *seen.changes,
                f"-> {KEEP_COUNT_ON_DEVICE}",
            ],
        )
    if seen.unknown:
        yield "only a GPU decides whether it copies from the host: it puts tensors on the device", seen.unknown
    if seen.of_cpu and not seen.copies:
        yield f"only a GPU decides whether a capture takes the step: {CAPTURABLE}", seen.of_cpu
    if seen.unrepeated:
        yield f"may not repeat its bits there: {DOCUMENTED}", seen.unrepeated
    if not any((seen.copies, seen.changes, seen.unknown, seen.of_cpu, seen.unrepeated)):
        yield "no copy from the host, and no operator that torch documents not to repeat its bits, was seen", []


def _seen(runs: Iterable[RunEvidence]) -> OnAGpu | None:
    arms = (execution for run in runs for executions in run.arms.values() for execution in executions)
    known = (each.syncs.on_a_gpu for each in arms if each.syncs is not None)
    return next((each for each in known if each is not None), None)

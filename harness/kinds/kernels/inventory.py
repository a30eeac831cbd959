"""Find what the kernel judges share: an inventory of kernels, and the device or target that it is compared with."""

from __future__ import annotations

from collections.abc import Sequence

from harness.devices.ptx import Target, parse_target
from harness.evidence.base import ProbeName
from harness.evidence.run_evidence import RunEvidence
from harness.evidence.run_records import KernelRecord, KernelsEvidence
from harness.judging import reasons
from harness.judging.context import Context
from harness.judging.sheet import settle, some
from harness.kinds.kernels.model import Prewarm, PtxTarget


def run_with_inventory(context: Context, part: PtxTarget | Prewarm, probes: Sequence[ProbeName]) -> RunEvidence:
    """Return the first sound run with an inventory of the arm's kernels, best for its target and of used ones.

    Settles when there is none. A claim may have a run for each of several targets, and runs that read only a plan.
    """
    arm = part.candidate
    found = [run for probe in probes for run in context.sound_runs(probe) if arm in run.kernels]
    if not found:
        settle(reasons.EVIDENCE_MISSING, f"there is no kernel inventory of arm {arm}")
    compiled_for = None if part.target == "device" else part.target
    return min(found, key=lambda run: (run.kernels[arm].compiled_for != compiled_for, not run.kernels[arm].used))


def required_target(part: PtxTarget | Prewarm, inventory: KernelsEvidence) -> Target:
    """Return the device's architecture for `target: device`, else the named one that the kernels were compiled for.

    A claim about the device is never decided by cross-compiled kernels, nor the other way round. No device is NOT_RUN;
    a device whose architecture cannot be read is a violation.
    """
    if part.target != "device":
        if inventory.compiled_for != part.target:
            compiled = inventory.compiled_for or "this machine's device"
            settle(
                reasons.EVIDENCE_INCONSISTENT,
                f"the claim is about {part.target}, and the kernels were compiled for {compiled}",
            )
        return parse_target(part.target)
    if inventory.compiled_for is not None:
        settle(reasons.NEEDS_CUDA, f"the kernels were compiled for {inventory.compiled_for}, not loaded on a device")
    if not inventory.device_readable:
        settle(reasons.DEVICE_UNREADABLE, "a device is there and its compute capability cannot be read")
    if inventory.device is None:
        settle(reasons.NEEDS_CUDA, "needs CUDA: this machine has no CUDA device")
    try:
        return parse_target(inventory.device)
    except ValueError as error:
        settle(reasons.DEVICE_UNREADABLE, f"the device's compute capability cannot be read: {error}")


def by_key(records: Sequence[KernelRecord], what: str) -> dict[str, KernelRecord]:
    """Return the kernels by key; settle when one key names two kernels (another name or other PTX)."""
    found: dict[str, KernelRecord] = {}
    for record in records:
        other = found.setdefault(record.key, record)
        if (other.name, other.ptx_digest) != (record.name, record.ptx_digest):
            names = some(sorted({other.name, record.name}))
            settle(reasons.DUPLICATE_KEY, f"two {what} kernels share the key {record.key}: {names}")
    return found

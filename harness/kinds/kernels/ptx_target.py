"""Judge `ptx_target`: every kernel's PTX target and version fit the device, or a named target."""

from __future__ import annotations

from collections import Counter

from harness.devices.ptx import Target, introduced_in, is_exact, is_loadable, parse_target, parse_version
from harness.evidence.run_records import KernelRecord, KernelsEvidence
from harness.judging import reasons
from harness.judging.context import Context
from harness.judging.sheet import Sheet, settle, some
from harness.judging.verdict import Judgement
from harness.kinds.kernels.inventory import required_target, run_with_inventory
from harness.kinds.kernels.model import PtxTarget


def judge(part: PtxTarget, context: Context, sheet: Sheet) -> Judgement:
    """Judge in this order: a readable device, kernels at all, a target in each, a fitting one, a fitting version."""
    run = run_with_inventory(context, part, ("kernels", "prewarm"))
    inventory = run.kernels[part.candidate]
    wanted = required_target(part, inventory)
    kernels = [*inventory.planned, *inventory.used]
    sheet.count("kernels", len(kernels))
    sheet.figure("target", str(wanted))
    for text, number in sorted(Counter(target for kernel in kernels for target in kernel.targets).items()):
        sheet.figure(f"kernels.{text}", number, "kernels")
    if not kernels:
        settle(reasons.VACUOUS_NO_KERNELS, f"arm {part.candidate} has no kernels")
    targeted = [(kernel, _targets(kernel)) for kernel in kernels]
    _require_fit(part, wanted, targeted, sheet)
    for kernel, targets in targeted:
        _require_version(kernel, targets)
    _require_driver(part, inventory, kernels, sheet)
    return sheet.held(f"the PTX of all {len(kernels)} kernels fits {wanted} ({part.policy})")


def _targets(kernel: KernelRecord) -> list[Target]:
    if not kernel.targets:
        settle(reasons.PTX_TARGET_MISSING, f"the PTX of {kernel.name} ({kernel.key}) has no `.target` line")
    try:
        return [parse_target(text) for text in kernel.targets]
    except ValueError as error:
        settle(reasons.PTX_TARGET_MISSING, f"the target of {kernel.name} ({kernel.key}) cannot be read: {error}")


def _require_fit(
    part: PtxTarget, wanted: Target, targeted: list[tuple[KernelRecord, list[Target]]], sheet: Sheet
) -> None:
    fits = is_exact if part.policy == "exact" else is_loadable
    wrong = [(kernel.key, target) for kernel, targets in targeted for target in targets if not fits(target, wanted)]
    keys = sorted({key for key, _ in wrong})
    sheet.figure("kernels_mismatched", len(keys), "kernels")
    if not sheet.meets("kernels_mismatched", len(keys), "none", noun="kernels do not fit", of=len(targeted)):
        sheet.figure("first_mismatched_key", keys[0])
        listed = sorted({f"{key} ({target})" for key, target in wrong})
        settle(
            reasons.PTX_TARGET_MISMATCH,
            f"{len(keys)} kernels of {len(targeted)} do not fit {wanted} ({part.policy}): {some(listed)}",
        )


def _require_version(kernel: KernelRecord, targets: list[Target]) -> None:
    if not kernel.versions:
        settle(reasons.PTX_VERSION_UNSUPPORTED, f"the PTX of {kernel.name} ({kernel.key}) has no `.version` line")
    for version in _versions(kernel):
        for target in targets:
            oldest = introduced_in(target)
            if oldest is not None and version < oldest:
                settle(
                    reasons.PTX_VERSION_UNSUPPORTED,
                    f"{kernel.name} ({kernel.key}) has PTX version {_text(version)}, and {target} came with "
                    f"{_text(oldest)}",
                )


def _require_driver(part: PtxTarget, inventory: KernelsEvidence, kernels: list[KernelRecord], sheet: Sheet) -> None:
    if part.target != "device":
        return
    if inventory.driver_ptx_version is None:
        settle(reasons.DRIVER_VERSION_UNKNOWN, "the newest PTX version that the driver loads is unknown")
    newest = parse_version(inventory.driver_ptx_version)
    sheet.figure("driver_ptx_version", _text(newest))
    for kernel in kernels:
        version = max(_versions(kernel))
        if version > newest:
            settle(
                reasons.PTX_VERSION_UNSUPPORTED,
                f"{kernel.name} ({kernel.key}) has PTX version {_text(version)}, the driver loads {_text(newest)}",
            )


def _versions(kernel: KernelRecord) -> list[tuple[int, int]]:
    try:
        return [parse_version(text) for text in kernel.versions]
    except ValueError as error:
        settle(reasons.PTX_VERSION_UNSUPPORTED, f"the version of {kernel.name} ({kernel.key}) is no version: {error}")


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"

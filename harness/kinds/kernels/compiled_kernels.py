"""Judge `prewarm` (kernels are compiled before the weights are loaded) and `ptx_target` (their PTX fits the device)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from harness.devices.ptx import Target, introduced_in, is_exact, is_loadable, parse_target, parse_version
from harness.evidence.base import ProbeName
from harness.evidence.run_evidence import RunEvidence
from harness.evidence.run_records import KernelRecord, KernelsEvidence, PrewarmEvidence
from harness.judging import reasons
from harness.judging.context import Context
from harness.judging.sheet import Sheet, settle, some
from harness.judging.verdict import Judgement
from harness.kinds.kernels.model import Prewarm, PtxTarget

# Both judges in this file use the following functions. They find the run with an inventory (list) of compiled kernels,
# the architecture that the kernels must fit, and the kernels by key.


def run_with_inventory(context: Context, part: PtxTarget | Prewarm, probes: Sequence[ProbeName]) -> RunEvidence:
    """Return a completed run with an inventory (list) of the arm's kernels. End the judgement with ERROR if there is no
    such run.

    A run that compiled for the claim's target is preferred. Among several such runs, a run that used the kernels is
    preferred to a run that only planned them.
    """
    arm = part.candidate
    found = [run for probe in probes for run in context.sound_runs(probe) if arm in run.kernels]
    if not found:
        settle(reasons.EVIDENCE_MISSING, f"there is no kernel inventory of arm {arm}")
    compiled_for = None if part.target == "device" else part.target
    return min(found, key=lambda run: (run.kernels[arm].compiled_for != compiled_for, not run.kernels[arm].used))


def required_target(part: PtxTarget | Prewarm, inventory: KernelsEvidence) -> Target:
    """Return the device's architecture for `target: device`, otherwise the architecture that `target` names.

    End the judgement with ERROR if the kernels were compiled for another target. For `target: device`, end the
    judgement with NOT_RUN if there is no device or the kernels were cross-compiled, and with FAIL if the device's
    architecture cannot be read.
    """
    if part.target != "device":
        if inventory.compiled_for != part.target:
            compiled = inventory.compiled_for or "this machine's device"
            settle(
                reasons.EVIDENCE_INCONSISTENT,
                f"the claim is about {part.target}, but the kernels were compiled for {compiled}",
            )
        return parse_target(part.target)
    if inventory.compiled_for is not None:
        settle(
            reasons.NEEDS_CUDA, f"the kernels were compiled for {inventory.compiled_for}, but not loaded on a device"
        )
    if not inventory.device_readable:
        settle(reasons.DEVICE_UNREADABLE, "the machine has a device, but its compute capability cannot be read")
    if inventory.device is None:
        settle(reasons.NEEDS_CUDA, "needs CUDA: this machine has no CUDA device")
    try:
        return parse_target(inventory.device)
    except ValueError as error:
        settle(reasons.DEVICE_UNREADABLE, f"the device's compute capability cannot be read: {error}")


def by_key(records: Sequence[KernelRecord], what: str) -> dict[str, KernelRecord]:
    """Return the kernels by key. End the judgement with FAIL if two kernels have the same key, but different names or
    different PTX. what: the word `planned` or `used`, for the message."""
    found: dict[str, KernelRecord] = {}
    for record in records:
        other = found.setdefault(record.key, record)
        if (other.name, other.ptx_digest) != (record.name, record.ptx_digest):
            names = some(sorted({other.name, record.name}))
            settle(reasons.DUPLICATE_KEY, f"two {what} kernels share the key {record.key}: {names}")
    return found


# The following functions judge `prewarm`: every kernel that a run needs must be compiled before the weights are loaded,
# and stored under the key with which the run finds it.
#
# `scope: coverage` compares the keys and PTX of planned kernels with those of used kernels. It works on any machine.
# `scope: device` also requires that no kernel was compiled or loaded after the prewarm, and that library handles were
# created before the weights were uploaded. The record of compilations and loads is called JIT ledger.

# cuBLAS allocates a workspace of this size at its first use (32 MiB on capability 9.0). With `memory_filled`, less
# memory is free after the upload. A first use of cuBLAS then fails. Steps that succeed thus contain no first use.
FILLED_MEMORY_BYTES = 32 * 2**20
_PHASES = ("prewarm", "upload", "train")


def judge_prewarm(part: Prewarm, context: Context, sheet: Sheet) -> Judgement:
    """Return the judgement of a claim. The checks are made in this order: equal keys and PTX in plan and run, no late
    compile or load, the library handles, the step that runs with full memory."""
    run = run_with_inventory(context, part, ("prewarm", "kernels"))
    inventory = run.kernels[part.candidate]
    required_target(part, inventory)
    keys = _require_coverage(part, inventory, sheet)
    if part.scope == "coverage":
        return sheet.held(
            f"the prewarm plan covers all {len(keys)} kernels of the run, with the same PTX under each key"
        )
    ledger = run.prewarm.get(part.candidate)
    if ledger is None:
        settle(
            reasons.EVIDENCE_MISSING,
            f"there is no record of when the kernels of arm {part.candidate} were compiled and loaded (JIT ledger)",
        )
    _require_no_late_jit(ledger, keys, sheet)
    _require_handles(part, ledger, sheet)
    if part.memory_filled:
        _require_filled_memory(ledger, sheet)
    return sheet.held(
        f"all {len(keys)} kernels of the run were ready before the weights were uploaded, and no kernel was compiled "
        "or loaded after that"
    )


def _require_coverage(part: Prewarm, inventory: KernelsEvidence, sheet: Sheet) -> list[str]:
    sheet.count("planned_kernels", len(inventory.planned))
    sheet.count("used_kernels", len(inventory.used))
    for what, records in (("planned", inventory.planned), ("used", inventory.used)):
        if not records:
            settle(reasons.VACUOUS_NO_KERNELS, f"arm {part.candidate} has no {what} kernels")
    planned, used = by_key(inventory.planned, "planned"), by_key(inventory.used, "used")
    missing = sorted(set(used) - set(planned))
    sheet.figure("keys_missing", len(missing), "keys")
    if not sheet.meets("keys_missing", len(missing), "none", noun="kernels were not prewarmed", of=len(used)):
        sheet.figure("first_missing_key", missing[0])
        settle(
            reasons.PREWARM_MISSING_KEY,
            f"{len(missing)} of {len(used)} keys that the run uses were not prewarmed: {some(missing)}",
        )
    other = sorted(key for key, record in used.items() if planned[key].ptx_digest != record.ptx_digest)
    if other:
        sheet.figure("first_differing_key", other[0])
        settle(
            reasons.PREWARM_PTX_DIFFERS,
            f"the PTX of {len(other)} of {len(used)} keys differs between the run and the prewarm: {some(other)}",
        )
    return sorted(used)


def _require_no_late_jit(ledger: PrewarmEvidence, keys: list[str], sheet: Sheet) -> None:
    _require_finite_times(ledger)
    times = [ledger.phases.get(phase) for phase in _PHASES]
    known = [time for time in times if time is not None]
    if len(known) != len(_PHASES) or known != sorted(known):
        settle(reasons.EVIDENCE_MISSING, f"the phases {', '.join(_PHASES)} were not recorded in this order")
    upload = ledger.phases["upload"]
    sheet.count("jit_events", len(ledger.events))
    late = [event for event in ledger.events if event.phase != "prewarm" or event.seconds >= upload]
    sheet.figure("late_jit_events", len(late), "events")
    noun = "kernels were compiled or loaded late"
    if not sheet.meets("late_jit_events", len(late), "none", noun=noun, of=len(ledger.events)):
        sheet.figure("first_late_key", late[0].key)
        listed = some([f"{event.key} ({event.event} in {event.phase})" for event in late])
        settle(reasons.LATE_JIT, f"{len(late)} kernels were compiled or loaded after prewarm: {listed}")
    warmed = {event.key for event in ledger.events}
    cold = [key for key in keys if key not in warmed]
    if not sheet.meets(
        "keys_not_compiled", len(cold), "none", noun="kernels were never compiled in the prewarm", of=len(keys)
    ):
        sheet.figure("first_missing_key", cold[0])
        settle(
            reasons.PREWARM_MISSING_KEY,
            f"{len(cold)} of {len(keys)} keys that the run uses were never compiled in the prewarm: {some(cold)}",
        )


def _require_finite_times(ledger: PrewarmEvidence) -> None:
    """End the judgement with ERROR if a time is not finite. The later comparisons of times would not find a NaN."""
    times = [(f"phase {name}", time) for name, time in ledger.phases.items()]
    times += [(f"handle {name}", time) for name, time in ledger.handles.items()]
    times += [(f"{event.event} of {event.key}", event.seconds) for event in ledger.events]
    unknown = sorted(what for what, time in times if not math.isfinite(time))
    if unknown:
        settle(reasons.EVIDENCE_INCONSISTENT, f"{len(unknown)} recorded timestamps are not finite: {some(unknown)}")


def _require_handles(part: Prewarm, ledger: PrewarmEvidence, sheet: Sheet) -> None:
    upload = ledger.phases["upload"]
    sheet.figure("handles", len(ledger.handles), "handles")
    for handle in part.handles:
        born = ledger.handles.get(handle)
        if born is None:
            settle(reasons.HANDLE_LATE, f"the creation of the library handle {handle} was not seen")
        if born >= upload:
            settle(
                reasons.HANDLE_LATE,
                f"the library handle {handle} was created {born - upload:.3g} s after the upload of the weights began",
            )


def _require_filled_memory(ledger: PrewarmEvidence, sheet: Sheet) -> None:
    free = ledger.free_bytes_after_fill
    sheet.figure("free_bytes_after_fill", free, "bytes")
    sheet.count("steps_after_fill", ledger.steps_after_fill)
    if free is None or free >= FILLED_MEMORY_BYTES:
        left = "an unknown number of" if free is None else str(free)
        sheet.leave_open(
            reasons.DEVICE_MEMORY_UNSEEN,
            f"{left} bytes were free after the device's memory had been filled, but fewer than {FILLED_MEMORY_BYTES} "
            "(one library workspace) must be free: another process freed memory, so a late allocation could not have "
            "failed",
        )
    if ledger.failure is not None:
        settle(
            reasons.STEP_FAILED_WHEN_FULL,
            f"step {ledger.steps_after_fill} failed after the device's memory had been filled: {ledger.failure}",
        )
    if ledger.steps_after_fill == 0:
        settle(reasons.VACUOUS_STEPS, "no step ran after the device's memory had been filled")


# The following functions judge `ptx_target`: the PTX target and the PTX version of every kernel must fit the device or
# the architecture that the claim names.


def judge_ptx_target(part: PtxTarget, context: Context, sheet: Sheet) -> Judgement:
    """Return the judgement of a claim. The checks are made in this order: a readable device, at least one kernel,
    readable PTX targets, targets that fit the device or architecture, PTX versions that fit targets and driver."""
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
    return sheet.held(f"the PTX of all {len(kernels)} kernels fits {wanted} (policy: {part.policy})")


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
            f"the PTX of {len(keys)} of {len(targeted)} kernels does not fit {wanted} (policy: {part.policy}): "
            f"{some(listed)}",
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
                    f"{kernel.name} ({kernel.key}) has PTX version {_text(version)}, but its target {target} needs at "
                    f"least {_text(oldest)}",
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
                f"{kernel.name} ({kernel.key}) has PTX version {_text(version)}, but the driver loads at most "
                f"{_text(newest)}",
            )


def _versions(kernel: KernelRecord) -> list[tuple[int, int]]:
    try:
        return [parse_version(text) for text in kernel.versions]
    except ValueError as error:
        settle(
            reasons.PTX_VERSION_UNSUPPORTED, f"the PTX version of {kernel.name} ({kernel.key}) cannot be read: {error}"
        )


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"

"""Judge `prewarm`: every kernel that a run needs is compiled before the weights arrive, under the key the run asks for.

Scope `coverage` compares keys and PTX of a plan with those of a run, on any machine. Scope `device` also requires
of the JIT ledger that nothing was compiled or loaded after prewarm, and that library handles existed by then.
"""

from __future__ import annotations

import math

from harness.evidence.run_records import KernelsEvidence, PrewarmEvidence
from harness.judging import reasons
from harness.judging.context import Context
from harness.judging.sheet import Sheet, settle, some
from harness.judging.verdict import Judgement
from harness.kinds.kernels.inventory import by_key, required_target, run_with_inventory
from harness.kinds.kernels.model import Prewarm

# cuBLAS allocates a workspace of this size on its first use (32 MiB on capability 9.0): with less free, a late
# first use fails, so the run shows that there was none.
FILLED_MEMORY_BYTES = 32 * 2**20
_PHASES = ("prewarm", "upload", "train")


def judge(part: Prewarm, context: Context, sheet: Sheet) -> Judgement:
    """Judge in this order: keys and PTX, then the ledger, the handles, and the filled memory."""
    run = run_with_inventory(context, part, ("prewarm", "kernels"))
    inventory = run.kernels[part.candidate]
    required_target(part, inventory)
    keys = _require_coverage(part, inventory, sheet)
    if part.scope == "coverage":
        return sheet.held(f"the plan covers all {len(keys)} kernels of the run, with the same PTX under each key")
    ledger = run.prewarm.get(part.candidate)
    if ledger is None:
        settle(reasons.EVIDENCE_MISSING, f"there is no JIT ledger of arm {part.candidate}")
    _require_no_late_jit(ledger, keys, sheet)
    _require_handles(part, ledger, sheet)
    if part.memory_filled:
        _require_filled_memory(ledger, sheet)
    return sheet.held(
        f"all {len(keys)} kernels of the run were ready before the upload, and none was compiled or loaded after it"
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
            f"{len(other)} of {len(used)} keys have other PTX in the run than in the prewarm: {some(other)}",
        )
    return sorted(used)


def _require_no_late_jit(ledger: PrewarmEvidence, keys: list[str], sheet: Sheet) -> None:
    _require_finite_times(ledger)
    times = [ledger.phases.get(phase) for phase in _PHASES]
    known = [time for time in times if time is not None]
    if len(known) != len(_PHASES) or known != sorted(known):
        settle(reasons.EVIDENCE_MISSING, f"the phases {', '.join(_PHASES)} were not seen in this order")
    upload = ledger.phases["upload"]
    sheet.count("jit_events", len(ledger.events))
    late = [event for event in ledger.events if event.phase != "prewarm" or event.seconds >= upload]
    sheet.figure("late_jit_events", len(late), "events")
    noun = "compiles and loads came late"
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
    """Settle ERROR where a time is not finite: a NaN is neither before nor after anything, so nothing would be late."""
    times = [(f"phase {name}", time) for name, time in ledger.phases.items()]
    times += [(f"handle {name}", time) for name, time in ledger.handles.items()]
    times += [(f"{event.event} of {event.key}", event.seconds) for event in ledger.events]
    unknown = sorted(what for what, time in times if not math.isfinite(time))
    if unknown:
        settle(reasons.EVIDENCE_INCONSISTENT, f"{len(unknown)} times are no number: {some(unknown)}")


def _require_handles(part: Prewarm, ledger: PrewarmEvidence, sheet: Sheet) -> None:
    upload = ledger.phases["upload"]
    sheet.figure("handles", len(ledger.handles), "handles")
    for handle in part.handles:
        born = ledger.handles.get(handle)
        if born is None:
            settle(reasons.HANDLE_LATE, f"the handle {handle} was never seen")
        if born >= upload:
            settle(
                reasons.HANDLE_LATE,
                f"the handle {handle} came to be {born - upload:.3g} s after the upload began",
            )


def _require_filled_memory(ledger: PrewarmEvidence, sheet: Sheet) -> None:
    free = ledger.free_bytes_after_fill
    sheet.figure("free_bytes_after_fill", free, "bytes")
    sheet.count("steps_after_fill", ledger.steps_after_fill)
    if free is None or free >= FILLED_MEMORY_BYTES:
        left = "an unknown number of" if free is None else str(free)
        sheet.leave_open(
            reasons.DEVICE_MEMORY_UNSEEN,
            f"{left} bytes were free once the device's memory had been filled, at least a library workspace of "
            f"{FILLED_MEMORY_BYTES}: another process gave some back, so that a late allocation could not have failed",
        )
    if ledger.failure is not None:
        settle(
            reasons.STEP_FAILED_WHEN_FULL,
            f"step {ledger.steps_after_fill} failed once device memory was full: {ledger.failure}",
        )
    if ledger.steps_after_fill == 0:
        settle(reasons.VACUOUS_STEPS, "no step ran after device memory was filled")

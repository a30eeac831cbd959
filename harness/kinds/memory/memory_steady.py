"""Judge `memory_steady`: memory does not grow after the first `after` samples, over replays or over re-captures.

The largest growth of three comparisons is judged. First: the later samples' peak over the warm-up's peak. Second: the
last `after` samples' peak over that of the first `after` samples that follow the warm-up. Third: the same last peak
over the median of such peaks in the first half of what follows. The second finds a leak that a high warm-up peak would
hide, the third one that a peak right after it would. `after` should cover one round of a schedule of shapes.
"""

from __future__ import annotations

import math
from statistics import median_low

from harness.evidence.arm_records import MemoryEvidence, MemorySample
from harness.judging import reasons
from harness.judging.comparison import Comparison, Group
from harness.judging.context import Context, end_of, executed
from harness.judging.sheet import Sheet, number, settle
from harness.judging.verdict import Judgement
from harness.kinds.memory.model import MemorySteady


def judge(part: MemorySteady, context: Context, sheet: Sheet) -> Judgement:
    """Judge the growth of allocated and reserved bytes, or of reserved ones: at most `growth_at_most` (0.01 is 1 %)."""
    run = context.only_run(part.chosen_probe())
    execution = executed(run, part.candidate)
    watched = part.per == "replay"
    comparison, group = Comparison(part, context, sheet), Group({part.candidate: execution})
    comparison.captured(execution, watched=watched, of_replays=True)
    if execution.capture is not None and execution.capture.mechanism == "traced":
        settle(reasons.MECHANISM_MISSING, "a traced replay decides nothing about device memory")
    samples = _samples(part, execution.memory)
    _require_every_step(part, samples, end_of(execution).steps_called)
    comparison.begin(group)
    comparison.finite_ends(group.executions)
    sheet.count("samples", len(samples) - part.after)
    worst = -math.inf
    for kind in ("allocated", "reserved"):
        sizes = [int(getattr(sample, f"{kind}_bytes")) for sample in samples]
        growth = _growth(sizes, part.after)
        sheet.figure(f"{kind}_growth", growth)
        sheet.figure(f"{kind}_peak_bytes", max(sizes), "bytes")
        if kind == "allocated" and part.of == "reserved":
            continue
        worst = max(worst, growth)
        if not sheet.meets(f"{kind}_growth", growth, "at most", part.growth_at_most, percent=True):
            settle(
                reasons.MEMORY_GROWS,
                f"{kind} memory grew by {number(100 * growth)} % over {len(samples) - part.after} samples after the "
                f"first {part.after} (per {part.per}), at most {number(100 * part.growth_at_most)} % may be",
            )
    comparison.end(group, context.skipped_steps_at_most(part.candidate))
    return comparison.held(
        f"{'reserved ' if part.of == 'reserved' else ''}memory grew by at most {number(100 * worst)} % over "
        f"{len(samples) - part.after} samples after the first {part.after} (per {part.per})"
    )


def _samples(part: MemorySteady, memory: list[MemoryEvidence]) -> list[MemorySample]:
    found = next((record for record in memory if record.per == part.per), None)
    if found is None:
        settle(reasons.EVIDENCE_MISSING, f"memory of {part.candidate} was not sampled per {part.per}")
    if len(found.samples) <= part.after:
        settle(
            reasons.VACUOUS_STEPS,
            f"{len(found.samples)} memory samples leave none after the first {part.after}",
        )
    for kind in ("reserved",) if part.of == "reserved" else ("allocated", "reserved"):
        if not any(getattr(sample, f"{kind}_bytes") for sample in found.samples):
            settle(reasons.VACUOUS_NO_MEMORY, f"all {len(found.samples)} samples of {kind} memory are zero bytes")
    return found.samples


def _require_every_step(part: MemorySteady, samples: list[MemorySample], steps: int) -> None:
    """Settle ERROR unless each step has a sample, in order: a missing sample may be where memory grew."""
    if [sample.step for sample in samples] != list(range(steps)):
        settle(
            reasons.EVIDENCE_MISSING,
            f"{steps} steps of {part.candidate} have {len(samples)} memory samples, not one each in their order",
        )


def _growth(sizes: list[int], after: int) -> float:
    """Return the relative growth; negative when memory shrank. Growth from nothing to something is infinite."""
    later = sizes[after:]
    growth = _relative(max(later), max(sizes[:after]))
    if len(later) > after:  # each of these covers a round, even where they overlap
        last = max(later[-after:])
        early = [max(later[first : first + after]) for first in range(0, max(1, len(later) // 2 - after + 1), after)]
        growth = max(growth, _relative(last, early[0]), _relative(last, median_low(early)))
    return growth


def _relative(late: int, early: int) -> float:
    if early == 0:
        return 0.0 if late == 0 else math.inf
    return (late - early) / early

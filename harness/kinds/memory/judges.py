"""Judge device memory: `memory_steady` (memory does not grow) and `peak_memory` (an arm's peak is within a bound)."""

from __future__ import annotations

import math
from statistics import median_low
from typing import Literal

from harness.evidence.arm_records import MemoryEvidence, MemoryPeak, MemorySample, PeakMemoryEvidence
from harness.evidence.run_evidence import ArmEvidence
from harness.judging import reasons
from harness.judging.comparison import Comparison, Group
from harness.judging.context import Context, end_of, executed
from harness.judging.sheet import Sheet, number, settle
from harness.judging.verdict import Judgement
from harness.kinds.memory.model import MemorySteady, PeakMemory
from harness.kinds.trajectory.repeatability import named_trajectory, require_equal_training

# The following functions judge `memory_steady`. The first `after` samples are the warm-up. After the warm-up, memory
# must not grow over replays or over repeated captures.
#
# Three growths are computed, and the largest is judged:
# 1. from the peak of the warm-up to the peak of all later samples.
# 2. from the peak of the first `after` later samples to the peak of the last `after` samples. This growth finds a leak
# that a high peak in the warm-up hides.
# 3. from a typical peak to the peak of the last `after` samples. The first half of the later samples is divided into
# groups of `after` samples, and the typical peak is the median of the groups' peaks. This growth finds a leak that a
# peak right after the warm-up hides.
#
# If steps have different shapes, `after` should be at least the number of steps in which all shapes occur once.


def judge_steady(part: MemorySteady, context: Context, sheet: Sheet) -> Judgement:
    """Return PASS if allocated and reserved memory, or with `of: reserved` only reserved memory, grow by at most
    `growth_at_most` (0.01 is 1 %) after the warm-up."""
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
                f"first {part.after} (one sample per {part.per}), but at most {number(100 * part.growth_at_most)} % is "
                "allowed",
            )
    comparison.end(group, context.skipped_steps_at_most(part.candidate))
    return comparison.held(
        f"{'reserved ' if part.of == 'reserved' else ''}memory grew by at most {number(100 * worst)} % over "
        f"{len(samples) - part.after} samples after the first {part.after} (one sample per {part.per})"
    )


def _samples(part: MemorySteady, memory: list[MemoryEvidence]) -> list[MemorySample]:
    found = next((record for record in memory if record.per == part.per), None)
    if found is None:
        settle(reasons.EVIDENCE_MISSING, f"memory of {part.candidate} was not sampled per {part.per}")
    if len(found.samples) <= part.after:
        settle(
            reasons.VACUOUS_STEPS,
            f"there are {len(found.samples)} memory samples, so none is left after the first {part.after}",
        )
    for kind in ("reserved",) if part.of == "reserved" else ("allocated", "reserved"):
        if not any(getattr(sample, f"{kind}_bytes") for sample in found.samples):
            settle(reasons.VACUOUS_NO_MEMORY, f"all {len(found.samples)} samples of {kind} memory are zero bytes")
    return found.samples


def _require_every_step(part: MemorySteady, samples: list[MemorySample], steps: int) -> None:
    """End the judgement with ERROR unless each step has one sample, in the order of the steps. If a sample is missing,
    memory may have grown unseen."""
    if [sample.step for sample in samples] != list(range(steps)):
        settle(
            reasons.EVIDENCE_MISSING,
            f"{steps} steps of {part.candidate} must have one memory sample each, in their order, but {len(samples)} "
            "samples were recorded or their order differs",
        )


def _growth(sizes: list[int], after: int) -> float:
    """Return the largest of three relative growths: negative if memory shrank, infinite if memory grew from 0 bytes.
    The first is from the peak of the first `after` samples to the peak of all later samples. The second and the third
    are to the peak of the last `after` samples: the second from the peak of the first `after` later samples, the third
    from the median peak of groups of `after` samples in the first half of the later samples."""
    later = sizes[after:]
    growth = _relative(max(later), max(sizes[:after]))
    if len(later) > after:  # the first `after` later samples and the last `after` later samples may overlap
        last = max(later[-after:])
        early = [max(later[first : first + after]) for first in range(0, max(1, len(later) // 2 - after + 1), after)]
        growth = max(growth, _relative(last, early[0]), _relative(last, median_low(early)))
    return growth


def _relative(late: int, early: int) -> float:
    if early == 0:
        return 0.0 if late == 0 else math.inf
    return (late - early) / early


# The following functions judge `peak_memory`: the largest device memory that an arm held at one time, in GiB or as a
# multiple of the baseline's memory.
#
# Two things must hold first. Both arms must have trained in the same way. The device must have held little memory
# outside torch's allocator, because only the statistics of this allocator are judged. If these statistics may be too
# low, or if the device's memory was not read, the claim does not pass.

GIB = 2**30


def judge_peak(part: PeakMemory, context: Context, sheet: Sheet) -> Judgement:
    """Return the judgement of a claim. The checks are made in this order: a replayed capture, equal training, memory
    outside torch's allocator, the bound, that no higher peak was missed."""
    candidate, baseline = (executed(context.run_of("peak_memory", arm), arm) for arm in (part.candidate, part.baseline))
    comparison = Comparison(part, context, sheet)
    comparison.captured(baseline, candidate)
    steps = len(candidate.series.loss)
    sheet.figure("steps_run", steps, "steps")
    ours, theirs = f"candidate {part.candidate}", f"baseline {part.baseline}"
    named = {theirs: baseline, ours: candidate}
    trajectory = named_trajectory(part.trajectory, context)
    same_system = context.same_system(part.candidate, part.baseline)
    nothing = f"{ours} recorded no step"
    require_equal_training(trajectory, named, comparison, sheet, nothing=nothing, same_system=same_system)
    sheet.count("steps", steps)
    seen = {name: _seen(name, execution) for name, execution in named.items()}
    for role, peaks in (("candidate", seen[ours]), ("baseline", seen[theirs])):
        _note(role, peaks, sheet)
    _require_little_outside(part, ours, seen[ours], sheet)
    held = _bounded(part, seen[ours], seen[theirs], sheet)
    for name, peaks in seen.items():
        _require_known(name, peaks)
    return comparison.held(held)


def _seen(name: str, execution: ArmEvidence) -> PeakMemoryEvidence:
    peaks = execution.peak_memory
    if peaks is None:
        settle(reasons.EVIDENCE_MISSING, f"the peak memory of {name} was not recorded")
    # A peak of zero bytes means that nothing was measured, because an arm has at least its parameters in memory.
    if min(_bytes(peaks, of, over) for of in ("allocated", "reserved") for over in ("run", "steps")) == 0:
        settle(reasons.VACUOUS_NO_MEMORY, f"the peak memory of {name} is zero bytes")
    return peaks


def _bytes(peaks: PeakMemoryEvidence, of: Literal["allocated", "reserved"], over: Literal["run", "steps"]) -> int:
    """Return the peak of allocated or reserved bytes, over the whole run or only over the steps."""
    stretches = (peaks.steps,) if over == "steps" else (peaks.opening, peaks.steps)
    return max(int(getattr(stretch, f"{of}_bytes")) for stretch in stretches)


def _note(role: str, peaks: PeakMemoryEvidence, sheet: Sheet) -> None:
    for of in ("allocated", "reserved"):
        for over in ("run", "steps"):
            sheet.figure(f"{role}_{of}_peak_{over}", _bytes(peaks, of, over) / GIB, "GiB")
    for what in ("device", "outside"):
        found = _most(peaks, what)
        sheet.figure(f"{role}_{what}_peak", None if found is None else found / GIB, "GiB")
    sheet.figure(f"{role}_peak_resets", peaks.resets, "resets")


def _most(peaks: PeakMemoryEvidence, what: Literal["device", "outside"]) -> int | None:
    """Return the peak over the whole run, in bytes, of all used memory of the device, or of the memory outside torch's
    allocator. Return None if memory was not sampled during the opening or during the steps."""
    found = [_sampled(stretch, what) for stretch in (peaks.opening, peaks.steps)]
    return None if None in found else max(each for each in found if each is not None)


def _sampled(stretch: MemoryPeak, what: Literal["device", "outside"]) -> int | None:
    seen = stretch.device_bytes if what == "device" else stretch.outside_bytes
    return seen if stretch.samples else None


def _require_little_outside(part: PeakMemory, name: str, peaks: PeakMemoryEvidence, sheet: Sheet) -> None:
    outside = _most(peaks, "outside")
    sheet.figure("outside_demanded", part.outside_at_most_gib, "GiB")
    if (
        outside is not None
        and peaks.foreign_processes == 0
        and not sheet.meets(
            "candidate_outside_peak", outside / GIB, "at most", part.outside_at_most_gib, "GiB", beside=True
        )
    ):
        settle(
            reasons.MEMORY_OUTSIDE_ALLOCATOR,
            f"in the process of {name}, the device held {number(outside / GIB)} GiB outside torch's allocator, but at "
            f"most {number(part.outside_at_most_gib)} GiB is allowed",
        )


def _bounded(part: PeakMemory, ours: PeakMemoryEvidence, theirs: PeakMemoryEvidence, sheet: Sheet) -> str:
    """End the judgement with FAIL if the candidate's peak exceeds its bound. Return a sentence about this peak."""
    peak, other = (_bytes(peaks, part.of, part.over) for peaks in (ours, theirs))
    ratio = peak / other
    sheet.figure("ratio", ratio)
    over = "the run" if part.over == "run" else "its steps"
    seen = f"{part.candidate} held at most {number(peak / GIB)} GiB {part.of} during {over}"
    if part.at_most_gib is not None:
        sheet.figure("demanded", part.at_most_gib, "GiB")
        bound = f"{number(part.at_most_gib)} GiB"
        if not sheet.meets(f"candidate_{part.of}_peak_{part.over}", peak / GIB, "at most", part.at_most_gib, "GiB"):
            settle(reasons.PEAK_MEMORY, f"{seen}, but {bound} are allowed")
        return f"{seen}; {bound} are allowed"
    allowed = part.at_most_ratio or 0.0  # the model guarantees that either the limit in GiB or the ratio is set
    sheet.figure("demanded", allowed)
    seen = f"{seen}, which is {number(ratio)} times the {number(other / GIB)} GiB of {part.baseline}"
    if theirs.lost_peaks:
        _require_known(f"baseline {part.baseline}", theirs)
    if not sheet.meets("ratio", ratio, "at most", allowed, "times the baseline's peak"):
        settle(reasons.PEAK_RATIO, f"{seen}, but {number(allowed)} times are allowed")
    return f"{seen}; {number(allowed)} times are allowed"


def _require_known(name: str, peaks: PeakMemoryEvidence) -> None:
    """End the judgement with INCONCLUSIVE if a peak of memory may have been higher than recorded in `peaks`."""
    if peaks.lost_peaks:
        settle(
            reasons.PEAK_UNKNOWN,
            f"in the process of {name}, torch's peak statistics fell {peaks.lost_peaks} times without a reset that the "
            "harness saw",
        )
    if _most(peaks, "outside") is None or _most(peaks, "device") is None or peaks.foreign_processes is None:
        settle(
            reasons.DEVICE_MEMORY_UNSEEN, f"the memory that the device had in use was not read in the process of {name}"
        )
    if peaks.foreign_processes:
        settle(
            reasons.DEVICE_MEMORY_UNSEEN,
            f"{peaks.foreign_processes} other processes used the device next to the process of {name}",
        )

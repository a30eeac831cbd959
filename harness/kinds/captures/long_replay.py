"""Judge `long_replay`: over many steps, captured training is bitwise equal to plain training, and neither memory nor
the time of a step grows.

Every step is compared, because each block of steps has a digest of its losses and a digest of its batches. The series
of losses has one loss for each block, that of the block's last step. Memory is compared with its size after the
warm-up. At the end, the long run and a fresh run take turns, and their step times are compared. In older evidence there
is no fresh run, so the step times of late blocks are compared with those of early blocks (`slowdown`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import comb
from statistics import median_low

from harness.evidence.arm_records import LongReplayEvidence, ReplayBlock, ReplayRound
from harness.evidence.run_evidence import ArmEvidence
from harness.judging import reasons
from harness.judging.comparison import Comparison, Group
from harness.judging.context import Context, end_of, executed
from harness.judging.end_state import note_watched
from harness.judging.series import EXACT, difference, losses, require_equal
from harness.judging.sheet import Settled, Sheet, number, require_steps, settle
from harness.judging.verdict import Demanded, Interval, Judgement
from harness.kinds.captures.model import SLICE, LongReplay
from harness.numbers import counted

MIB = 2**20


def judge(part: LongReplay, context: Context, sheet: Sheet) -> Judgement:
    """Return the judgement of a claim. The checks are made in this order: a replayed capture, finite losses, equal
    start and batches, equal losses, the guards, the end states, memory, time."""
    candidate, baseline = (executed(context.run_of("long_replay", arm), arm) for arm in (part.candidate, part.baseline))
    comparison = Comparison(part, context, sheet)
    comparison.captured(candidate, throughout=False)
    ours, theirs = f"candidate {part.candidate}", f"baseline {part.baseline}"
    named = {theirs: baseline, ours: candidate}
    ended = _ended(named)
    steps = end_of(candidate).steps_called
    sheet.count("steps", steps)
    if not ended or steps >= part.steps:
        require_steps(steps, part.steps, sheet)
    seen = {name: _seen(part, name, execution) for name, execution in named.items()}
    _require_finite_blocks(seen, sheet)
    _require_as_many(seen)
    _require_equal_batches(seen, sheet)
    group = Group(named)
    comparison.begin(group)
    _require_equal_losses(seen, named, sheet)
    _require_replayed(part, candidate, context)
    if steps < part.steps:
        settle(
            reasons.WORKER_EXCEPTION,
            f"both arms ended after {steps} of the {part.steps} required steps ({ended}); a claim with "
            f"`steps: {steps}` could be decided",
        )
    _require_distinct_batches(part, seen[ours], sheet)
    note_watched(named, sheet)
    try:
        comparison.end(group)
    except Settled as settled:
        if not ended or settled.reason != reasons.END_DIFFERS:
            raise
        settle(reasons.WORKER_EXCEPTION, f"both arms ended within a step ({ended}): {settled.message}")
    flat = [*_flat_memory(part, seen[ours], sheet), *_flat_time(part, seen[ours], sheet)]
    planned = context.contract.workloads[context.workload].steps
    return comparison.held(
        "; ".join(
            [
                f"the losses of {ours} and {theirs} are equal in bits at all {steps} steps, and so are their ends",
                *(
                    [f"both arms ended after these steps, although the workload has {planned}: {ended}"]
                    if ended
                    else []
                ),
                *flat,
            ]
        )
    )


def _ended(named: Mapping[str, ArmEvidence]) -> str | None:
    """Return the error that ended the baseline if both arms ended early after equally many steps. Return None if no arm
    ended early. If only one arm ended early, or the arms ended after different numbers of steps, end the judgement with
    ERROR. In this case the machine may be the cause, and not the training."""
    raised = {name: each.long_replay.ended if each.long_replay else None for name, each in named.items()}
    steps = {name: end_of(each).steps_called for name, each in named.items()}
    ended = {name: what for name, what in raised.items() if what is not None}
    if ended and (len(ended) < len(named) or len(set(steps.values())) > 1):
        how = "ended" if len(ended) == len(named) else "ended alone"
        ends = [f"{name} {how} after {counted(steps[name], 'step')}: {what}" for name, what in ended.items()]
        settle(reasons.WORKER_EXCEPTION, "; ".join(ends))
    return next(iter(raised.values()))


def _seen(part: LongReplay, name: str, execution: ArmEvidence) -> LongReplayEvidence:
    """Return the record of an arm's blocks. End the judgement with ERROR unless the blocks contain all steps and one
    loss was recorded for each block."""
    seen = execution.long_replay
    if seen is None:
        settle(reasons.EVIDENCE_MISSING, f"the blocks of {name} were not recorded")
    begin = [block.first_step for block in seen.blocks]
    follow = [block.first_step + block.steps for block in seen.blocks]
    whole = begin[:1] == [0] and all(ends == begins for ends, (_, begins) in zip(follow, pairwise(begin), strict=False))
    even = all(block.steps == part.every for block in seen.blocks[:-1]) and seen.every == part.every
    if not (whole and even and follow[-1] == end_of(execution).steps_called):
        settle(
            reasons.EVIDENCE_INCONSISTENT,
            f"the recorded blocks of {name} do not contain all its steps in order, with {part.every} in each block",
        )
    times = [seconds for block in seen.blocks for seconds in (block.seconds, block.yardstick_seconds)]
    times += [seconds for each in seen.rounds or [] for seconds in (*each.old, *each.fresh)]
    if not all(0 < seconds < math.inf for seconds in times):
        settle(
            reasons.EVIDENCE_INCONSISTENT, f"the recorded time of a block of {name} is not a positive number of seconds"
        )
    if len(execution.series.loss) != len(seen.blocks):
        settle(
            reasons.EVIDENCE_INCONSISTENT,
            f"{name} has {len(seen.blocks)} blocks but {len(execution.series.loss)} recorded losses",
        )
    return seen


def _require_finite_blocks(seen: Mapping[str, LongReplayEvidence], sheet: Sheet) -> None:
    found = [
        (block.first_non_finite, name)
        for name, replay in seen.items()
        for block in replay.blocks
        if block.first_non_finite is not None
    ]
    if found:
        step, name = min(found)
        sheet.figure("first_non_finite_step", step, "step")
        settle(reasons.NON_FINITE, f"the loss of {name} is not finite at step {step}")


def _require_as_many(seen: Mapping[str, LongReplayEvidence]) -> None:
    theirs, ours = ((name, sum(block.steps for block in replay.blocks)) for name, replay in seen.items())
    if ours[1] != theirs[1]:
        settle(reasons.UNEQUAL_LENGTHS, f"{ours[0]} has {ours[1]} steps, but {theirs[0]} has {theirs[1]}")


def _require_equal_batches(seen: Mapping[str, LongReplayEvidence], sheet: Sheet) -> None:
    theirs, ours = seen
    apart = _apart(seen, "batches")
    if apart:
        sheet.figure("first_unequal_block", apart[0].first_step, "step")
        settle(
            reasons.UNEQUAL_BATCHES,
            f"{ours} and {theirs} read different batches in {len(apart)} of {len(seen[ours].blocks)} blocks, first in "
            f"{_steps(apart[0])}",
        )


def _require_equal_losses(
    seen: Mapping[str, LongReplayEvidence], named: Mapping[str, ArmEvidence], sheet: Sheet
) -> None:
    theirs, ours = seen
    apart = _apart(seen, "losses")
    sheet.count("blocks", len(seen[ours].blocks))
    sheet.figure("blocks_differing", len(apart), "blocks")
    sheet.figure("first_differing_block", apart[0].first_step if apart else None, "step")
    rows = difference(losses(named[ours]), losses(named[theirs]), "every", EXACT)
    sheet.figure("max_abs_difference_of_rows", rows.largest, "loss")
    if not sheet.meets("blocks_differing", len(apart), "none", noun="blocks differ", of=len(seen[ours].blocks)):
        settle(
            reasons.DIFFERS,
            f"the losses of {ours} and {theirs} differ in {len(apart)} of {len(seen[ours].blocks)} blocks, first in "
            f"{_steps(apart[0])}; in the last steps of the blocks they differ by at most {number(rows.largest)}",
        )
    require_equal(rows, "bitwise", EXACT, f"{ours} and {theirs}", sheet, beside=True)


def _apart(seen: Mapping[str, LongReplayEvidence], field: str) -> list[ReplayBlock]:
    theirs, ours = seen.values()
    pairs = zip(ours.blocks, theirs.blocks, strict=True)
    return [block for block, other in pairs if getattr(block, field) != getattr(other, field)]


def _steps(block: ReplayBlock) -> str:
    return f"steps {block.first_step} to {block.first_step + block.steps - 1}"


def _require_replayed(part: LongReplay, candidate: ArmEvidence, context: Context) -> None:
    """End the judgement with FAIL if steps, for example late steps, were made outside the capture."""
    capture = candidate.capture
    if capture is None:
        settle(reasons.EVIDENCE_MISSING, f"there is no capture record of arm {part.candidate}")
    steps = context.judged_steps(candidate)
    if steps.uncaptured > 0 or capture.replays < steps.called:
        settle(
            reasons.UNCAPTURED_STEPS,
            f"{part.candidate} replayed {capture.replays} of {steps.called} steps and ran {steps.uncaptured} steps "
            "outside the capture",
        )


def _require_distinct_batches(part: LongReplay, candidate: LongReplayEvidence, sheet: Sheet) -> None:
    sheet.figure("distinct_batches", candidate.distinct_batches, "batches")
    seen, demanded = candidate.distinct_batches, part.distinct_batches
    if demanded is not None and not sheet.meets("distinct_batches", seen, "at least", demanded, "batches", beside=True):
        settle(
            reasons.VACUOUS_BATCHES_REPEAT,
            f"{seen} distinct batches were read, but {demanded} are required",
        )


def _flat_memory(part: LongReplay, candidate: LongReplayEvidence, sheet: Sheet) -> list[str]:
    """End the judgement with FAIL if memory grew by more than the claim allows. Return a list with a sentence about the
    growth, or [] if the claim sets no bound."""
    if part.memory_growth_at_most_mib is None:
        return []
    growths = {}
    for kind in ("allocated", "reserved"):
        sizes = [getattr(block, f"{kind}_bytes") for block in candidate.blocks]
        if None in sizes or len(sizes) <= part.after:
            settle(reasons.EVIDENCE_MISSING, f"{kind} memory of {part.candidate} was not recorded after every block")
        if not any(sizes):
            settle(reasons.VACUOUS_NO_MEMORY, f"{kind} memory of {part.candidate} is zero bytes after every block")
        growths[f"{kind}_growth"] = _growth(sizes, part.after) / MIB
        sheet.figure(f"{kind}_growth", growths[f"{kind}_growth"], "MiB")
    allowed = part.memory_growth_at_most_mib
    seen = f"memory grew by at most {number(max(*growths.values(), 0.0))} MiB after the first {part.after} blocks"
    if not all(sheet.meets(name, growth, "at most", allowed, "MiB") for name, growth in growths.items()):
        settle(reasons.MEMORY_GROWS, f"{seen}, but {number(allowed)} MiB are allowed")
    return [seen]


def _growth(sizes: list[int], after: int) -> int:
    """Return the growth of memory after the warm-up in bytes. The growth is the larger of two numbers.

    1. The peak after the warm-up, minus the memory after the last block of the warm-up.
    2. The peak of the second half of the blocks after the warm-up, minus a typical peak of their first half. The first
    half is divided into groups of `after` consecutive blocks (as many as the warm-up has). The typical peak is the
    median of the groups' peaks. A group has several blocks because a block's memory depends on the shapes of its
    batches.
    """
    later = sizes[after:]
    growth = max(later) - sizes[after - 1]
    half = len(later) // 2
    if half == 0:
        return growth
    rounds = [max(later[first : first + after]) for first in range(0, max(1, half - after + 1), after)]
    return max(growth, max(later[half:]) - median_low(rounds))


def _flat_time(part: LongReplay, candidate: LongReplayEvidence, sheet: Sheet) -> list[str]:
    if part.slowdown_at_most is None:
        return []
    timed = [block for block in candidate.blocks[part.after :] if block.steps == part.every]
    sheet.count("timed_blocks", len(timed))
    found = slowdown(timed)
    if found is None:
        settle(reasons.UNDECIDED_SLOWDOWN, f"{len(timed)} blocks are too few to show whether steps become slower")
    if candidate.rounds is not None:
        return _flat_next_to_a_fresh_run(part, candidate.rounds, found, sheet)
    _note(found, sheet)
    sheet.figure("slowdown_of_fastest_blocks", found.fastest)
    allowed = f"{number(100 * part.slowdown_at_most)} %"
    seen = (
        f"late steps take {_longer(found.measured)} than early steps (from {_longer(found.least)} to "
        f"{_longer(found.most)}; the fastest blocks {_longer(found.fastest)})"
    )
    interval = Interval(found.least, found.most, 1 - OUTSIDE, "intervals of both medians", "timed_blocks")
    demanded = Demanded("slowdown", found.measured, "at most", part.slowdown_at_most, percent=True, interval=interval)
    sheet.note(demanded)
    if found.least > part.slowdown_at_most and not sheet.holds(demanded):
        settle(reasons.SLOWS_DOWN, f"{seen}, but {allowed} longer is allowed")
    if not found.most <= part.slowdown_at_most:
        settle(
            reasons.UNDECIDED_SLOWDOWN, f"{seen}; it is undecided whether late steps take more than {allowed} longer"
        )
    if abs(found.fastest) > part.slowdown_at_most:
        settle(
            reasons.UNDECIDED_SLOWDOWN,
            f"{seen}: the fastest blocks differ by more than {allowed}, so something disturbed the first or the last "
            "quarter of the blocks",
        )
    return [seen]


def _longer(slowdown: float) -> str:
    return f"{number(100 * abs(slowdown))} % {'longer' if slowdown >= 0 else 'less'}"


def _flat_next_to_a_fresh_run(
    part: LongReplay, rounds: Sequence[ReplayRound], early_to_late: Slowdown, sheet: Sheet
) -> list[str]:
    """Return a list with a sentence about the step times of the long run and a fresh run, which took turns. End the
    judgement with FAIL if the long run is slower than the claim allows.

    If late steps are slower than early steps, but the long run is as fast as the fresh run, end the judgement with
    INCONCLUSIVE. In this case the machine became slower, or something slows the whole process, including the fresh run.
    """
    allowed = part.slowdown_at_most or 0.0
    sheet.count("rounds", len(rounds))
    found = _old_over_fresh(rounds)
    if found is None:
        settle(reasons.UNDECIDED_SLOWDOWN, f"{len(rounds)} rounds are too few to show whether steps become slower")
    _note(found, sheet)
    sheet.figure("slowdown_from_early_to_late", early_to_late.measured)
    seen = (
        f"the steps of the long run take {_longer(found.measured)} than those of a fresh run, measured in turns "
        f"(from {_longer(found.least)} to {_longer(found.most)})"
    )
    bound = f"{number(100 * allowed)} %"
    interval = Interval(found.least, found.most, 1 - OUTSIDE, "interval of the median", "rounds")
    demanded = Demanded("slowdown", found.measured, "at most", allowed, percent=True, interval=interval)
    sheet.note(demanded)
    if found.least > allowed and not sheet.holds(demanded):
        settle(reasons.SLOWS_DOWN, f"{seen}, but {bound} longer is allowed")
    if not found.most <= allowed:
        settle(
            reasons.UNDECIDED_SLOWDOWN,
            f"{seen}; it is undecided whether the steps of the long run take more than {bound} longer",
        )
    if early_to_late.measured > allowed:
        settle(
            reasons.UNDECIDED_SLOWDOWN,
            f"{seen}, and late steps take {_longer(early_to_late.measured)} than early steps: the process or the "
            "machine became slower",
        )
    return [seen]


def _old_over_fresh(rounds: Sequence[ReplayRound]) -> Slowdown | None:
    """Return the median over the rounds of (long run's seconds / fresh run's seconds - 1), with its interval."""
    rank = _rank(len(rounds))
    if rank is None:
        return None
    ratios = sorted(sum(each.old) / sum(each.fresh) - 1 for each in rounds)
    return Slowdown(_median(ratios), ratios[rank], ratios[len(ratios) - 1 - rank])


def _note(found: Slowdown, sheet: Sheet) -> None:
    sheet.figure("slowdown", found.measured)
    sheet.figure("slowdown_least", found.least)
    sheet.figure("slowdown_most", found.most)


OUTSIDE = 0.01  # largest probability with which the true median may lie outside its interval
# In each quarter of a run's blocks, the fastest blocks are assumed to be undisturbed. The time of block number
# `FASTEST`, counted from the fastest one, stands for the whole quarter.
FASTEST = 3


@dataclass(frozen=True)
class Slowdown:
    """The relative growth of a step's time (0.1 means 10 % slower). measured: the measured value. least, most: the ends
    of its confidence interval."""

    measured: float
    least: float
    most: float
    fastest: float = 0.0  # the growth, computed only from the fastest blocks


def slowdown(blocks: Sequence[ReplayBlock]) -> Slowdown | None:
    """Return the slowdown from the first to the last quarter of the blocks; None if a quarter has too few blocks."""
    size = len(blocks) // SLICE
    early, late = blocks[:size], blocks[len(blocks) - size :]
    times = _ratio([each.seconds / each.steps for each in early], [each.seconds / each.steps for each in late])
    yardstick = _ratio([each.yardstick_seconds for each in early], [each.yardstick_seconds for each in late])
    if times is None or yardstick is None:
        return None
    return Slowdown(
        measured=times.measured - 1,
        least=times.least / max(1.0, yardstick.most) - 1,
        most=times.most / min(1.0, yardstick.least) - 1,
        fastest=_fast(late) / _fast(early) - 1,
    )


def _fast(blocks: Sequence[ReplayBlock]) -> float:
    """Return the seconds per step of the block that is number `FASTEST` if the blocks are sorted from fast to slow."""
    return sorted(each.seconds / each.steps for each in blocks)[FASTEST - 1]


def _ratio(early: Sequence[float], late: Sequence[float]) -> Slowdown | None:
    """Return the median of the late times divided by the median of the early times (1: equal). The interval follows
    from the confidence intervals of both medians. Return None if there are too few times."""
    rank = _rank(len(early))
    if rank is None:
        return None
    first, last = sorted(early), sorted(late)
    low, high = rank, len(first) - 1 - rank
    return Slowdown(_median(last) / _median(first), last[low] / first[high], last[high] / first[low])


def _median(values: Sequence[float]) -> float:
    middle = len(values) // 2
    return values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2


def _rank(count: int) -> int | None:
    """Return the largest k (from 0) for which the true median lies outside the interval from the k-th smallest to the
    k-th largest of `count` values with a probability of at most OUTSIDE; None if there is no such k."""
    beyond, found = 0, None
    for k in range(count // 2):
        # the true median is below the k-th smallest value if at most k values are below the true median
        beyond += comb(count, k)
        if 2 * beyond > OUTSIDE * 2**count:
            break
        found = k
    return found

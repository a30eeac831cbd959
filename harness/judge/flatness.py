"""Whether the time of a step grows over a long run: medians of its first and its last quarter, with their intervals.

Distribution-free: an interval of order statistics holds a median with a confidence of at least 99 %, whatever the
noise's shape, as long as blocks are independent. A fixed piece of work, the yardstick, is timed after every block: what
made late blocks slower or faster may have been the machine, as far as the yardstick's own interval lies from 1.

Blocks are not independent where something else works for a while, and a first quarter that was disturbed hides steps
that became slower. A disturbance only adds time: so the fastest blocks of both quarters are compared as well, and where
the early ones differ from the late ones by more than what is allowed, in either direction, nothing is proven.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

from harness.contract.kinds.long_replay import SLICE
from harness.evidence.arm_records import ReplayBlock

OUTSIDE = 0.01  # chance that a median lies outside its interval, at most
FASTEST = 3  # blocks of a quarter that have to be undisturbed: the slowest of them stands for it


@dataclass(frozen=True)
class Slowdown:
    """Relative growth of a step's time, late over early: what was measured, and what bounds it."""

    measured: float
    least: float
    most: float
    fastest: float = 0.0  # of the fastest blocks alone


def slowdown(blocks: Sequence[ReplayBlock]) -> Slowdown | None:
    """Of the last quarter of the blocks over the first; None where a quarter has too few for an interval."""
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
    """Seconds of a step, of the slowest among the fastest blocks."""
    return sorted(each.seconds / each.steps for each in blocks)[FASTEST - 1]


def _ratio(early: Sequence[float], late: Sequence[float]) -> Slowdown | None:
    """Median of the late values over that of the early ones, and the extremes that their intervals allow."""
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
    """The highest index k from 0 so that the k-th smallest and the k-th largest of `count` values hold their median
    between them, but for a chance of OUTSIDE; None where not even the extremes do."""
    beyond, found = 0, None
    for k in range(count // 2):
        beyond += comb(count, k)  # a median lies below the k-th smallest where at most k values are below it
        if 2 * beyond > OUTSIDE * 2**count:
            break
        found = k
    return found

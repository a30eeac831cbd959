"""Make series small for drawing, with their spikes kept."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]


def decimate(values: Doubles, points: int = 400) -> tuple[Doubles, Doubles]:
    """Return indices and values [<= points, or 4], finite ones only: the smallest and largest of each bucket, in order.

    values: [T] by step. A series of at most `points` finite values comes back whole.
    """
    index = np.flatnonzero(np.isfinite(values))
    finite = values[index]
    if len(finite) <= points:
        return index.astype(np.float64), finite
    buckets = max(1, (points - 2) // 2)  # two values each, beside the first and the last of all
    size = -(-len(finite) // buckets)
    starts = np.arange(0, len(finite), size)
    kept = {0, len(finite) - 1}
    for start in starts.tolist():
        piece = finite[start : start + size]
        kept.update((start + int(piece.argmin()), start + int(piece.argmax())))
    chosen = np.array(sorted(kept))
    return index[chosen].astype(np.float64), finite[chosen]


def absolute_difference(first: Doubles, second: Doubles) -> Doubles:
    """Return |first - second| over the steps that both have; equal infinities differ by 0, a NaN stays NaN."""
    length = min(len(first), len(second))
    left, right = first[:length], second[:length]
    with np.errstate(invalid="ignore"):
        difference = np.abs(left - right)
    difference[left == right] = 0.0
    return difference


def relative_difference(first: Doubles, second: Doubles) -> Doubles:
    """Return |first - second| / |second| over the steps that both have; infinite where only the second is 0."""
    difference = absolute_difference(first, second)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = difference / np.abs(second[: len(difference)])
    ratio[difference == 0] = 0.0
    return ratio


def first_differing(first: Doubles, second: Doubles) -> int | None:
    """Return the first step whose bits differ; None if all common steps agree."""
    length = min(len(first), len(second))
    left = np.ascontiguousarray(first[:length], dtype=np.float64).view(np.int64)
    right = np.ascontiguousarray(second[:length], dtype=np.float64).view(np.int64)
    places = np.flatnonzero(left != right)
    return int(places[0]) if len(places) else None

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

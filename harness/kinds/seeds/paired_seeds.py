"""Compute the statistics of `not_worse`: pure functions over the last axis, so that a simulation runs the same code.

The unit of replication is a seed: both arms train from one start on one order of batches, and the pair yields one
number, its excess: by how much the candidate is worse, less what the claim allows. docs/statistics.md derives the rule.
Shapes: `...` any number of experiments, N seeds.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from harness.judging.statistics import PROBABLY, Array, Spread, fewest_processes, may_dissent, trimmed
from harness.kinds.seeds.model import MOST_SEEDS


def excesses(candidate: Array, baseline: Array, margin: Array | float, *, lower_is_better: bool) -> Array:
    """Return by how much the candidate's values [..., N] are worse than the baseline's by more than the margin; at most
    0 where they are not."""
    worse = candidate - baseline if lower_is_better else baseline - candidate
    return np.asarray(worse - margin)


def interval(excess: Array, confidence: float) -> tuple[Array, Array]:
    """Return the ends of the one-sided intervals of the trimmed mean, each at this confidence: [...]."""
    mean, reach = trimmed(excess, confidence)
    return mean - reach, mean + reach


def decide(excess: Array, confidence: float) -> NDArray[np.int8]:
    """Return 1 where it is not worse by more than the margin, -1 where it is worse, else 0. [...]

    PASS needs the interval and the agreement of all seeds but those that may dissent, whose chance is bounded whatever
    the noise's shape. FAIL needs the interval alone.
    """
    low, high = interval(excess, confidence)
    dissenting = may_dissent(excess.shape[-1], confidence)
    reached = np.sort(excess, axis=-1)[..., -1 - dissenting]
    held = (high <= 0) & (reached <= 0)
    return np.asarray(held.astype(np.int8) - (low > 0).astype(np.int8), dtype=np.int8)


def seeds_to_decide(excess: Array, confidence: float) -> int | None:
    """Return how many seeds, more than these [N], would probably decide, by their spread; None: no number would.

    An estimate, with a normal approximation.
    """
    spread = Spread.of(excess)
    for seeds in range(max(fewest_processes(confidence), len(excess) + 1), MOST_SEEDS + 1):
        cleared = abs(spread.mean) >= spread.reach(confidence, seeds)
        agreed = spread.mean > 0 or spread.agreement(-spread.mean, seeds, confidence) >= PROBABLY
        if cleared and agreed:
            return seeds
    return None

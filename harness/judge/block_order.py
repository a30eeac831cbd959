"""Whether a timing's blocks were timed in the order that they are said to have: A B B A is believed by its clock.

Arms that do not take turns are each hit by another part of a drift, and blocks that overlap share the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from harness.evidence.run_records import Block, TimingEvidence
from harness.judge import reasons
from harness.judge.sheet import settle

# Two readings of one clock may round apart; over 260 published processes at least 3.5 ms lay between two blocks, and
# 178 ms between two processes.
ROUNDING_S = 1e-6


def require_one_after_another(timings: Sequence[TimingEvidence]) -> None:
    """Settle ERROR unless each block began when the one before it was over, and no two processes were timed at once.

    Blocks that do not say when they began are left to whoever needs to know (`machine`, `speed_figures`).
    """
    spans = []
    for timing in timings:
        blocks = sorted(timing.blocks, key=lambda block: (block.round, block.position))
        for earlier, later in pairwise(blocks):
            _require_over(earlier, later, f"process {timing.process}")
        if all(block.began is not None for block in blocks):
            spans.append((blocks[0].began or 0.0, timing.process, blocks[-1]))
    spans.sort(key=lambda span: span[:2])
    for (_, process, last), (began, other, _) in pairwise(spans):
        if not (last.began or 0.0) + last.seconds <= began + ROUNDING_S:
            settle(
                reasons.EVIDENCE_INCONSISTENT,
                f"process {other} began to be timed before process {process} was over, on one device",
            )


def _require_over(earlier: Block, later: Block, where: str) -> None:
    if earlier.began is None or later.began is None:
        return
    if not earlier.began + earlier.seconds <= later.began + ROUNDING_S:
        settle(
            reasons.EVIDENCE_INCONSISTENT,
            f"in {where} block {later.position} of round {later.round} began before block {earlier.position} of round "
            f"{earlier.round} was over: they did not take turns as they say",
        )

"""Whether the clock favoured the arm that won.

Under a power cap each arm sets its own clock: the denser one draws more and runs slower. That is no disturbance while
it works against the arm that wins; when it works for it, the speed may be the clock's.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from harness.evidence.run_records import Telemetry, TimingEvidence
from harness.judge import reasons
from harness.judge.sheet import Sheet, number, settle

Timed = tuple[TimingEvidence, Telemetry]
"""One process: its blocks, and what was sampled meanwhile."""


def require_no_clock_advantage(winner: str, loser: str, limit: float, timed: Sequence[Timed], sheet: Sheet) -> None:
    """Settle INCONCLUSIVE when the winner's mean SM clock was above the loser's by more than the share `limit`.

    An arm's mean is that over processes of the samples that fall into its timed blocks. Where an arm was not sampled in
    some process, nothing can be said of it: INCONCLUSIVE, too.
    """
    means = {arm: fmean(_mean_clock(arm, *each) for each in timed) for arm in (winner, loser)}
    for arm, clock in means.items():
        sheet.figure(f"sm_clock.{arm}", clock, "MHz")
    advantage = means[winner] / means[loser] - 1
    sheet.figure("clock_advantage", advantage)
    if not advantage <= limit:
        settle(
            reasons.LIMITS_EXCEEDED,
            f"the ratio speaks for {winner}, and the GPU's clock favoured it by {number(advantage)} "
            f"(limit {number(limit)}): {means[winner]:.0f} against {means[loser]:.0f} MHz for {loser}",
        )


def _mean_clock(arm: str, timing: TimingEvidence, telemetry: Telemetry) -> float:
    """MHz, over the samples taken while `arm` was timed."""
    spans = [
        (block.began, block.began + block.seconds)
        for block in timing.blocks
        if block.arm == arm and block.began is not None
    ]
    clocks = [
        sample.sm_clock_mhz
        for sample in telemetry.samples
        if sample.sm_clock_mhz
        and telemetry.began is not None
        and any(begin <= telemetry.began + sample.seconds <= end for begin, end in spans)
    ]
    if not clocks:
        settle(
            reasons.TELEMETRY_MISSING,
            f"no SM clock was sampled while {arm} was timed in process {timing.process}: whom it favoured is unknown",
        )
    return fmean(clocks)

"""Make the rounds of a timing: blocks in ABBA order, in whichever process an arm is executed."""

from __future__ import annotations

from collections.abc import Callable

from harness.evidence.plan_records import Run
from harness.evidence.run_records import Block, TimingEvidence
from harness.execution.announced import MOST_ROUNDS, count_setting
from harness.execution.rank_seat import agreed

PROFILED_PROCESS = 0  # of a claim's processes

TimedBlock = Callable[[str, int, int, int], Block]
"""Times a block of an arm: its name, the round's number, the position in it, the steps."""


def timed_rounds(run: Run, timed_block: TimedBlock, disturbed: Callable[[Block], bool]) -> list[Block]:
    """Time as many rounds as the run asks for, and up to as many again instead of disturbed ones."""
    candidate, baseline = arms_of(run)
    rounds, steps = count_setting(run, "blocks") // 2, count_setting(run, "block_steps")
    timed: list[Block] = []
    undisturbed_rounds, number = 0, 0
    while number < rounds or (undisturbed_rounds < rounds and number < MOST_ROUNDS * rounds):
        order = enumerate((candidate, baseline, baseline, candidate))
        blocks = [timed_block(arm, number, position, steps) for position, arm in order]
        undisturbed_rounds += not agreed(any(disturbed(block) for block in blocks))
        timed += blocks
        number += 1
    return timed


def arms_of(run: Run) -> tuple[str, str]:
    """Return the names of candidate and baseline."""
    return str(run.settings["candidate"]), str(run.settings["baseline"])


def joined_timing(run: Run, blocks: list[Block], seen: list[TimingEvidence]) -> TimingEvidence:
    """Join the evidence of both arms' processes: what one of the processes did not see counts as not seen."""
    planted = [each.profiler_sees_planted for each in seen if each.profiler_sees_planted is not None]
    counted = [each.counter_sees_planted for each in seen if each.counter_sees_planted is not None]
    candidate, baseline = arms_of(run)
    return TimingEvidence(
        process=run.process,
        candidate=candidate,
        baseline=baseline,
        blocks=blocks,
        observed_steps=min(each.observed_steps for each in seen),
        processors=seen[0].processors,
        observed_graph_launches={arm: n for each in seen for arm, n in each.observed_graph_launches.items()},
        observed_device_seconds={arm: s for each in seen for arm, s in each.observed_device_seconds.items()},
        profiler_sees_planted=all(planted) if planted else None,
        counter_sees_planted=all(counted) if counted else None,
        counter_failure=next((each.counter_failure for each in seen if each.counter_failure is not None), None),
        own_processes=True,
    )

"""Cases of long_replay: 40 blocks of 10 steps that pass, with one thing changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from evidence_builders import arm, cuda_graph, graphed, traced, unrecorded, verdict_of
from judge_cases import Case

from harness.evidence.arm_records import CaptureEvidence, LongReplayEvidence, ReplayBlock, ReplayRound
from harness.evidence.run_evidence import ArmEvidence, Death, RunEvidence
from harness.judging.verdict import Verdict

MIB = 2**20
EVERY, BLOCKS = 10, 40
STEPS = EVERY * BLOCKS
ROWS = np.linspace(3.0, 2.0, BLOCKS)
LONG: dict[str, Any] = {
    "kind": "long_replay",
    "mechanism": "cuda_graph",
    "candidate": "graphed",
    "baseline": "ungraphed",
    "steps": STEPS,
    "every": EVERY,
    "after": 4,
    "distinct_batches": 300,
    "memory_growth_at_most_mib": 1.0,
    "slowdown_at_most": 0.125,
}
LATE = 31  # a block


def block(number: int, **changes: Any) -> ReplayBlock:
    """Return one block, whose steps take 1 s each, or 1.01 s in every other block."""
    return ReplayBlock(
        **{
            "first_step": number * EVERY,
            "steps": EVERY,
            "losses": f"losses{number}",
            "batches": f"batches{number}",
            "first_non_finite": None,
            "seconds": EVERY * (1 + 0.01 * (number % 2)),
            "yardstick_seconds": 0.001,
            "allocated_bytes": 30 * MIB,
            "reserved_bytes": 40 * MIB,
            **changes,
        }
    )


def replay(name: str, blocks: Sequence[ReplayBlock] | None = None, **changes: Any) -> LongReplayEvidence:
    return LongReplayEvidence(
        **{
            "arm": name,
            "replica": 0,
            "every": EVERY,
            "distinct_batches": 350,
            "blocks": list(blocks or map(block, range(BLOCKS))),
            **changes,
        }
    )


def late(**changes: Any) -> dict[str, Any]:
    """Return blocks with one late block changed."""
    return {"blocks": [block(number, **(changes if number == LATE else {})) for number in range(BLOCKS)]}


def from_late(**changes: Any) -> dict[str, Any]:
    """Return blocks that are changed from a late one on."""
    return {"blocks": [block(number, **(changes if number >= LATE else {})) for number in range(BLOCKS)]}


def leaking(peak_until: int, bytes_a_block: int = MIB) -> dict[str, Any]:
    """Return blocks whose memory grows block by block, after a higher peak up to block `peak_until`."""
    return {
        "blocks": [
            block(number, allocated_bytes=100 * MIB if number <= peak_until else 30 * MIB + number * bytes_a_block)
            for number in range(BLOCKS)
        ]
    }


def columns(**changes: Any) -> dict[str, Any]:
    """Return the rows of the blocks' last steps."""
    return {"batches": [f"batch{number}" for number in range(BLOCKS)], "steps_called": STEPS, **changes}


def unwatched(**changes: Any) -> CaptureEvidence:
    """Return a capture that was replayed in every step, of which the probe watches none."""
    seen = {"device_work": None, "every_step": None, "observed_graph_launches": None}
    return cuda_graph(**{"replays": STEPS, **seen, **changes})


def candidate(rows: Any = ROWS, **changes: Any) -> ArmEvidence:
    return graphed(rows, **columns(**{"capture": unwatched(), **changes}))


def baseline(rows: Any = ROWS, **changes: Any) -> ArmEvidence:
    return arm("ungraphed", rows, **columns(**changes))


def alone(execution: ArmEvidence, seen: LongReplayEvidence | None, **changes: Any) -> RunEvidence:
    """Return the run of one arm."""
    name = execution.start.arm
    arms = {name: [replace(execution, long_replay=seen)]}
    return RunEvidence(**{"run_id": f"run of {name}", "probe": "long_replay", "arms": arms, **changes})


def replayed(
    claim: Mapping[str, Any] | None = None,
    ours: Mapping[str, Any] | None = None,
    theirs: Mapping[str, Any] | None = None,
    mine: ArmEvidence | None = None,
    others: ArmEvidence | None = None,
    steps: int = STEPS,
    **changes: Any,
) -> Verdict:
    """Return the verdict on two processes. ours, theirs: changes of the blocks. changes: of the candidate's run."""
    runs = [
        alone(others or baseline(), replay("ungraphed", **(theirs or {}))),
        alone(mine or candidate(), replay("graphed", **(ours or {})), **changes),
    ]
    return verdict_of(LONG | dict(claim or {}), *runs, steps=steps)


def cut_short() -> Verdict:
    """Return the verdict on a baseline without the steps of the last block."""
    rows: dict[str, Any] = {
        "batches": [f"batch{number}" for number in range(BLOCKS - 1)],
        "steps_called": STEPS - EVERY,
    }
    shorter = arm("ungraphed", ROWS[:-1], **rows)
    return replayed(theirs={"blocks": [block(number) for number in range(BLOCKS - 1)]}, others=shorter)


def ended(theirs: str | None = "train.py:9: ValueError: no rate", *, asked: int = 300, end: str = "end") -> Verdict:
    """Return the verdict if both arms end in the middle of a block, or the candidate alone, or the baseline later.

    end: the candidate's state at the end.
    """
    blocks = [*map(block, range(LATE)), block(LATE, steps=EVERY - 1)]
    shown: dict[str, Any] = {"blocks": blocks, "ended": "train.py:9: ValueError: no rate"}
    rows: dict[str, Any] = {
        "batches": [f"batch{number}" for number in range(LATE + 1)],
        "steps_called": LATE * EVERY + 9,
    }
    both = [graphed(ROWS[: LATE + 1], end=end, **rows, capture=unwatched()), arm("ungraphed", ROWS[: LATE + 1], **rows)]
    claim = {"steps": asked, "memory_growth_at_most_mib": None, "slowdown_at_most": None}
    if theirs is None:
        return replayed(claim, ours=shown, mine=both[0])
    if theirs == "later":
        return replayed(claim, shown, {"ended": shown["ended"]}, both[0])
    return replayed(claim, shown, shown, both[0], both[1])


def still_at_last() -> Verdict:
    """Return the verdict if all rows have one loss, but the steps of the first block had others."""
    blocks = {"blocks": [block(number, losses=f"losses{min(number, 1)}") for number in range(BLOCKS)]}
    return replayed(None, blocks, blocks, candidate(0 * ROWS), baseline(0 * ROWS))


def in_both(changes: Mapping[str, Any], **claim: Any) -> Verdict:
    return replayed(claim, changes, changes)


def timed(late_seconds: float, yardstick: float = 0.001, spread: float = 0.0) -> dict[str, Any]:
    """Return blocks whose steps take 1 s in the first half and `late_seconds` in the second, with a yardstick.

    spread: the additional seconds of every third block.
    """
    return {
        "blocks": [
            block(
                number,
                seconds=EVERY * ((late_seconds if number >= BLOCKS // 2 else 1.0) + (spread if number % 3 == 0 else 0)),
                yardstick_seconds=yardstick if number >= BLOCKS // 2 else 0.001,
            )
            for number in range(BLOCKS)
        ]
    }


def turns(old: float, late_seconds: float = 1.0, disturbed: int = 0, rounds: int = 24) -> dict[str, Any]:
    """Return rounds in which a step of the old run takes `old` seconds and one of the fresh run 1 s.

    disturbed: the number of rounds in which another program doubles the time of one of the runs.
    """
    doubled = [(2.0, 1.0) if number % 2 else (1.0, 2.0) for number in range(disturbed)]
    factors = [*doubled, *[(1.0, 1.0)] * (rounds - disturbed)]
    made = [ReplayRound(old=(old * ours, old * ours), fresh=(theirs, theirs)) for ours, theirs in factors]
    return timed(late_seconds) | {"rounds": made}


def few() -> Verdict:
    """Return the verdict if so few blocks follow the warm-up that a quarter has no interval."""
    return replayed({"after": 12})


def shorter() -> Verdict:
    """Return the verdict if the last block has only the remaining steps."""
    made = {"blocks": [*map(block, range(BLOCKS - 1)), block(BLOCKS - 1, steps=3, seconds=90.0)]}
    called = STEPS - 7
    mine = candidate(steps_called=called, capture=unwatched(replays=called))
    return replayed({"steps": called}, made, made, mine, baseline(steps_called=called), steps=called)


def without_state(execution: ArmEvidence) -> ArmEvidence:
    return replace(execution, start=execution.start.model_copy(update={"state": None}))


def swapped() -> dict[str, Any]:
    made = [block(number) for number in range(BLOCKS)]
    return {"blocks": [made[1], made[0], *made[2:]]}


def noisy_turns() -> dict[str, Any]:
    """Return blocks that decide nothing, as in the case `noise`, and rounds that decide."""
    return turns(1.0, disturbed=10) | timed(1.0, spread=1.0)


def noisy_and_late() -> Verdict:
    """Return the verdict if the whole process becomes slower, which noisy blocks alone leave undecided."""
    return replayed(ours=turns(1.0) | timed(1.25, spread=0.5))


DEAD: dict[str, Any] = {"death": Death(cause="heartbeat", detail="120 s", phase="graphed: steps", stack="")}
FLAT = {"memory_growth_at_most_mib": None, "slowdown_at_most": None}
WITHOUT_MEMORY = {"blocks": [block(number, allocated_bytes=None, reserved_bytes=None) for number in range(BLOCKS)]}
LONGER = {"blocks": [*map(block, range(38)), block(38, steps=11), block(39, first_step=391, steps=9)]}
# the old run's steps take 0.125 to 1 longer than the fresh run's
UNEVEN = timed(1.0) | {"rounds": [ReplayRound(old=(1.0, each / 8), fresh=(0.5, 0.5)) for each in range(1, 9)]}
EMPTY_MEMORY = {"blocks": [block(number, allocated_bytes=0, reserved_bytes=0) for number in range(BLOCKS)]}

LONG_CASES = [
    Case("a baseline of fewer steps", "unequal_lengths", cut_short),
    Case("400 steps", "held", replayed),
    Case("a training that ends by itself", "held", ended),
    Case("a training that ends before the steps asked", "worker_exception", lambda: ended(asked=320)),
    Case("a training that ends within a step", "worker_exception", lambda: ended(end="half made")),
    Case("a candidate that ends alone", "worker_exception", lambda: ended(None)),
    Case("arms that end after different numbers of steps", "worker_exception", lambda: ended("later")),
    Case("a loss that stands still after the first block", "held", still_at_last),
    Case("equality alone", "held", lambda: in_both(WITHOUT_MEMORY, **FLAT)),
    Case("a last block that is shorter", "held", shorter),
    Case("grown by what is allowed", "held", lambda: replayed(ours=from_late(allocated_bytes=31 * MIB))),
    Case("memory that shrinks", "held", lambda: replayed(ours=from_late(reserved_bytes=10 * MIB))),
    Case(
        "memory of a schedule of shapes that comes round in the warm-up",
        "held",
        lambda: replayed(
            ours={
                "blocks": [
                    block(number, allocated_bytes=(40 if number % 4 == 3 else 30) * MIB) for number in range(BLOCKS)
                ]
            }
        ),
    ),
    Case("a leak behind a peak that ends the warm-up", "memory_grows", lambda: replayed(ours=leaking(3))),
    Case("a leak behind a peak that outlasts the warm-up", "memory_grows", lambda: replayed(ours=leaking(5))),
    Case("a peak that ends the warm-up", "held", lambda: replayed(ours=leaking(3, 0))),
    Case(
        "a hump in the warm-up",
        "held",
        lambda: replayed(ours={"blocks": [block(0, allocated_bytes=900 * MIB), *map(block, range(1, BLOCKS))]}),
    ),
    Case("slower by half of what is allowed", "held", lambda: replayed(ours=timed(1.0625))),
    Case("a little faster", "held", lambda: replayed(ours=timed(0.9375))),
    Case("so much faster that it was disturbed before", "undecided_slowdown", lambda: replayed(ours=timed(0.5))),
    Case("slower by what is allowed", "held", lambda: replayed(ours=timed(1.125))),
    Case("one disturbed block among few", "undecided_slowdown", lambda: replayed(ours=late(seconds=500.0))),
    Case("one late loss", "differs", lambda: replayed(ours=late(losses="others"))),
    Case(
        "every late loss",
        "differs",
        lambda: replayed(ours=from_late(losses="others"), mine=candidate(ROWS - 0.5 * (np.arange(BLOCKS) >= LATE))),
    ),
    Case("a row that differs", "differs", lambda: replayed(mine=candidate(ROWS + 1e-9))),
    Case("a late batch", "unequal_batches", lambda: replayed(ours=late(batches="others"))),
    Case("a late NaN", "non_finite", lambda: replayed(ours=late(first_non_finite=315, losses="others"))),
    Case("a NaN in a row", "non_finite", lambda: replayed(mine=candidate([*ROWS[:-1], np.nan]))),
    Case("too few steps", "vacuous_steps", lambda: replayed({"steps": STEPS}, mine=candidate(steps_called=STEPS - 1))),
    Case("no step", "vacuous_steps", lambda: replayed(mine=candidate([], batches=[], steps_called=0))),
    Case("batches that repeat", "vacuous_batches_repeat", lambda: replayed(ours={"distinct_batches": 299})),
    Case(
        "steps outside the capture",
        "uncaptured_steps",
        lambda: replayed(mine=candidate(capture=unwatched(replays=STEPS - 1, uncaptured_steps=1))),
    ),
    Case(
        "steps that were not replayed",
        "uncaptured_steps",
        lambda: replayed(mine=candidate(capture=unwatched(replays=STEPS - 1))),
    ),
    Case("traced", "mechanism_missing", lambda: replayed(mine=candidate(capture=traced()))),
    Case("no record of the capture", "evidence_missing", lambda: replayed(mine=unrecorded(candidate()))),
    Case("memory that grows", "memory_grows", lambda: replayed(ours=from_late(allocated_bytes=32 * MIB))),
    Case("reserved memory that grows", "memory_grows", lambda: replayed(ours=late(reserved_bytes=42 * MIB))),
    Case(
        "memory that may not grow at all",
        "memory_grows",
        lambda: replayed({"memory_growth_at_most_mib": 0.0}, ours=late(allocated_bytes=30 * MIB + 512)),
    ),
    Case("no memory", "vacuous_no_memory", lambda: in_both(EMPTY_MEMORY)),
    Case("memory unrecorded", "evidence_missing", lambda: in_both(WITHOUT_MEMORY)),
    Case("slower by more", "slows_down", lambda: replayed(ours=timed(1.25))),
    Case("about as slow as allowed", "undecided_slowdown", lambda: replayed(ours=timed(1.125, spread=0.05))),
    Case("noise", "undecided_slowdown", lambda: replayed(ours=timed(1.0, spread=1.0))),
    Case("slower with the machine", "undecided_slowdown", lambda: replayed(ours=timed(1.25, yardstick=0.00125))),
    Case("no slower on a faster machine", "undecided_slowdown", lambda: replayed(ours=timed(1.0, yardstick=0.0005))),
    Case("too few blocks", "undecided_slowdown", few),
    Case("no slower than a fresh run on a machine of much noise", "held", lambda: replayed(ours=noisy_turns())),
    Case("as slow as allowed next to a fresh run", "held", lambda: replayed(ours=turns(1.125))),
    Case("ten disturbed rounds of 24", "held", lambda: replayed(ours=turns(1.0, disturbed=10))),
    Case("slower than a fresh run", "slows_down", lambda: replayed(ours=turns(1.25))),
    Case("slower than a fresh run in turns with noise", "slows_down", lambda: replayed(ours=turns(1.25, disturbed=10))),
    Case(
        "no slower than a fresh run, in turns with much noise",
        "undecided_slowdown",
        lambda: replayed(ours=turns(1.0, disturbed=14)),
    ),
    Case("slower than a fresh run, but for one round", "undecided_slowdown", lambda: replayed(ours=UNEVEN)),
    Case("late slower by what is allowed", "held", lambda: replayed(ours=turns(1.0, late_seconds=1.125))),
    Case("late as slow as a fresh run", "undecided_slowdown", lambda: replayed(ours=turns(1.0, late_seconds=1.25))),
    Case("late as slow as a fresh run, by blocks with noise", "undecided_slowdown", noisy_and_late),
    Case("too few rounds with a fresh run", "undecided_slowdown", lambda: replayed(ours=turns(1.0, rounds=7))),
    Case("rounds without a bound on time", "held", lambda: in_both(WITHOUT_MEMORY | turns(2.0), **FLAT)),
    Case(
        "a round that took no time",
        "evidence_inconsistent",
        lambda: replayed(ours=timed(1.0) | {"rounds": [ReplayRound(old=(1.0, 1.0), fresh=(0.0, 1.0))] * 24}),
    ),
    Case(
        "a missing block",
        "evidence_inconsistent",
        lambda: replayed(ours={"blocks": [block(number) for number in range(BLOCKS) if number != LATE]}),
    ),
    Case(
        "a missing last block",
        "evidence_inconsistent",
        lambda: replayed(ours={"blocks": [block(number) for number in range(BLOCKS - 1)]}),
    ),
    Case("a block of another length before the last", "evidence_inconsistent", lambda: replayed(ours=LONGER)),
    Case("blocks out of order", "evidence_inconsistent", lambda: replayed(ours=swapped())),
    Case("blocks of other lengths", "evidence_inconsistent", lambda: replayed({"every": 20})),
    Case(
        "a missing row",
        "evidence_inconsistent",
        lambda: replayed(mine=candidate(ROWS[1:], batches=[f"batch{number}" for number in range(1, BLOCKS)])),
    ),
    Case(
        "blocks unrecorded",
        "evidence_missing",
        lambda: verdict_of(LONG, alone(baseline(), replay("ungraphed")), alone(candidate(), None)),
    ),
    Case(
        "no process of the candidate",
        "evidence_missing",
        lambda: verdict_of(LONG, alone(baseline(), replay("ungraphed"))),
    ),
    Case("a process that died", "worker_heartbeat", lambda: replayed(**DEAD)),
]

"""Cases of the rule that decides a speed ratio: outliers, disturbed blocks, the allowance, a second measurement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from evidence_builders import timed_run
from judge_cases import Case
from judge_cases_throughput import PROCESSES, processes, timed

from harness.evidence.run_evidence import RunEvidence
from harness.judging.verdict import Verdict

ALLOWED = math.exp(0.0275)  # what noise common to a measurement may add
JUST = 1e-9
TWICE = {"measurements": 2}
TWELVE = {"processes": 12}
NOISY = [1.0, 1.15, 0.85, 1.1, 0.9, 1.2, 0.8, 1.0]
SLOWER = 1.7  # a step beside a busy sibling of its processor


def level(ratio: float, *others: float, of: int = 12) -> Verdict:
    """Return the verdict on processes with steady blocks at one ratio; the last processes have the ratios `others`."""
    each = [ratio] * (of - len(others)) + list(others)
    runs = [timed_run(index, [0.01] * 4, [0.01 * one] * 4) for index, one in enumerate(each)]
    return timed(runs, {"processes": of})


def disturbed(ratio: float, *, candidate: Sequence[int] = (), baseline: Sequence[int] = (), blocks: int = 8) -> Verdict:
    """Return the verdict if these blocks of an arm are disturbed in all processes."""
    ours, theirs = (
        [step * (SLOWER if block in slow else 1.0) for block in range(blocks)]
        for step, slow in ((0.01, candidate), (0.01 * ratio, baseline))
    )
    return timed([timed_run(index, ours, theirs) for index in range(8)], {"blocks": blocks})


def stalling(
    ratio: float, longer: float, *, theirs: float = 1.0, processes: Sequence[int] = tuple(range(8))
) -> Verdict:
    """Return the verdict if the candidate's third block takes `longer` times as long in these processes.

    theirs: the factor for the baseline's third block.
    """
    return timed(stalled(ratio, longer, theirs, processes), {"blocks": 8})


def stalled(
    ratio: float, longer: float, theirs: float = 1.0, processes: Sequence[int] = tuple(range(8))
) -> list[RunEvidence]:
    runs = []
    for index in range(8):
        ours, others = [0.01] * 8, [0.01 * ratio] * 8
        if index in processes:
            ours[2], others[2] = 0.01 * longer, 0.01 * ratio * theirs
        runs.append(timed_run(index, ours, others))
    return runs


def stalling_twice(first: float = 1.0, second: float = 1.0) -> Verdict:
    """Return the verdict on two measurements in which a block takes so much longer in each process."""
    return measured(stalled(1.5, first), stalled(1.5, second))


def clocked(run: RunEvidence, process: int, began: float) -> RunEvidence:
    """Return the run as this process, with blocks one after the other from the time `began` on."""
    assert run.timing is not None
    blocks = []
    for block in run.timing.blocks:
        blocks.append(block.model_copy(update={"began": began}))
        began += block.seconds
    return numbered(replace(run, timing=run.timing.model_copy(update={"blocks": blocks})), process)


def end_of(run: RunEvidence) -> float:
    assert run.timing is not None
    return max(block.seconds + (block.began or 0.0) for block in run.timing.blocks)


def measured(first: Sequence[RunEvidence], second: Sequence[RunEvidence], *, pause: float = 60.0) -> Verdict:
    """Return the verdict on two measurements; the second begins `pause` seconds after the end of the first."""
    runs: list[RunEvidence] = []
    for run in (*first, *second):
        after = 0.0 if not runs else end_of(runs[-1]) + (pause if len(runs) == len(first) else 0.0)
        runs.append(clocked(run, len(runs), after))
    return timed(runs, TWICE | {"processes": len(first)})


def unclocked() -> Verdict:
    """Return the verdict on two measurements whose blocks have no start times."""
    return timed([*processes(1.2), *(numbered(run, 8 + index) for index, run in enumerate(processes(1.2)))], TWICE)


def numbered(run: RunEvidence, process: int) -> RunEvidence:
    assert run.timing is not None
    return replace(run, timing=run.timing.model_copy(update={"process": process}))


def slow(count: int) -> list[RunEvidence]:
    """Return twelve processes with a ratio of 1.2, except for `count` with a ratio of 1."""
    spread = [*PROCESSES, *PROCESSES[:4]]
    return processes(1.2, [*spread[count:], *[1 / 1.2] * count])


RATIOS: dict[str, list[Case]] = {
    "throughput_ratio": [
        Case("above by just what is allowed for common noise", "held", lambda: level(1.1 * ALLOWED * (1 + JUST))),
        Case("above by just less", "undecided_ratio", lambda: level(1.1 * ALLOWED * (1 - JUST))),
        Case("below by just less", "undecided_ratio", lambda: level(1.1 / ALLOWED * (1 + JUST))),
        Case("below by just more", "too_slow", lambda: level(1.1 / ALLOWED * (1 - JUST))),
        Case("noisy", "undecided_ratio", lambda: timed(processes(1.2, NOISY))),
        Case("one slow process of twelve", "held", lambda: timed(slow(1), TWELVE)),
        Case("one slow process of eight", "undecided_ratio", lambda: level(1.2, 1.09, of=8)),
        Case("two slow processes of twelve", "undecided_ratio", lambda: timed(slow(2), TWELVE)),
        Case("a second one just at the demanded ratio", "held", lambda: level(1.2, 1.0, 1.1 * (1 + JUST))),
        Case("a second one just below it", "undecided_ratio", lambda: level(1.2, 1.0, 1.1 * (1 - JUST))),
        Case("one fast process", "undecided_ratio", lambda: level(1.11, 1.3)),
        Case("one fast process among slow ones", "too_slow", lambda: level(1.0, 1.3, of=8)),
        Case(
            "baselines slower by different amounts",
            "held",
            lambda: level(1.1 * ALLOWED * (1 + JUST), 3.0, 9.0, 2.0, 1.5, of=8),
        ),
        Case(
            "the same, and one reaches just less",
            "undecided_ratio",
            lambda: level(1.1 * ALLOWED * (1 - JUST), 3.0, 9.0, 2.0, 1.5, of=8),
        ),
        Case(
            "the baseline disturbed in most blocks",
            "undecided_ratio",
            lambda: disturbed(1.0, baseline=(0, 2, 3, 5, 7)),
        ),
        Case(
            "the candidate disturbed in most blocks",
            "undecided_ratio",
            lambda: disturbed(1.2, candidate=(0, 2, 3, 5, 7)),
        ),
        Case(
            "the candidate slow in three of four blocks",
            "undecided_ratio",
            lambda: disturbed(1.2, candidate=(0, 1, 2), blocks=4),
        ),
        Case("either arm disturbed now and then", "held", lambda: disturbed(1.4, candidate=(1, 6), baseline=(2, 3))),
        Case(
            "the same, and all of the candidate's seconds do not reach it",
            "candidate_stalls",
            lambda: disturbed(1.2, candidate=(1, 6), baseline=(2, 3)),
        ),
        Case("one block in eight ten times as long", "candidate_stalls", lambda: stalling(1.5, 10.0)),
        Case("so much longer that all reach it", "held", lambda: stalling(1.5, 1 + 8 * (1.5 / 1.1 - 1) * (1 - JUST))),
        Case("by just more", "candidate_stalls", lambda: stalling(1.5, 1 + 8 * (1.5 / 1.1 - 1) * (1 + JUST))),
        Case("a process that stalls, among eight", "candidate_stalls", lambda: stalling(1.2, 10.0, processes=[5])),
        Case("baselines that stall as long", "candidate_stalls", lambda: stalling(1.5, 10.0, theirs=10.0)),
        Case("stalls of the second measurement", "candidate_stalls", lambda: stalling_twice(second=10.0)),
        Case("stalls of the first measurement", "candidate_stalls", lambda: stalling_twice(first=10.0)),
        Case("a second measurement", "held", lambda: measured(processes(1.2), processes(1.2))),
        Case("one slow process in each measurement", "held", lambda: measured(slow(1), slow(1))),
        Case("two slow in the second measurement", "undecided_ratio", lambda: measured(slow(0), slow(2))),
        Case("the second measurement near", "undecided_ratio", lambda: measured(processes(1.2), processes(1.1))),
        Case("the first measurement near", "undecided_ratio", lambda: measured(processes(1.1), processes(1.2))),
        Case("the measurements disagree", "undecided_ratio", lambda: measured(processes(1.2), processes(1.0))),
        Case("both measurements slow", "too_slow", lambda: measured(processes(1.0), processes(1.01))),
        Case("the second begins as the first ends", "held", lambda: measured(slow(0), slow(0), pause=0.0)),
        Case("the second begins too early", "measurements_overlap", lambda: measured(slow(0), slow(0), pause=-0.001)),
        Case("no second measurement", "evidence_missing", lambda: measured(processes(1.2), [])),
        Case("half a second measurement", "evidence_missing", lambda: measured(processes(1.2), processes(1.2)[:4])),
        Case("when they were measured is unknown", "evidence_missing", unclocked),
    ]
}

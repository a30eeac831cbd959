"""Provide the functions that the judges of both kinds about ranks use. The functions return executions by rank and the
records of each rank's steps, and check which rows of a batch each rank read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from harness.evidence.arm_records import RankSteps
from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.judging import reasons
from harness.judging.context import end_of, executed
from harness.judging.end_state import differing
from harness.judging.sheet import Sheet, number, settle, some

# Smallest number of different rows of a batch that a rank must read in an average step, as a share of an expected
# number. The expected number is how many rows would be different if the rank drew its rows at random.
FEWEST_ROWS = 0.75
# A rank fails only if its number of different rows is also more than this many standard deviations below the expected
# number. Otherwise a rank with few steps could fail by chance.
DEVIATIONS = 3.0
FEWEST_WHOLE = 0.5  # smallest share of steps in which ranks must read a whole batch; an epoch's last one may be smaller
# Smallest number of different shares of batches that each rank must read, as a fraction of the largest number that one
# rank read.
FEWEST_SHARES = 0.5


def of_ranks(run: RunEvidence, arm: str, ranks: int) -> dict[int, ArmEvidence]:
    """Return an arm's first execution in each rank. End the judgement with ERROR if an execution is missing or
    incomplete, or has records that contradict each other."""
    views = (run, *run.ranks)
    if len(views) < ranks:
        settle(reasons.EVIDENCE_MISSING, f"there is evidence of {len(views)} ranks, but arm {arm} has {ranks}")
    for rank, view in enumerate(views[:ranks]):
        if view.death is not None:
            settle(f"worker_{view.death.cause}", f"rank {rank} of {ranks}: {view.death.detail}")
    return {rank: executed(view, arm) for rank, view in enumerate(views[:ranks])}


def rank_steps(executions: Mapping[int, ArmEvidence]) -> dict[int, RankSteps]:
    """Return the record of all steps of each rank. End the judgement with ERROR if a record is missing or
    incomplete."""
    found = {}
    for rank, execution in executions.items():
        noted, steps = execution.rank_steps, len(execution.series.loss)
        if noted is None:
            settle(reasons.EVIDENCE_MISSING, f"the steps of rank {rank} of arm {execution.start.arm} were not recorded")
        lengths = [len(noted.parameters) - 1, len(noted.rows), len(noted.collectives)]
        if lengths != [steps] * 3:
            settle(
                reasons.EVIDENCE_INCONSISTENT, f"rank {rank} made {steps} steps, but its records have lengths {lengths}"
            )
        found[rank] = noted
    return found


def named(executions: Mapping[int, ArmEvidence]) -> dict[str, ArmEvidence]:
    """Return the executions of an arm's ranks by the names that messages use."""
    return {f"rank {rank} of {execution.start.arm}": execution for rank, execution in executions.items()}


def buffers_apart(executions: Mapping[int, ArmEvidence], sheet: Sheet) -> str:
    """Return, as text, the names of the model's buffers, such as running statistics, that differ between ranks at the
    end. Return "" if no buffers differ."""
    first, *others = (end_of(execution).state for execution in executions.values())
    found = {
        each.name
        for state in others
        if state is not None and first is not None
        for each in differing(state, first)
        if each.category == "buffers"
    }
    if found:
        sheet.figure("buffers_apart", some(sorted(found)))
    return some(sorted(found)) if found else ""


def odd_one(digests: Sequence[str]) -> int | None:
    """Return the last rank whose digest is not the most frequent digest. Return None if all digests are equal. If
    several digests are equally frequent, the digest of rank 0 counts as the most frequent digest."""
    common = max(digests, key=lambda digest: (digests.count(digest), digest == digests[0]))
    return next((rank for rank in reversed(range(len(digests))) if digests[rank] != common), None)


def readers(steps: Mapping[int, RankSteps], model_parallel: int, sheet: Sheet) -> dict[int, RankSteps]:
    """Return the record of one rank for each copy of the model: of each rank whose number is a multiple of
    `model_parallel`. Each group of `model_parallel` ranks holds one model and reads the same rows. End the judgement
    with FAIL if the ranks of a group read different rows."""
    first = {rank: noted for rank, noted in steps.items() if rank % model_parallel == 0}
    for rank, noted in steps.items():
        reader = rank - rank % model_parallel
        apart = [
            step
            for step, pair in enumerate(zip(noted.rows, first[reader].rows, strict=True))
            if len({*map(tuple, pair)}) > 1
        ]
        if apart:
            sheet.figure("rank", rank)
            sheet.figure("first_unequal_step", apart[0], "step")
            settle(
                reasons.UNEQUAL_BATCHES,
                f"at step {apart[0]}, rank {rank} and rank {reader} read different rows, although they hold parts of "
                "one model",
            )
    return first


# Data may contain equal rows or equal batches, and this is not an error of a rank. Therefore the following checks
# compare the rows of a rank in one step with its rows in all steps, and with the rows of the other ranks.


def require_own_rows(steps: Mapping[int, RankSteps], sheet: Sheet) -> None:
    """End the judgement with FAIL if two ranks read the same row in one step."""
    for step, rows in enumerate(zip(*(noted.rows for noted in steps.values()), strict=True)):
        readers: dict[str, int] = {}
        for rank, read in enumerate(rows):
            if not read:
                settle(reasons.CAPABILITY_MISSING, f"the inputs of rank {rank} have no rows")
            for row in read:
                if readers.setdefault(row, rank) != rank:
                    sheet.figure("first_equal_step", step, "step")
                    sheet.figure("rank", rank)
                    settle(
                        reasons.RANK_BATCHES_EQUAL,
                        f"at step {step}, rank {rank} read a row that rank {readers[row]} also read",
                    )


def require_whole_shares(steps: Mapping[int, RankSteps], batch_size: int, sheet: Sheet) -> None:
    """End the judgement with FAIL if a rank read too few or too many rows, repeated rows within steps, or read the same
    rows in all steps. Leave the claim undecided if too few steps show whole shares of a batch."""
    _require_counts(steps, batch_size, sheet)
    for rank, noted in steps.items():
        seen, drawn, noise = _different(noted.rows)
        if drawn - seen > max((1 - FEWEST_ROWS) * drawn, DEVIATIONS * noise):
            sheet.figure("rank", rank)
            settle(
                reasons.VACUOUS_BATCHES_REPEAT,
                f"rank {rank} read {number(seen)} different rows per step on average, but as many random draws from "
                f"all its rows would give {number(drawn)}",
            )
    distinct = {rank: len({tuple(rows) for rows in noted.rows}) for rank, noted in steps.items()}
    fewest = min(distinct, key=lambda rank: distinct[rank])
    made, most = len(steps[fewest].rows), max(distinct.values())
    if distinct[fewest] < min(made, max(2, FEWEST_SHARES * most)):
        sheet.figure("rank", fewest)
        sheet.figure("distinct_batches", distinct[fewest], "batches")
        settle(
            reasons.VACUOUS_BATCHES_REPEAT,
            f"rank {fewest} read {distinct[fewest]} different shares in {made} steps, but another rank read {most}",
        )


def _require_counts(steps: Mapping[int, RankSteps], batch_size: int, sheet: Sheet) -> None:
    """End the judgement with FAIL if a rank read too few or too many rows in a step. In a step, all ranks together may
    read a smaller or larger batch than the workload states. If most batches are smaller, leave the claim undecided,
    because a trainer that packs several rows into one row seems to miss rows."""
    fewest, most = batch_size // len(steps), -(-batch_size // len(steps))
    whole, made = 0, 0
    for step, rows in enumerate(zip(*(noted.rows for noted in steps.values()), strict=True)):
        counts = dict(zip(steps, map(len, rows), strict=True))
        least, largest = min(counts, key=counts.__getitem__), max(counts, key=counts.__getitem__)
        is_whole = counts[largest] >= fewest
        whole, made = whole + is_whole, made + 1
        if counts[least] < counts[largest] - 1 or (is_whole and counts[least] < fewest):
            odd = largest if counts[least] >= fewest else least
            sheet.figure("rank", odd)
            sheet.figure("first_unequal_step", step, "step")
            settle(
                reasons.RANK_ROW_COUNT,
                f"at step {step}, rank {odd} read {counts[odd]} rows, but its share of a batch of {batch_size} is "
                f"{most} rows (rows are counted along the first dimension of the inputs)",
            )
    if whole < FEWEST_WHOLE * made:
        sheet.leave_open(
            reasons.RANK_SHARE_UNSEEN,
            f"in {made - whole} of {made} steps, every rank showed fewer rows than its share of a batch of "
            f"{batch_size}, which is {most} rows",
        )


def _different(steps: Sequence[Sequence[str]]) -> tuple[float, float, float]:
    """Return three numbers for a rank's rows. The first is the mean number of different rows in a step. The second is
    the number that is expected for random draws from all of the rank's rows. The third is an upper bound on the
    standard deviation of the mean number for such draws.

    Of n draws from v rows, v (1 - (1 - 1/v)^n) are expected to be different. The variance is at most n/4 (Efron-Stein),
    because one draw changes the number by at most 1.
    """
    of_all = len({row for rows in steps for row in rows})
    if not of_all:
        return 0.0, 0.0, 0.0
    seen = sum(len(set(rows)) for rows in steps) / len(steps)
    drawn = sum(of_all * (1 - (1 - 1 / of_all) ** len(rows)) for rows in steps) / len(steps)
    return seen, drawn, math.sqrt(sum(map(len, steps)) / 4) / len(steps)

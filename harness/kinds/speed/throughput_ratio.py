"""Judge `throughput_ratio`: the candidate's steps per second are at least `at_least` times the baseline's.

There are two preconditions. In each process, both arms must have trained in the same way, and the machine must have
been quiet. If both hold, the ratios of all processes decide (`harness.judging.statistics`).
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import NoReturn

from harness.judging import reasons, statistics
from harness.judging.comparison import Comparison
from harness.judging.context import Context, executed
from harness.judging.own_noise import require_timed_within_noise
from harness.judging.random_numbers import drew_otherwise
from harness.judging.sheet import Settled, Sheet, number, settle
from harness.judging.statistics import Reading
from harness.judging.verdict import Judgement
from harness.kinds.speed.disturbances import (
    require_busy_baseline,
    require_no_clock_advantage,
    require_no_untimed_work,
    require_quiet_machine,
    require_sound_clock,
    require_unhindered_host,
)
from harness.kinds.speed.model import ThroughputRatio
from harness.kinds.speed.speed_figures import (
    measured,
    median_seconds,
    note_processes,
    note_ratios,
    ratio_demanded,
    readings,
    require_apart,
    undecided,
)
from harness.kinds.speed.timing import (
    Counted,
    Process,
    counted,
    require_declared_baseline,
    require_launches,
    require_one_after_another,
    require_profiled,
)
from harness.kinds.trajectory.model import TrajectoryMatch
from harness.kinds.trajectory.repeatability import named_trajectory, require_equal_training

ANSWERS = {1: "proves it", 0: "decides nothing", -1: "refutes it"}


def judge(part: ThroughputRatio, context: Context, sheet: Sheet) -> Judgement:
    """Return the judgement of a claim. The checks are made in this order: every process timed equal training, the
    machine was quiet, the ratios."""
    processes = _processes(part, context)
    sheet.count("processes", len(processes))
    trajectory = named_trajectory(part.trajectory, context)
    comparison = Comparison(part, context, sheet)
    try:
        for process in processes:
            _require_equal_training(part, trajectory, context, process, comparison, sheet)
        if trajectory.equality == "noise":
            candidates = [executed(each.run, part.candidate) for each in processes]
            baselines = [executed(each.run, part.baseline) for each in processes]
            require_timed_within_noise(candidates, baselines, part.candidate, part.baseline)
    except Settled as settled:
        # If the arms drew different random numbers, both arms may still be correct. Therefore report their speeds in
        # this case, too.
        if drew_otherwise(settled.reason, part, context) is not None:
            with suppress(Settled):
                _noted_ratios(part, processes, sheet)
        raise
    timed, cautious, generous = _noted_ratios(part, processes, sheet)
    timings = [process.timing for process in processes]
    # Check for untimed work before the machine's load. Untimed work also increases the load, and would be reported as
    # load.
    require_no_untimed_work(timings, sheet)
    spread = require_quiet_machine(part.limits, processes, sheet)
    require_apart(part, timings)
    require_one_after_another(timings)
    require_sound_clock([(each.timing, each.run.telemetry) for each in processes])
    require_busy_baseline(timings, part.baseline, part.limits.baseline_idle_share, sheet)
    if part.measure == "enqueue":
        require_unhindered_host(timings, part.baseline, median_seconds(timed, "baseline"), sheet)
    answer = _answer(part, timed, cautious, generous, sheet)
    limit = part.limits.clock_advantage
    if limit is not None and spread > limit:
        winner, loser = (part.candidate, part.baseline) if answer > 0 else (part.baseline, part.candidate)
        clocked = [(each.timing, each.run.telemetry) for each in processes if each.run.telemetry is not None]
        require_no_clock_advantage(winner, loser, limit, clocked, sheet)
    if answer < 0:
        note_processes(timed, generous, sheet)
        sheet.holds(ratio_demanded(part, "generous_mean_ratio", cautious, generous))
        settle(reasons.TOO_SLOW, f"{measured(part, timed, generous)}, but {number(part.at_least)} is required")
    return comparison.held(f"{measured(part, timed, cautious)}; at least {number(part.at_least)} is required")


def _noted_ratios(part: ThroughputRatio, processes: list[Process], sheet: Sheet) -> tuple[Counted, Reading, Reading]:
    """Return the processes that count, and two readings of their times: against the candidate (cautious), and in its
    favour (generous). Add the ratios to the verdict's figures (`sheet`)."""
    require_profiled(part, processes, sheet)
    timed = counted(part, processes, sheet)
    sheet.count("blocks", sum(each.candidate.size + each.baseline.size for each in timed.times))
    cautious, generous = readings(timed.times)
    note_ratios(part, timed, cautious, generous, sheet)
    return timed, cautious, generous


def _processes(part: ThroughputRatio, context: Context) -> list[Process]:
    """Return the first run of each process, sorted by the process's number. End the judgement with ERROR if a required
    process is missing."""
    found: dict[int, Process] = {}
    for run in context.sound_runs("throughput"):
        timing = run.timing
        if timing is None:
            settle(reasons.EVIDENCE_MISSING, f"run {run.run_id} has no timings")
        if (timing.candidate, timing.baseline) == (part.candidate, part.baseline):
            found.setdefault(timing.process, Process(run, timing))
    demanded = part.process_count()
    missing = [process for process in range(demanded) if process not in found]
    if missing:
        settle(reasons.EVIDENCE_MISSING, f"only {demanded - len(missing)} of {demanded} processes were timed")
    return [found[process] for process in range(demanded)]


def _require_equal_training(
    part: ThroughputRatio,
    trajectory: TrajectoryMatch,
    context: Context,
    process: Process,
    comparison: Comparison,
    sheet: Sheet,
) -> None:
    """End the judgement unless both arms of a process had equal starts, equal batches, and losses that satisfy the
    claim `trajectory`, and each step that replays a capture launched its graphs."""
    run, timing = process
    candidate, baseline = executed(run, part.candidate), executed(run, part.baseline)
    require_launches(part, context, process, candidate, sheet)
    ours, theirs = (f"{name} in process {timing.process}" for name in (part.candidate, part.baseline))
    named = {theirs: baseline, ours: candidate}
    nothing = f"process {timing.process} recorded no loss of a timed step"
    same_system = context.same_system(part.candidate, part.baseline)
    require_equal_training(trajectory, named, comparison, sheet, nothing=nothing, same_system=same_system)
    require_declared_baseline(part, context, process, baseline)
    for name, execution in ((part.candidate, candidate), (part.baseline, baseline)):
        timed = sum(block.steps for block in timing.blocks if block.arm == name)
        if len(execution.series.loss) < timed:
            settle(
                reasons.EVIDENCE_INCONSISTENT,
                f"process {timing.process} timed {timed} steps of {name}, but recorded {len(execution.series.loss)}",
            )


def _answer(part: ThroughputRatio, timed: Counted, cautious: Reading, generous: Reading, sheet: Sheet) -> int:
    """Return 1 if the measured ratios prove the demanded ratio, -1 if they refute it. Otherwise end the judgement with
    INCONCLUSIVE."""
    demanded = math.log(part.at_least)
    fewest = statistics.fewest_processes(part.confidence)
    if part.processes < fewest:
        sheet.figure("processes_to_decide", fewest, "processes")
        settle(
            reasons.TOO_FEW_PROCESSES,
            f"{part.processes} processes cannot reach a confidence of {part.confidence:g}; use at least {fewest}",
        )
    answer = int(statistics.decide(cautious, generous, demanded, part.confidence, timed.sizes))
    if answer == 0:
        _require_no_stalls(part, timed, cautious, demanded, sheet)
        _settle_undecided(part, timed, cautious, generous, demanded, sheet)
    return answer


def _require_no_stalls(part: ThroughputRatio, timed: Counted, cautious: Reading, demanded: float, sheet: Sheet) -> None:
    """End the judgement with INCONCLUSIVE if typical blocks prove the ratio, but all blocks together do not reach it.

    Slow blocks count in the candidate's time, except those that were slow because of a slow processor. The cause of the
    others (stalls) is unknown, so stalls do not refute the ratio.
    """
    if not statistics.stalls(cautious, demanded, part.confidence, timed.sizes):
        return
    parts = cautious.of_measurements(timed.sizes)
    sustained = math.exp(min(float(statistics.sustained(one, part.confidence)) for one in parts))
    sheet.figure("sustained_ratio", sustained, "x")
    settle(
        reasons.CANDIDATE_STALLS,
        f"{measured(part, timed, cautious)} in its typical block, but {sustained:.3f} times as fast over all of its "
        f"blocks, because some blocks take far longer; {number(part.at_least)} is required",
    )


def _settle_undecided(
    part: ThroughputRatio, timed: Counted, cautious: Reading, generous: Reading, demanded: float, sheet: Sheet
) -> NoReturn:
    """End the judgement with INCONCLUSIVE. The message contains each measurement's result. Add to the verdict's figures
    (`sheet`) how many processes would probably be enough for a decision."""
    parts = (each.of_measurements(timed.sizes) for each in (cautious, generous))
    needed: list[int | None] = []
    answers = []
    for measurement, (low, high) in enumerate(zip(*parts, strict=True)):
        answer = int(statistics.decide(low, high, demanded, part.confidence))
        answers.append(f"measurement {measurement} {ANSWERS[answer]}")
        if answer == 0:
            needed.append(statistics.processes_to_decide(low, high, demanded, part.confidence))
    most = None if None in needed else max((number for number in needed if number is not None), default=None)
    sheet.figure("processes_to_decide", most, "processes")
    alone = f"; {', '.join(answers)}" if part.measurements > 1 else ""
    settle(reasons.UNDECIDED_RATIO, f"{undecided(part, timed, cautious, generous)}{alone}")

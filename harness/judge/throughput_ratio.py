"""`throughput_ratio`: the candidate's steps per second are at least `at_least` times the baseline's.

First each process must have timed the same training in both arms; then the machine must have been quiet; only then
do the ratios decide (`statistics`).
"""

from __future__ import annotations

import math

import numpy as np

from harness.contract.claims import parts_of
from harness.contract.kinds.throughput import ThroughputRatio
from harness.contract.kinds.training import TrajectoryMatch
from harness.judge import reasons, statistics
from harness.judge.clocks import require_no_clock_advantage
from harness.judge.context import Context, executed
from harness.judge.end_state import note_watched, require_equal_ends, require_finite_end, require_recorded
from harness.judge.guards import require_trained
from harness.judge.idle import require_busy_baseline
from harness.judge.machine import require_quiet_machine
from harness.judge.series import difference, losses, require_comparable, require_equal, require_finite
from harness.judge.sheet import Sheet, number, settle
from harness.judge.sound_clock import require_sound_clock
from harness.judge.timed_launches import Process, require_launches, require_profiled, require_uncaptured_baseline
from harness.judge.timing import StepTimes, step_times
from harness.judge.verdict import Judgement


def judge(part: ThroughputRatio, context: Context, sheet: Sheet) -> Judgement:
    """Order: every process timed equal training, the machine was quiet, the ratios."""
    processes = _processes(part, context)
    sheet.count("processes", len(processes))
    trajectory = _trajectory(part, context)
    for process in processes:
        _require_equal_training(part, trajectory, context, process, sheet)
    require_profiled(part, processes, sheet)
    times = [step_times(process.timing, part) for process in processes]
    sheet.count("blocks", sum(each.candidate.size + each.baseline.size for each in times))
    log_ratios = np.array([statistics.log_ratio(each.baseline.ravel(), each.candidate.ravel()) for each in times])
    self_logs = np.stack([np.array([each.self_logs() for each in times])[:, arm] for arm in (0, 1)])
    _note(part, processes, times, log_ratios, self_logs, sheet)
    spread = require_quiet_machine(part.limits, processes, sheet)
    timings = [process.timing for process in processes]
    require_sound_clock([(each.timing, each.run.telemetry) for each in processes])
    require_busy_baseline(timings, part.baseline, part.limits.baseline_idle_share, sheet)
    answer = _answer(part, log_ratios, self_logs, sheet)
    limit = part.limits.clock_advantage
    if limit is not None and spread > limit:
        _require_fair_clocks(part, answer, limit, processes, sheet)
    decision = _decision(part, answer, log_ratios, sheet)
    for process in processes:
        arms = (part.candidate, part.baseline)
        require_recorded({f"{arm} in process {process.timing.process}": executed(process.run, arm) for arm in arms})
    return decision


def _processes(part: ThroughputRatio, context: Context) -> list[Process]:
    """The first attempt of each process, in the order of their numbers."""
    found: dict[int, Process] = {}
    for run in context.sound_runs("throughput"):
        timing = run.timing
        if timing is None:
            settle(reasons.EVIDENCE_MISSING, f"run {run.run_id} has no timings")
        if (timing.candidate, timing.baseline) == (part.candidate, part.baseline):
            found.setdefault(timing.process, Process(run, timing))
    if len(found) < part.processes:
        settle(reasons.EVIDENCE_MISSING, f"{len(found)} of {part.processes} processes were timed")
    return [found[number] for number in sorted(found)][: part.processes]


def _trajectory(part: ThroughputRatio, context: Context) -> TrajectoryMatch:
    named = [claim for claim in context.contract.claims if claim.id == part.trajectory]
    found = [each for claim in named for each in parts_of(claim) if isinstance(each, TrajectoryMatch)]
    if not found:
        settle(reasons.EVIDENCE_MISSING, f"the contract has no trajectory_match claim {part.trajectory}")
    return found[0]


def _require_equal_training(
    part: ThroughputRatio, trajectory: TrajectoryMatch, context: Context, process: Process, sheet: Sheet
) -> None:
    """The timed steps of one process: equal start and work, equal losses, one launch a captured step."""
    run, timing = process
    candidate, baseline = executed(run, part.candidate), executed(run, part.baseline)
    require_launches(part, context, process, candidate, sheet)
    ours, theirs = (f"{name} in process {timing.process}" for name in (part.candidate, part.baseline))
    named = {theirs: baseline, ours: candidate}
    require_finite(named, sheet)
    require_comparable(named, sheet)
    tolerance = trajectory.max_abs_difference
    found = difference(losses(candidate), losses(baseline), trajectory.compare, tolerance)
    if found.steps == 0:
        settle(reasons.VACUOUS_STEPS, f"process {timing.process} recorded no loss of a timed step")
    require_equal(found, trajectory.equality, tolerance, f"{ours} and {theirs}")
    for name, execution in named.items():
        require_trained(name, execution)
    note_watched(named, sheet)
    require_finite_end(named, sheet)
    if trajectory.equality == "bitwise":
        require_equal_ends(named, sheet)
    require_uncaptured_baseline(part, context, process)
    for name, execution in ((part.candidate, candidate), (part.baseline, baseline)):
        timed = sum(block.steps for block in timing.blocks if block.arm == name)
        if len(execution.series.loss) < timed:
            settle(
                reasons.EVIDENCE_INCONSISTENT,
                f"process {timing.process} timed {timed} steps of {name} and recorded {len(execution.series.loss)}",
            )


def _note(
    part: ThroughputRatio,
    processes: list[Process],
    times: list[StepTimes],
    log_ratios: statistics.Array,
    self_logs: statistics.Array,
    sheet: Sheet,
) -> None:
    lower, upper = statistics.one_sided_bounds(log_ratios, part.confidence)
    sheet.figure("mean_ratio", math.exp(log_ratios.mean()), "x")
    sheet.figure("lower_bound", math.exp(lower), "x")
    sheet.figure("upper_bound", math.exp(upper), "x")
    sheet.figure("demanded_ratio", part.at_least, "x")
    sheet.figure("missed_bias", math.exp(statistics.missed_bias(self_logs)), "x")
    sheet.figure("log_ratio_deviation", float(log_ratios.std(ddof=1)))
    for arm, logs in zip(("candidate", "baseline"), self_logs, strict=True):
        low, high = statistics.self_intervals(logs)
        sheet.figure(f"self_ratio_{arm}_low", math.exp(low), "x")
        sheet.figure(f"self_ratio_{arm}_high", math.exp(high), "x")
        seconds = float(np.median([np.median(getattr(each, arm)) for each in times]))
        sheet.figure(f"{arm}_step_ms", 1000 * seconds, "ms")
    for process, value in zip(processes, log_ratios, strict=True):
        sheet.figure(f"ratio.process_{process.timing.process}", math.exp(value), "x")


def _answer(part: ThroughputRatio, log_ratios: statistics.Array, self_logs: statistics.Array, sheet: Sheet) -> int:
    """1 for the candidate, -1 for the baseline. Settles INCONCLUSIVE when the ratios decide nothing."""
    demanded = math.log(part.at_least)
    fewest = statistics.fewest_processes(part.confidence)
    processes = len(log_ratios)
    if processes < fewest:
        sheet.figure("processes_to_decide", fewest, "processes")
        settle(
            reasons.TOO_FEW_PROCESSES,
            f"{processes} processes cannot reach a confidence of {part.confidence:g}; at least {fewest} can",
        )
    answer = int(statistics.decide(log_ratios, self_logs, demanded, part.confidence))
    if answer == 0:
        needed = statistics.processes_to_decide(log_ratios, self_logs, demanded, part.confidence)
        sheet.figure("processes_to_decide", needed, "processes")
        remedy = (
            f"about {needed} processes would probably decide it" if needed else "more processes would not decide it"
        )
        measured = _measured(part, log_ratios)
        settle(reasons.UNDECIDED_RATIO, f"{measured}, too close to {number(part.at_least)} to decide; {remedy}")
    return answer


def _require_fair_clocks(
    part: ThroughputRatio, answer: int, limit: float, processes: list[Process], sheet: Sheet
) -> None:
    """The contract lets the clock move further than it may favour anybody: whom it favoured."""
    winner, loser = (part.candidate, part.baseline) if answer > 0 else (part.baseline, part.candidate)
    timed = [(each.timing, each.run.telemetry) for each in processes if each.run.telemetry is not None]
    require_no_clock_advantage(winner, loser, limit, timed, sheet)


def _decision(part: ThroughputRatio, answer: int, log_ratios: statistics.Array, sheet: Sheet) -> Judgement:
    measured = _measured(part, log_ratios)
    if answer < 0:
        settle(reasons.TOO_SLOW, f"{measured}, and {number(part.at_least)} is demanded")
    return sheet.held(f"{measured}; at least {number(part.at_least)} is demanded")


def _measured(part: ThroughputRatio, log_ratios: statistics.Array) -> str:
    mean, low, high = (float(math.exp(value)) for value in (log_ratios.mean(), log_ratios.min(), log_ratios.max()))
    return (
        f"{part.candidate} is {mean:.3f} times as fast as {part.baseline} "
        f"({low:.3f} to {high:.3f} over {len(log_ratios)} processes)"
    )

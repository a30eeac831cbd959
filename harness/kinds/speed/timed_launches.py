"""Check that every process of a timing saw its graph launches, and at least one saw what the device did under them.

A process either was profiled, in untimed blocks, or counted the launches of the timed ones. What a profiled process
shows of the device holds for the others, as long as they captured the same graphs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from harness.evidence.arm_records import GraphNodes
from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.evidence.run_records import TimingEvidence
from harness.judging import reasons
from harness.judging.context import Context, executed
from harness.judging.launched import graphs_per_step, uncounted
from harness.judging.sheet import Sheet, settle
from harness.kinds.speed.model import ThroughputRatio


class Process(NamedTuple):
    """One process of the comparison."""

    run: RunEvidence
    timing: TimingEvidence

    @property
    def profiled(self) -> bool:
        return self.timing.observed_steps > 0

    @property
    def name(self) -> str:
        return f"process {self.timing.process}"


class _Look(NamedTuple):
    """Graph launches seen in some steps; None: not looked for."""

    launches: int | None
    steps: int


def require_launches(
    part: ThroughputRatio, context: Context, process: Process, candidate: ArmEvidence, sheet: Sheet
) -> None:
    """Settle unless a candidate that claims to be captured launches its graphs once a step, as the harness saw it."""
    demanded, capture = context.mechanism(part), candidate.capture
    if capture is not None and capture.mechanism == "traced":
        settle(reasons.MECHANISM_MISSING, "a traced replay decides nothing about speed")
    if context.contract.arms[part.candidate].capture == "none" and demanded is None:
        return
    looks = _looks(process, part.candidate)
    if not any(look.launches for look in looks) or (capture is not None and not capture.captured):
        settle(
            reasons.CANDIDATE_NOT_CAPTURED,
            f"arm {part.candidate} launched no graph in {process.name}: its step was not captured",
        )
    if capture is None or not capture.nodes:
        settle(
            reasons.EVIDENCE_MISSING, f"the graphs that {part.candidate} captured in {process.name} were not counted"
        )
    sheet.mechanism = "cuda_graph"
    for look in looks:
        needed = look.steps * graphs_per_step(capture)
        if look.launches != needed:
            where = "steps" if process.profiled else f"steps of a timed block of {part.candidate}"
            settle(
                reasons.LAUNCHES_DIFFER,
                f"{process.name} saw {look.launches} graph launches in {look.steps} {where}, which need {needed}",
            )
    bounds = context.outside_bounds(part.candidate)
    found = uncounted(part.candidate, capture, bounds, None) if process.profiled else None
    if found is not None:
        settle(found.reason, f"{process.name}: {found.message}")


def require_declared_baseline(part: ThroughputRatio, context: Context, process: Process, baseline: ArmEvidence) -> None:
    """Settle unless a baseline declared uncaptured launches no graph, and a captured one its graphs once a step: one
    that ran uncaptured instead is slower than what was to be beaten. Its work outside its graphs is not limited.
    """
    named = f"{part.baseline} in {process.name}"
    looks = _looks(process, part.baseline)
    if any(look.launches is None for look in looks):
        settle(reasons.LAUNCHES_UNOBSERVED, f"whether {named} launched graphs was not observed")
    launches, steps = sum(look.launches or 0 for look in looks), sum(look.steps for look in looks)
    if context.contract.arms[part.baseline].capture == "none":
        if launches:
            settle(reasons.VACUOUS_BASELINE_CAPTURED, f"{named}, declared uncaptured, launched {launches} graphs")
        return
    capture = baseline.capture
    if capture is None:
        settle(reasons.EVIDENCE_MISSING, f"there is no capture record of {named}")
    if not capture.captured or any(look.launches != look.steps * graphs_per_step(capture) for look in looks):
        settle(
            reasons.CANDIDATE_NOT_CAPTURED,
            f"{named}, declared captured, launched {launches} graphs in {steps} steps: it did not replay each of them",
        )


def require_profiled(part: ThroughputRatio, processes: Sequence[Process], sheet: Sheet) -> None:
    """Settle unless a profiler that sees watched at least one process, and the others captured the same graphs."""
    profiled = [process for process in processes if process.profiled]
    counted = [process for process in processes if not process.profiled]
    if not profiled:
        settle(reasons.DEVICE_WORK_UNOBSERVED, f"none of {len(processes)} processes was profiled")
    for process in profiled if counted else ():  # evidence of before has profiled processes alone, and shown no sync
        if not process.timing.profiler_sees_planted:
            settle(reasons.PROFILER_BLIND, _unseen(process))
    if sheet.mechanism != "cuda_graph":
        return
    for process in profiled:
        for arm in (part.candidate, part.baseline):
            _require_device_time(process, arm)
    shown = [_graphs(process, part.candidate) for process in profiled]
    for process in counted:
        if _graphs(process, part.candidate) not in shown:
            settle(
                reasons.GRAPHS_DIFFER,
                f"{part.candidate} captured other graphs in {process.name}, which was not profiled, than in "
                f"{profiled[0].name}, which was",
            )


def _require_device_time(process: Process, arm: str) -> None:
    """Settle unless a graph took device time: else no clock contradicts the process's own (`disturbances`)."""
    seconds = process.timing.observed_device_seconds.get(arm, 0.0)
    if not math.isfinite(seconds):
        settle(reasons.TELEMETRY_MISSING, f"{process.name} saw the device work for {seconds} s in a step of {arm}")
    if seconds <= 0:
        settle(
            reasons.DEVICE_WORK_UNOBSERVED,
            f"{process.name} was profiled, and saw the device work for {seconds:g} s in a step of {arm}",
        )


def _looks(process: Process, arm: str) -> list[_Look]:
    """Return the observations of an arm's launches; settle INCONCLUSIVE where the observer was blind or missing."""
    timing = process.timing
    if process.profiled:
        if timing.profiler_sees_planted is False:  # None: recorded before a sync was planted
            settle(reasons.PROFILER_BLIND, _unseen(process))
        return [_Look(timing.observed_graph_launches.get(arm), timing.observed_steps)]
    if timing.counter_sees_planted is False:
        why = timing.counter_failure or "a planted launch was not seen"
        settle(reasons.COUNTER_BLIND, f"{process.name} could not count graph launches: {why}")
    looks = [_Look(block.graph_launches, block.steps) for block in timing.blocks if block.arm == arm]
    if timing.counter_sees_planted is None or any(look.launches is None for look in looks):
        settle(reasons.LAUNCHES_UNOBSERVED, f"{process.name} observed no step's graph launches")
    return looks


def _unseen(process: Process) -> str:
    return f"the profiler of {process.name} did not see a sync planted after the steps that it watched"


def _graphs(process: Process, arm: str) -> list[str]:
    """Return the census of an arm's graphs, without their labels."""
    capture = executed(process.run, arm).capture
    nodes: list[GraphNodes] = capture.nodes if capture is not None else []
    return sorted(graph.model_copy(update={"label": ""}).model_dump_json() for graph in nodes)

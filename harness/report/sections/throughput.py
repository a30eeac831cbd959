"""Timing: each process's ratio, the interval, the demanded bound, A/A controls, clocks and throttling."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from harness.contract.kinds.throughput import ThroughputRatio
from harness.evidence.model import RunEvidence, Telemetry, TimingEvidence
from harness.judge.verdict import Verdict
from harness.report import plots_machine
from harness.report.blocks import Part, Section, Table, table
from harness.report.plots_machine import ProcessTiming
from harness.report.view import RunView


def section(view: RunView) -> Section | None:
    """A part for each unit with a throughput claim that was timed."""
    shown = []
    for verdict, parts, runs in view.judged():
        for part in parts:
            if isinstance(part, ThroughputRatio):
                pair = (part.candidate, part.baseline)
                timed = [run for run in runs if run.timing and (run.timing.candidate, run.timing.baseline) == pair]
                shown.extend([_part(verdict, part, timed)] if timed else [])
    lead = (
        "Each process builds both arms and times them in turn; it gives one ratio, of the medians. A/A is an arm "
        "against itself, from the same blocks: how far a ratio strays when there is nothing to find."
    )
    return Section("throughput", "Throughput", lead, shown) if shown else None


def _part(verdict: Verdict, claim: ThroughputRatio, runs: list[RunEvidence]) -> Part:
    timings = sorted((run.timing for run in runs if run.timing), key=lambda timing: timing.process)
    processes = [timing for timing in map(process_timing, timings) if timing is not None]
    part = Part(f"{verdict.claim} · {verdict.workload}", runs=[run.run_id for run in runs])
    if processes:
        part.plots.append(plots_machine.ratios(processes, demanded=claim.at_least, interval=_interval(verdict)))
        part.plots.append(plots_machine.block_times(processes))
        rows = [_row(item, timing) for item, timing in zip(processes, timings, strict=False)]
        columns = [
            "process",
            "ratio",
            "candidate, ms a step",
            "baseline, ms a step",
            "A/A candidate",
            "A/A baseline",
            "blocks",
        ]
        part.tables.append(table(f"Processes; demanded at least {claim.at_least:g}", columns, rows))
    telemetry = {
        run.timing.process: run.telemetry for run in runs if run.timing and run.telemetry and run.telemetry.samples
    }
    if telemetry:
        measured = any(
            value is not None
            for one in telemetry.values()
            for item in one.samples
            for value in (item.sm_clock_mhz, item.power_w, item.temperature_c)
        )
        part.plots.extend([plots_machine.telemetry(telemetry)] if measured else [])
        part.tables.append(_machine(telemetry))
    return part


def process_timing(timing: TimingEvidence) -> ProcessTiming | None:
    """Ratio of the median step times, and each arm's first blocks against its second; None if an arm is missing."""
    blocks = [(block.arm, block.round, 1000 * float(block.seconds) / max(block.steps, 1)) for block in timing.blocks]
    names = {timing.candidate: "candidate", timing.baseline: "baseline"}
    times = {name: [value for arm, _, value in blocks if arm == key] for key, name in names.items()}
    if not all(times.values()) or min(map(min, times.values())) <= 0:
        return None
    return ProcessTiming(
        timing.process,
        median(times["baseline"]) / median(times["candidate"]),
        _self_ratio(timing, timing.candidate),
        _self_ratio(timing, timing.baseline),
        [(names[arm], value) for arm, _, value in blocks if arm in names],
    )


def _self_ratio(timing: TimingEvidence, arm: str) -> float:
    """Median of an arm's first block of each round, over that of its second; NaN when it had no second."""
    rounds: dict[int, list[float]] = {}
    for block in sorted(timing.blocks, key=lambda block: (block.round, block.position)):
        if block.arm == arm:
            rounds.setdefault(block.round, []).append(float(block.seconds) / max(block.steps, 1))
    pairs = [values for values in rounds.values() if len(values) == 2 and min(values) > 0]
    if not pairs:
        return float("nan")
    return median(pair[0] for pair in pairs) / median(pair[1] for pair in pairs)


def _row(item: ProcessTiming, timing: TimingEvidence) -> list[object]:
    medians = [median(value for name, value in item.blocks if name == arm) for arm in ("candidate", "baseline")]
    return [item.process, item.ratio, *medians, item.candidate_aa, item.baseline_aa, len(timing.blocks)]


def _interval(verdict: Verdict) -> tuple[float, float] | None:
    """The judge's own bounds of the mean ratio; None when a claim of several timings gives more than one pair."""
    lower, upper = (
        [
            float(figure.value)
            for name, figure in verdict.figures.items()
            if name.split(".")[-1] == f"{end}_bound" and isinstance(figure.value, int | float)
        ]
        for end in ("lower", "upper")
    )
    return (lower[0], upper[0]) if len(lower) == len(upper) == 1 else None


def _machine(telemetry: Mapping[int, Telemetry]) -> Table:
    rows: list[list[object]] = []
    for process, one in telemetry.items():
        clocks = [float(item.sm_clock_mhz) for item in one.samples if item.sm_clock_mhz is not None]
        reasons = sorted({reason for item in one.samples for reason in item.throttle_reasons})
        throttled = sum(1 for item in one.samples if item.throttle_reasons)
        foreign = max(item.foreign_processes for item in one.samples)
        load = max(float(item.host_load_per_core) for item in one.samples)
        ends: list[object] = [min(clocks), max(clocks)] if clocks else [None, None]
        rows.append([process, len(one.samples), *ends, throttled, ", ".join(reasons) or "none", foreign, load])
    columns = [
        "process",
        "samples",
        "SM clock least, MHz",
        "SM clock most, MHz",
        "throttled samples",
        "throttle reasons",
        "foreign processes",
        "host load a core",
    ]
    return table("Clocks and load", columns, rows)

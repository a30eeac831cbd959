"""Timing: each process's ratio, the interval, the demanded bound, A/A controls, clocks and throttling."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from harness.contract.kinds.throughput import ThroughputRatio
from harness.evidence.run_evidence import RunEvidence
from harness.evidence.run_records import Telemetry
from harness.judge.verdict import Verdict
from harness.report import plots_throughput
from harness.report.blocks import JudgedPlot, Part, Section, Table, table
from harness.report.time_axis import ProcessTiming, side_by_side
from harness.report.view import ReportView

DISTURBED = (
    "In a disturbed round something else worked on the same processor core, by the pace of a fixed piece of work "
    "beside each block, and a block waited for the host. Such rounds are left out; a process with fewer than two "
    "others is, too, or its baseline's blocks count as the shorter that they would at least have been."
)
UNCLOCKED = (
    "This run did not record when its blocks began: they are drawn end to end, and what the machine did is laid "
    "beside them from the first block on, right to about a second."
)


def section(view: ReportView) -> Section | None:
    """A part for each unit with a throughput claim that was timed."""
    shown = []
    for verdict, parts, runs in view.judged():
        for part in parts:
            if isinstance(part, ThroughputRatio):
                pair = (part.candidate, part.baseline)
                timed = [run for run in runs if run.timing and (run.timing.candidate, run.timing.baseline) == pair]
                shown.extend([_part(verdict, part, timed)] if timed else [])
    lead = (
        "Each process builds both arms and times them in turn; it gives one ratio: the baseline's lower quartile "
        "over the candidate's median, because what disturbs a block only makes it slower. A/A is an arm against "
        "itself, from the same blocks: how far a ratio strays when there is nothing to find."
    )
    return Section("throughput", "Throughput", lead, shown) if shown else None


def _part(verdict: Verdict, claim: ThroughputRatio, runs: list[RunEvidence]) -> Part:
    processes = side_by_side(runs, claim.measure)
    unit = "ms a step" if claim.measure == "step" else "ms to enqueue"
    part = Part(f"{verdict.claim} · {verdict.workload}", runs=[run.run_id for run in runs])
    if processes:
        clocked = all(item.clocked for item in processes)
        if not clocked:
            part.text.append(UNCLOCKED)
        plot = plots_throughput.timing(
            processes, demanded=claim.at_least, interval=_interval(verdict), shares_clock=clocked
        )
        part.judged.append(JudgedPlot(plot, frozenset({(verdict.contract, verdict.claim, verdict.workload)})))
        if any(item.disturbed for item in processes):
            part.text.append(DISTURBED)
        columns = [
            "process",
            "ratio",
            f"candidate, {unit}",
            f"baseline, {unit}",
            "A/A candidate",
            "A/A baseline",
            "blocks",
            *(["disturbed rounds"] if any(item.disturbed for item in processes) else []),
        ]
        part.tables.append(
            table(
                f"Processes; demanded at least {claim.at_least:g}",
                columns,
                [_row(item)[: len(columns)] for item in processes],
            )
        )
    telemetry = {
        run.timing.process: run.telemetry for run in runs if run.timing and run.telemetry and run.telemetry.samples
    }
    if telemetry:
        part.tables.append(_machine(telemetry))
    return part


def _row(item: ProcessTiming) -> list[object]:
    medians = [median(block.step_ms for block in item.blocks if block.arm == arm) for arm in ("candidate", "baseline")]
    return [item.process, item.ratio, *medians, item.candidate_aa, item.baseline_aa, len(item.blocks), item.disturbed]


def _interval(verdict: Verdict) -> tuple[float, float] | None:
    """The judge's own bounds of the mean ratio; None when a claim of several timings gives more than one pair."""
    lower, upper = (
        [
            float(figure.value)
            for name, figure in verdict.figures.items()
            if name.split(".")[-1] == f"{end}_bound"
            and "measurement_" not in name
            and isinstance(figure.value, int | float)
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

"""Show captured graphs (nodes by type, kernels by name and number), host syncs by code line, and memory by replay."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from harness.evidence.arm_records import (
    CaptureEvidence,
    GraphNodes,
    HostSyncEvidence,
    LongReplayEvidence,
    MemoryEvidence,
)
from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.kinds import probe_named
from harness.kinds.captures.model import LongReplay
from harness.numbers import counted
from harness.report.blocks import JudgedPlot, Part, Section, table
from harness.report.charts import plots
from harness.report.charts.plots import Doubles
from harness.report.glance import JudgedPart, judged_parts
from harness.report.text import line, several, size
from harness.report.view import REPLAYED, ReportView

MEMORY = "Memory held by the process, sample by sample: what each arm has more or less than at its first sample."
# Number of kernels that the report shows for each graph, the most frequent ones first. The run directory contains all.
KERNELS = 12


def sections(view: ReportView) -> list[Section]:
    """Return the sections about captured work, host syncs and memory. A section without evidence is left out."""
    captured: list[Part] = []
    synced: list[Part] = []
    for title, run_id, arm in _arms(view):
        if arm.capture is not None and (arm.capture.requested or arm.capture.captured):
            captured.append(_capture(title, run_id, arm.capture))
        if arm.syncs is not None:
            synced.append(_syncs(title, run_id, arm.syncs))
    all_sections = [
        Section("graph", "Captured work", "What was captured, and what the harness itself saw replayed.", captured),
        Section("syncs", "Host syncs", "How often the host waited for the device, by detector and place.", synced),
        Section("memory", "Device memory", MEMORY, list(_memory(view))),
    ]
    return [section for section in all_sections if section.parts]


def _arms(view: ReportView) -> Iterator[tuple[str, str, ArmEvidence]]:
    """Yield (workload and arm as a title, run id, first execution) for each arm of every run that is not a timing."""
    for run_id, run in view.evidence.items():
        for arm, replicas in run.arms.items():
            if replicas and not probe_named(run.probe).timed:
                yield f"{view.title_of(run_id)} · {arm}", run_id, replicas[0]


def _capture(title: str, run_id: str, seen: CaptureEvidence) -> Part:
    mechanism = REPLAYED.get(seen.mechanism or "", "no mechanism")
    text = f"Captured as {mechanism}." if seen.captured else "Nothing was captured."
    reason = [f"In the system's words: {line(seen.failure, 600)}"] if seen.failure else []
    launches, operations = seen.observed_graph_launches, seen.observed_replayed_operations
    facts: list[tuple[str, object]] = [
        ("captures", seen.captures),
        ("warm-up steps", seen.warmup_steps),
        ("replays, as the system counts", seen.replays),
        ("plain steps before the capture", seen.warm_steps or None),
        ("steps left uncaptured", seen.uncaptured_steps),
        ("steps the harness watched", seen.observed_steps),
        ("graph launches seen in them", launches),
        ("replayed operations seen in them", operations),
        ("operations recorded", seen.recorded_operations or None),
        ("recorded without a host sync", seen.fake_pass_clean),
        ("static buffers", seen.static_buffers),
        ("static buffers that moved", len(seen.moved_buffers)),
    ]
    part = Part(title, [text, *reason], runs=[run_id])
    part.tables.append(
        table("Capture record", ["", "seen"], [[name, value] for name, value in facts if value is not None])
    )
    if seen.moved_buffers:
        part.tables.append(table("Buffers that moved", ["buffer"], [[name] for name in seen.moved_buffers], shown=20))
    for graph in _different(seen.nodes):
        total = sum(graph.by_type.values())
        nodes = sorted(graph.by_type.items(), key=lambda item: -item[1])
        part.tables.append(table(f"Graph {graph.label}: {several(total, 'node')} by type", ["node", "count"], nodes))
        kernels = sorted(graph.kernels.items(), key=lambda item: (-item[1], item[0]))
        launched = several(sum(graph.kernels.values()), "launch", "es")
        caption = f"Graph {graph.label}: {counted(len(kernels), 'kernel')}, {launched}"
        part.tables.append(table(caption, ["kernel", "launches"], kernels, folded=len(kernels) > 8, shown=KERNELS))
    return part


def _different(graphs: list[GraphNodes]) -> list[GraphNodes]:
    """Return the graphs without repetitions. Graphs of batches with different shapes often have the same nodes. Graphs
    with the same nodes are merged to one graph, whose label contains the labels of all merged graphs."""
    labels: dict[str, list[str]] = {}
    first: dict[str, GraphNodes] = {}
    for graph in graphs:
        census = graph.model_copy(update={"label": ""}).model_dump_json()
        labels.setdefault(census, []).append(graph.label)
        first.setdefault(census, graph)
    return [graph.model_copy(update={"label": ", ".join(labels[census])}) for census, graph in first.items()]


def _syncs(title: str, run_id: str, seen: HostSyncEvidence) -> Part:
    replayed = "replays of a capture" if seen.replayed else "plain steps"
    part = Part(title, [f"Watched: {replayed}; {counted(seen.layers, 'layer')}."], runs=[run_id])
    rows = [
        [
            reading.detector.replace("_", " "),
            reading.steps,
            reading.count,
            reading.count / max(reading.steps, 1),
            reading.sees_planted,
        ]
        for reading in seen.readings
    ]
    part.tables.append(table("Detectors", ["detector", "steps", "syncs", "a step", "saw a planted sync"], rows))
    places = [
        [f"{place.file}:{place.line}", place.operation, place.count, reading.detector.replace("_", " ")]
        for reading in seen.readings
        for place in sorted(reading.places, key=lambda place: -place.count)
    ]
    if places:
        part.tables.append(
            table(
                "Syncs by place", ["place", "operation", "syncs", "detector"], places, folded=len(places) > 8, shown=50
            )
        )
    return part


def _memory(view: ReportView) -> Iterator[Part]:
    """Yield a part with plots for each run whose memory a claim judged, and then one table for all other runs."""
    others: list[list[object]] = []
    columns = ["arm", "memory", "samples", "first", "last", "most", "growth"]
    for run_id, run in view.evidence.items():
        firsts = {arm: items[0] for arm, items in run.arms.items() if items}
        seen = {arm: record for arm, item in firsts.items() for record in item.memory if record.samples}
        for per in dict.fromkeys(record.per for record in seen.values()):
            arms = {arm: _levels(record) for arm, record in seen.items() if record.per == per}
            rows = [[arm, *row] for arm, levels in arms.items() for row in _level_rows(levels)]
            judged = [
                JudgedPlot(plots.memory(arm, levels, per=per), units)
                for arm, levels in arms.items()
                if (units := view.units_judged_by(run_id, "memory", arm))
            ]
            if judged or view.units_judged_by(run_id, "memory"):
                tables = [table(f"Memory by {per}", columns, rows)]
                yield Part(view.title_of(run_id), tables=tables, runs=[run_id], judged=judged)
            else:
                others.extend([f"{view.title_of(run_id)} · {row[0]}", *row[1:]] for row in rows)
    if others:
        yield Part(
            "Runs whose memory no claim judges", [], [], [table("Memory", columns, others, folded=True, shown=20)]
        )


def _level_rows(levels: dict[str, Doubles]) -> list[list[object]]:
    return [
        [name, len(values), size(values[0]), size(values[-1]), size(values.max()), _growth(values)]
        for name, values in levels.items()
    ]


def _levels(seen: MemoryEvidence) -> dict[str, Doubles]:
    """Return two arrays by name: the allocated and the reserved bytes, each with one number for each sample."""
    return {
        "allocated": np.array([sample.allocated_bytes for sample in seen.samples], dtype=np.float64),
        "reserved": np.array([sample.reserved_bytes for sample in seen.samples], dtype=np.float64),
    }


def _growth(values: Doubles) -> str:
    """Return the growth from the first to the last sample as text, in percent of the first sample."""
    return f"{100 * (values[-1] / values[0] - 1):+.3g} %" if values[0] > 0 else "–"


# The following functions show a long replay block by block: the time of a step, and the memory in use.


def long_replay_section(view: ReportView) -> Section | None:
    """Return a section with a part for each judged long replay that has blocks, or None if there is none."""
    judged = judged_parts(view, LongReplay)
    shown = [_part(each, seen) for each in judged if (seen := _seen(each.claim, each.runs))]
    lead = (
        "Steps are made in blocks, and each point is a block. The step time is that of the candidate, which is alone "
        "on the machine. It includes the copies that the harness makes in each step. The yardstick is the time of a "
        "fixed amount of work after every block, relative to its median. If both rise, the machine became slower. "
        "Memory is what torch holds after a block."
    )
    return Section("long_replay", "Long replay", lead, shown) if shown else None


def _seen(claim: LongReplay, runs: Sequence[RunEvidence]) -> dict[str, LongReplayEvidence]:
    """Return the recorded blocks of each arm by the arm's name, the candidate first."""
    found: dict[str, LongReplayEvidence] = {}
    for arm in (claim.candidate, claim.baseline):
        for run in runs:
            replay = run.arms[arm][0].long_replay if run.arms.get(arm) else None
            if replay is not None and replay.blocks:
                found.setdefault(arm, replay)
    return found


def _part(judged: JudgedPart[LongReplay], seen: Mapping[str, LongReplayEvidence]) -> Part:
    title = f"{judged.verdict.claim} · {judged.verdict.workload}"
    part = Part(title, runs=[run.run_id for run in judged.runs])
    candidate = seen.get(judged.claim.candidate)
    if candidate is not None:
        steps, times, yardstick = _times(candidate)
        drawn = plots.long_replay(steps, times, yardstick, _replay_memory(candidate))
        part.judged.append(judged.drawn(drawn))
    columns = ["arm", "blocks", "steps", "distinct batches", "first ms a step", "last ms a step", "held first", "last"]
    part.tables.append(table("Blocks", columns, [_row(arm, replay) for arm, replay in seen.items()]))
    return part


def _times(replay: LongReplayEvidence) -> tuple[Doubles, Doubles, Doubles]:
    """Return for each block: first step, seconds per step, and seconds of the yardstick (a fixed piece of work)."""
    steps = np.array([block.first_step for block in replay.blocks], dtype=np.float64)
    times = np.array([block.seconds / max(block.steps, 1) for block in replay.blocks], dtype=np.float64)
    return steps, times, np.array([block.yardstick_seconds for block in replay.blocks], dtype=np.float64)


def _replay_memory(replay: LongReplayEvidence) -> dict[str, Doubles]:
    """Return the bytes allocated and reserved after each block. Leave out a kind of memory that was not recorded."""
    levels = {
        "allocated": [block.allocated_bytes for block in replay.blocks],
        "reserved": [block.reserved_bytes for block in replay.blocks],
    }
    return {name: np.array(values, dtype=np.float64) for name, values in levels.items() if None not in values}


def _row(arm: str, replay: LongReplayEvidence) -> list[object]:
    _, times, _ = _times(replay)
    quarter = max(1, len(times) // 4)
    held = [
        "–" if block.allocated_bytes is None else size(block.allocated_bytes)
        for block in (replay.blocks[0], replay.blocks[-1])
    ]
    first, last = (1e3 * float(np.median(part)) for part in (times[:quarter], times[-quarter:]))
    steps = sum(block.steps for block in replay.blocks)
    return [arm, len(replay.blocks), steps, replay.distinct_batches, first, last, *held]

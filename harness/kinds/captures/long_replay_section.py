"""Show a long replay, block by block: how long a step took, and how much memory was held."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from harness.evidence.arm_records import LongReplayEvidence
from harness.evidence.run_evidence import RunEvidence
from harness.kinds.captures.model import LongReplay
from harness.numbers import counted
from harness.report.blocks import Part, Section, table
from harness.report.charts.decimate import Doubles, decimate
from harness.report.charts.plots import Role, line_of
from harness.report.charts.svg import SERIES, Plot, draw, drawn_once, legend, plain, reads_as
from harness.report.glance import JudgedPart, judged_parts
from harness.report.text import number, size
from harness.report.view import ReportView

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def section(view: ReportView) -> Section | None:
    """Return a section with a part for each judgement of a long replay that left blocks, None where there is none."""
    judged = judged_parts(view, LongReplay)
    shown = [_part(each, seen) for each in judged if (seen := _seen(each.claim, each.runs))]
    lead = (
        "Steps are made in blocks; a point is a block. Step time is that of the candidate, which is alone on the "
        "machine, with what the harness keeps of each step; the yardstick is a fixed piece of work after every block, "
        "relative to its median: where both rise, the machine became slower. Memory is what torch holds after a block."
    )
    return Section("long_replay", "Long replay", lead, shown) if shown else None


def _seen(claim: LongReplay, runs: Sequence[RunEvidence]) -> dict[str, LongReplayEvidence]:
    """Return the blocks by arm, the candidate's first."""
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
        drawn = long_replay(steps, times, yardstick, _memory(candidate))
        part.judged.append(judged.drawn(drawn))
    columns = ["arm", "blocks", "steps", "distinct batches", "first ms a step", "last ms a step", "held first", "last"]
    part.tables.append(table("Blocks", columns, [_row(arm, replay) for arm, replay in seen.items()]))
    return part


def _times(replay: LongReplayEvidence) -> tuple[Doubles, Doubles, Doubles]:
    """Return each block's first step, its seconds a step, and the yardstick's seconds."""
    steps = np.array([block.first_step for block in replay.blocks], dtype=np.float64)
    times = np.array([block.seconds / max(block.steps, 1) for block in replay.blocks], dtype=np.float64)
    return steps, times, np.array([block.yardstick_seconds for block in replay.blocks], dtype=np.float64)


def _memory(replay: LongReplayEvidence) -> dict[str, Doubles]:
    """Return the bytes held after each block, where they were counted."""
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


@drawn_once
def long_replay(steps: Doubles, seconds: Doubles, yardstick: Doubles, memory: Mapping[str, Doubles]) -> Plot:
    """Plot milliseconds a step [blocks] and the yardstick relative to its median; below, growth of memory in MiB."""
    scaled = yardstick / np.nanmedian(yardstick) * np.nanmedian(seconds)

    def paint(axes: list[Axes]) -> None:
        looks = {
            "a step (candidate)": line_of(Role.CANDIDATE),
            "yardstick": {"color": SERIES[0], "lw": 1.2, "ls": "--"},
        }
        for (name, look), values in zip(looks.items(), (seconds, scaled), strict=True):
            at, shown = decimate(1e3 * values)
            axes[0].plot(steps[at.astype(int)], shown, label=name, **look)
        axes[0].set(ylabel="ms")
        axes[0].set_ylim(bottom=0)
        for name, levels in memory.items():
            at, shown = decimate((levels - levels[0]) / 2**20)
            look = {**line_of(Role.CANDIDATE), "ls": "-" if name == "allocated" else ":"}
            axes[1].plot(steps[at.astype(int)], shown, label=f"{name} (candidate)", **look)
            axes[1].set(ylabel="growth, MiB")
        axes[-1].set(xlabel="step")
        for axis in axes:
            axis.xaxis.set_major_formatter(plain)
            axis.yaxis.set_major_formatter(plain)
            reads_as(axis, "whole")
            legend(axis)

    text = (
        f"Milliseconds a step over {counted(len(steps), 'block')}: {number(float(1e3 * seconds[0]))} in the first, "
        f"{number(float(1e3 * seconds[-1]))} in the last."
    )
    grown = [f"{name} {number(float(levels[-1] - levels[0]) / 2**20)} MiB" for name, levels in memory.items()]
    alt = text + (f" Growth of memory: {', '.join(grown)}." if grown else "")
    return draw(paint, alt=alt, heights=(1.8, 1.4) if memory else (1.8,))

"""Figures over runs: a table, and a plot for each figure, with only like machines on one line."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from harness.judge.verdict import Status
from harness.report.blocks import Part, Section, table
from harness.report.page import render_page
from harness.report.svg import INK, SERIES, Plot, draw, plain
from harness.report.text import label, line, words
from harness.report.view import ReportView

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

UNKNOWN = "unknown"
_RUN = ["started_at", "commit", "machine"]
_UNIT = ["contract", "claim", "workload", "mechanism"]
COLUMNS = [*_RUN, *_UNIT, "status", "reason", "figure", "value", "unit"]
FIGURES_SHOWN = 60
MARKS = ("o", "s", "^", "D", "v", "P")


def history(views: Sequence[ReportView]) -> DataFrame:
    """A row for each numeric figure of each unit of each run, in the order of their start; drills are left out.

    Columns: `COLUMNS`. A unit without numeric figures has one row whose `figure` is empty and `value` is NaN, so
    that no run disappears. What a run does not know of itself is `unknown`. A machine is its GPU (or its CPU, without
    one), driver and torch: only where all of them agree may numbers be put on one line.
    """
    from pandas import DataFrame

    rows = [row for view in views if not view.is_drill for row in _rows(view)]
    frame = DataFrame(rows, columns=COLUMNS)
    return frame.sort_values("started_at", kind="stable", ignore_index=True)


def _rows(view: ReportView) -> list[list[object]]:
    facts = [view.header.started_at, (view.header.environment.git.commit or UNKNOWN)[:12], machine(view)]
    rows: list[list[object]] = []
    for item in view.verdicts:
        unit = [item.contract, item.claim, item.workload, item.mechanism or "", str(item.status), item.reason]
        figures = [
            [name, float(entry.value), entry.unit]
            for name, entry in item.figures.items()
            if isinstance(entry.value, int | float)
        ]
        rows += [[*facts, *unit, *entry] for entry in figures or [["", float("nan"), ""]]]
    return rows


def machine(view: ReportView) -> str:
    """What makes two runs' timings comparable: GPU or CPU, driver and torch."""
    collected = view.header.environment
    device = collected.gpu.name or collected.cpu.model or UNKNOWN
    driver = f"driver {collected.gpu.driver}, " if collected.gpu.driver else ""
    return f"{device}, {driver}torch {collected.versions.get('torch') or UNKNOWN}"


def render_history(views: Sequence[ReportView]) -> str:
    """The history as one self-contained HTML page: verdicts over runs, then a plot and a table for each figure."""
    frame = history(views)
    sections = [Section("verdicts", "Verdicts", "The latest run first.", [_runs(frame), _turns(frame)])]
    parts = []
    numbers = frame[frame["figure"] != ""]
    for key, group in numbers.groupby([*_UNIT, "figure", "unit"], sort=True):
        # A figure that never moved is told by the table of the run it comes from.
        if len(set(group["value"])) > 1:
            parts.append(_part([str(item) for item in key], group))
    lead = (
        "Figures that changed between runs. Runs of like machines (GPU, driver, torch) share a line; others never do."
    )
    sections += [Section("figures", "Figures", lead, parts[:FIGURES_SHOWN])] if parts else []
    left_out = len(parts) - FIGURES_SHOWN
    note = f"{left_out} more figures are left out." if left_out > 0 else ""
    drills = sum(view.is_drill for view in views)
    count = f"{len(views) - drills} runs" + (f", {drills} drills left out" if drills else "")
    return render_page("history.html.j2", title="Contract history", count_line=count, note=note, sections=sections)


def _runs(frame: DataFrame) -> Part:
    """A row a run: how many of its units had which verdict."""
    units = frame.drop_duplicates([*_RUN, *_UNIT])
    rows: list[list[object]] = []
    for run, group in units.groupby(_RUN, sort=False):
        statuses = group["status"].to_list()
        rows.append([*map(str, run), len(statuses), *(statuses.count(str(status)) for status in Status)])
    columns = ["started", "commit", "machine", "units", "held", "violated", "undecided", "not run", "errors"]
    return Part("Runs", tables=[table("Verdicts by run", columns, rows[::-1])])


def _turns(frame: DataFrame) -> Part:
    """A row for each unit whose verdict is not that of the run before it on a like machine."""
    rows: list[list[object]] = []
    for key, group in frame.drop_duplicates([*_RUN, *_UNIT]).groupby([*_UNIT, "machine"], sort=False):
        known = group[["started_at", "commit", "status"]].to_numpy().tolist()
        for before, after in pairwise(known):
            if before[2] != after[2] and UNKNOWN not in str(key[-1]):
                unit = f"{key[1]} · {key[2]}"
                rows.append([after[0], after[1], unit, f"{before[2]} -> {after[2]}", str(key[-1])])
    rows.sort(key=lambda row: str(row[0]), reverse=True)
    if not rows:
        return Part("Changes", ["No unit changed its verdict between two runs of like machines."])
    columns = ["started", "commit", "unit", "verdict", "machine"]
    return Part("Changes", tables=[table("Verdicts that changed", columns, rows)])


def _part(key: list[str], group: DataFrame) -> Part:
    _, claim, workload, mechanism, name, unit = key
    rows = group[[*_RUN, "status", "value"]].to_numpy().tolist()
    columns = ["started", "commit", "machine", "verdict", line(f"{words(name)} {unit}", 80)]
    title = f"{claim} · {workload}{f' · {mechanism}' if mechanism else ''} · {words(name)}"
    return Part(title, [], [_plot(group, name, unit)], [table(words(name), columns, rows, folded=True)])


def _plot(group: DataFrame, name: str, unit: str) -> Plot:
    """The figure over runs in the order they started; unknown machines are points without a line."""
    order = {started: place for place, started in enumerate(dict.fromkeys(group["started_at"]))}
    commits = dict(zip(group["started_at"], group["commit"], strict=True))

    def paint(axes: list[Axes]) -> None:
        for place, (known, mine) in enumerate(group.groupby("machine", sort=True)):
            at = [order[started] for started in mine["started_at"]]
            lines = "" if UNKNOWN in str(known) else "-"
            style = {"color": SERIES[place % len(SERIES)], "marker": MARKS[place % len(MARKS)], "ls": lines}
            axes[0].plot(at, mine["value"].to_list(), lw=1.2, ms=4, label=label(known, 60), **style)  # type: ignore[arg-type]
        stride = -(-len(order) // 7)
        ticks = list(order.items())[::stride]
        axes[0].set_xticks([at for _, at in ticks], [label(commits[started][:7]) for started, _ in ticks])
        axes[0].set(xlabel="commit, in the order of the runs", ylabel=label(unit or words(name), 30))
        axes[0].tick_params(axis="x", labelcolor=INK, labelsize=7.5)
        axes[0].yaxis.set_major_formatter(plain)
        axes[0].legend(loc="lower left", bbox_to_anchor=(0, 1.0), borderaxespad=0.2)

    values = ", ".join(f"{value:.4g}" for value in group["value"].tail(6))
    return draw(paint, alt=f"{words(name)} over {len(order)} runs; the latest: {values}.", heights=(2.2,))

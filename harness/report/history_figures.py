"""Show each judged figure over the runs, with its interval and demand, whether it moved or not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from harness.judging.demanded import Demanded
from harness.numbers import counted
from harness.report.blocks import Part, Section, Table, table
from harness.report.charts.svg import INK, LIMIT, SERIES, Plot, draw, plain
from harness.report.deciding import demand
from harness.report.text import label, line, number, words
from harness.report.trainer import NOT_RECORDED, trainer_commit
from harness.report.view import ReportView

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame


_RUN = ["run", "started_at", "commit", "machine"]
_NAMED = ["trainer", "contract", "claim", "workload"]
_UNIT = [*_NAMED, "mechanism"]
COLUMNS = [*_RUN, *_UNIT, "status", "figure", "unit", "value", "low", "high", "demand", "bound", "judged"]
PLOTS, BYTES = 60, 260_000  # of a page, which has at most 400 KB
ROWS = 300
MARKS = ("o", "s", "^", "D", "v", "P")
NEAR = 4.0  # a demand that many times farther than the figures themselves would press them into one line
TICKS = 7
UNKNOWN = "unknown"


def history(runs: Sequence[HistoryRun]) -> DataFrame:
    """Return a row for each figure of each unit of each run, in the order of the runs.

    Columns: `COLUMNS`. `judged` marks a figure that decides the claim. Such a figure has its `demand`, the number in it
    as `bound`, and `low` and `high` if it has an interval; for others these are empty or NaN. A unit without figures
    has one row with an empty `figure` and NaN as `value`. `machine` is GPU (or CPU), driver and torch, `trainer` the
    system as `module:Class`: only rows that agree in both may be joined by a line.
    """
    from pandas import DataFrame

    rows = [[run.name, *row] for run in runs if run.view is not None for row in _rows(run.view)]
    return DataFrame(rows, columns=COLUMNS)


def _rows(view: ReportView) -> Iterator[list[object]]:
    run = [view.header.started_at, trainer_commit(view), machine(view)]
    for verdict in view.verdicts:
        contract = view.contract(verdict.contract)
        unit = [verdict.contract, verdict.claim, verdict.workload, verdict.mechanism or "", str(verdict.status)]
        rows = {
            name: [name, entry.unit, float(entry.value), math.nan, math.nan, "", math.nan, False]
            for name, entry in verdict.figures.items()
            if isinstance(entry.value, int | float)
        }
        rows |= {f"{one.part}{one.figure}": _judged(one) for one in verdict.demands if not one.beside}
        for row in rows.values() or [["", "", *[math.nan] * 3, "", math.nan, False]]:
            yield [*run, contract.system if contract is not None else UNKNOWN, *unit, *row]


def _judged(one: Demanded) -> list[object]:
    low, high = (one.interval.low, one.interval.high) if one.interval is not None else (math.nan, math.nan)
    return [f"{one.part}{one.figure}", one.noun, float(one.value), low, high, demand(one), float(one.bound), True]


def changes(frame: DataFrame) -> Part:
    """Return a row for each unit whose verdict differs from that of the run before it on a like machine.

    The mechanism is not compared, since nothing is known of it if an arm broke.
    """
    rows: list[list[str]] = []
    units = frame.drop_duplicates(["run", *_NAMED])
    for key, group in units.groupby([*_NAMED, "machine"], sort=False):
        trainer, _, claim, workload, where = map(str, key)
        known = group[[*_RUN, "mechanism", "status"]].to_numpy().tolist()
        for before, after in pairwise(known):
            if before[-1] != after[-1] and UNKNOWN not in where:
                turned = f"{before[-1]} -> {after[-1]}"
                rows.append([after[0], after[2], trainer, _unit(claim, workload, after[-2]), turned, where])
    if not rows:
        return Part("Changes", ["No unit changed its verdict between two runs of like machines."])
    order = {run: place for place, run in enumerate(dict.fromkeys(frame["run"]))}
    rows.sort(key=lambda row: order[row[0]], reverse=True)
    columns = ["run", "trainer's commit", "trainer", "unit", "verdict", "machine"]
    return Part("Changes", tables=[table("Verdicts that changed, the latest first", columns, rows)])


def figures(frame: DataFrame) -> list[Section]:
    """Return a section for each trainer: its judged figures as a table, and as plots over its runs."""
    sections, left = [], [PLOTS, BYTES]
    for place, (trainer, group) in enumerate(frame.groupby("trainer", sort=True), start=1):
        keys = ["contract", "claim", "workload", "mechanism", "figure"]
        judged = [one for _, one in group[group["judged"]].groupby(keys, sort=False)]
        repeated = [one for one in judged if len(set(one["run"])) > 1]
        repeated.sort(key=lambda one: len(set(one["value"])) == 1)  # what moved comes first
        parts = [Part("The latest of each", tables=[_latest(judged, group)])] if judged else []
        drawn: list[Part] = []
        for one in repeated:
            part = _part(one)
            left = [left[0] - 1, left[1] - len(part.plots[0].body)]
            if min(left) < 0:
                break
            drawn.append(part)
        others = _others(group)
        undrawn = len(repeated) - len(drawn)
        note = f" {undrawn} more are not drawn, to keep the page small: the table has them." if undrawn else ""
        lead = f"What decides each claim, by the commit of the trainer; only like machines share a line.{note}"
        parts += [*drawn, *([others] if others else [])]
        if parts:
            sections.append(Section(f"trainer-{place}", line(trainer, 120), lead, parts))
    return sections


def _unit(claim: str, workload: str, mechanism: str) -> str:
    return " · ".join([claim, workload, *([words(mechanism)] if mechanism else [])])


def _latest(judged: Sequence[DataFrame], group: DataFrame) -> Table:
    """Return each judged figure as last measured, with the run's name if later runs of the unit have no figure."""
    rows = []
    last_run = {key: one["run"].iloc[-1] for key, one in group.groupby(_NAMED, sort=False)}
    for one in judged:
        last = one.iloc[-1]
        gone = last_run[tuple(last[_NAMED])] != last["run"]
        unit = "" if last["unit"] == "step" else f" {last['unit']}"
        rows.append(
            [
                _unit(last["claim"], last["workload"], last["mechanism"]),
                words(last["figure"]),
                f"{number(float(last['value']))}{unit}",
                "–" if math.isnan(last["low"]) else f"{number(float(last['low']))} to {number(float(last['high']))}",
                last["demand"] or "–",
                f"{last['status']} in {line(last['run'], 60)}, later runs have none" if gone else last["status"],
                len(set(one["run"])),
                _range([float(value) for value in one["value"]]),
            ]
        )
    columns = ["claim", "figure", "latest", "interval", "demand", "verdict", "runs", "over all runs"]
    return table("Judged figures, the latest run's", columns, rows, shown=ROWS)


def _range(values: Sequence[float]) -> str:
    """Return the range of a figure over its runs, and in how many runs it was NaN, which no range includes."""
    known = [value for value in values if not math.isnan(value)]
    missing = f"NaN in {counted(len(values) - len(known), 'run')}" if len(known) < len(values) else ""
    if not missing and min(known) == max(known):
        return "the same in all"
    ends = f"{number(min(known))} to {number(max(known))}" if known else ""
    return ", ".join(part for part in (ends, missing) if part)


def _part(one: DataFrame) -> Part:
    """Return a figure over its runs: a plot, and a table of each run's number."""
    last = one.iloc[-1]
    rows = [
        [run, commit, where, status, value, "–" if math.isnan(low) else f"{number(low)} to {number(high)}"]
        for run, commit, where, status, value, low, high in one[
            ["run", "commit", "machine", "status", "value", "low", "high"]
        ]
        .to_numpy()
        .tolist()
    ]
    columns = ["run", "trainer's commit", "machine", "verdict", line(f"{words(last['figure'])} {last['unit']}", 80)]
    unit = _unit(last["claim"], last["workload"], last["mechanism"])
    listed = table("Each run", [*columns, "interval"], rows, folded=True)
    return Part(f"{unit} · {words(last['figure'])}", [], [plot(one)], [listed])


def _others(group: DataFrame) -> Part | None:
    """Return the figures that decide nothing and changed between runs on like machines; None if there are none."""
    rows = []
    plain = group[~group["judged"] & (group["figure"] != "")]
    keys = ["contract", "claim", "workload", "mechanism", "figure", "unit", "machine"]
    for named, one in plain.groupby(keys, sort=False):
        values = [float(value) for value in one["value"]]
        if len(set(map(str, values))) > 1:  # as text a NaN equals itself
            _, claim, workload, mechanism, figure, unit, where = map(str, named)
            unit_named = _unit(claim, workload, mechanism)
            rows.append([unit_named, words(figure), values[0], values[-1], unit, len(values), where])
    columns = ["claim", "figure", "first", "latest", "unit", "runs", "machine"]
    listed = table(f"{counted(len(rows), 'other')} that changed", columns, rows, folded=True)
    return Part("Figures that decide nothing", [], [], [listed]) if rows else None


def plot(one: DataFrame) -> Plot:
    """Plot a figure over its runs with its intervals and its demand; unknown machines are points without a line.

    one: rows of `history` of one trainer, unit and figure.
    """
    order = {run: place for place, run in enumerate(dict.fromkeys(one["run"]))}
    last = one.iloc[-1]

    def paint(axes: list[Axes]) -> None:
        for place, (known, mine) in enumerate(one.groupby("machine", sort=True)):
            at = [order[run] for run in mine["run"]]
            lines = "" if UNKNOWN in str(known) else "-"
            style = {"color": SERIES[place % len(SERIES)], "marker": MARKS[place % len(MARKS)], "ls": lines}
            ends = [(x, *pair) for x, pair in zip(at, mine[["low", "high"]].to_numpy().tolist(), strict=True)]
            for x, low, high in (each for each in ends if not math.isnan(each[1])):
                axes[0].plot([x, x], [low, high], color=style["color"], lw=5, alpha=0.3, solid_capstyle="butt")
            axes[0].plot(at, mine["value"].to_list(), lw=1.2, ms=4, label=label(known, 60), **style)  # type: ignore[arg-type]
        if _near(one):
            axes[0].axhline(float(last["bound"]), color=LIMIT, lw=1.3, ls="--", label=label(last["demand"]))
        ticks = list(order.items())[:: -(-len(order) // TICKS)]
        axes[0].set_xticks([at for _, at in ticks], [_tick(one, run) for run, _ in ticks])
        axes[0].set(xlabel="trainer's commit, in the order of the runs", ylabel=label(last["unit"] or "value", 30))
        axes[0].tick_params(axis="x", labelcolor=INK, labelsize=7.5)
        axes[0].yaxis.set_major_formatter(plain)
        axes[0].legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, borderaxespad=0.2)

    values = ", ".join(f"{value:.4g}" for value in one["value"].tail(6))
    return draw(
        paint, alt=f"{words(last['figure'])} over {counted(len(order), 'run')}; the latest: {values}.", heights=(1.7,)
    )


def _near(one: DataFrame) -> bool:
    """Return True if the demand can be drawn on the figures' own scale."""
    bound, values = float(one.iloc[-1]["bound"]), [abs(float(value)) for value in one["value"]]
    return not math.isnan(bound) and max(values) / NEAR <= abs(bound) <= max(values) * NEAR


def _tick(one: DataFrame, run: str) -> str:
    """Return the commit's first digits, or the day of the run if no commit was recorded."""
    first = one[one["run"] == run].iloc[0]
    commit = str(first["commit"])
    return label(str(first["started_at"])[5:10] if commit == NOT_RECORDED else commit[:7])


@dataclass(frozen=True)
class HistoryRun:
    """A run directory: its name below the folder, the address of its page as seen from the history's, what was read.

    `left_out`: why its figures are not drawn; empty for a verified run and for a fire drill, which is listed.
    """

    name: str
    link: str | None
    view: ReportView | None
    left_out: str = ""

    @property
    def drawn(self) -> bool:
        """Return True if its verdicts are those of a system as it is, without a planted fault."""
        return self.view is not None and not self.view.is_drill and not self.left_out

    @property
    def started(self) -> str:
        return self.view.header.started_at if self.view is not None else ""

    @property
    def gate(self) -> str:
        """Return the name that the parts of one gate share: the run's name without its number, claim or contract.

        A part that is named by its claim or contract alone gets its folder's name."""
        folder, _, own = self.name.rpartition("/")
        if self.view is None:
            return self.name
        ids = {name for verdict in self.view.verdicts for name in (verdict.claim, verdict.contract)}
        for ending in sorted(ids, key=len, reverse=True):
            if own == ending:
                return folder
            if own.endswith(ending) and own[-len(ending) - 1] in "-_.":
                return self.name[: -len(ending) - 1]
        stem = own.rstrip("0123456789")
        return self.name[: -(len(own) - len(stem)) - 1] if stem != own and stem[-1:] in ("-", "_", ".") else self.name


def machine(view: ReportView) -> str:
    """Return what makes two runs' timings comparable: GPU or CPU, driver and torch."""
    collected = view.header.environment
    device = collected.gpu.name or collected.cpu.model or UNKNOWN
    driver = f"driver {collected.gpu.driver}, " if collected.gpu.driver else ""
    return f"{device}, {driver}torch {collected.versions.get('torch') or UNKNOWN}"

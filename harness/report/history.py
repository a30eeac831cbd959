"""Show runs over time: the name of each run, the commit of its trainer, and every judged figure with its interval.

In a plot, a line connects only runs of the same trainer on machines of the same kind.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from harness.evidence.environment_records import CHANGES, quoted
from harness.judging.verdict import Demanded, Status
from harness.numbers import counted
from harness.report.blocks import Part, Section, Table, table
from harness.report.charts.plots import MachineRuns, over_runs
from harness.report.charts.svg import Plot
from harness.report.deciding import demand
from harness.report.page import render_page
from harness.report.text import clean, label, line, number, words
from harness.report.view import ReportView

if TYPE_CHECKING:
    from pandas import DataFrame

# The functions below name the trainer of a run, and the commit of the trainer's repository. The trainer and the harness
# may be in different repositories.

NOT_RECORDED = "not recorded"
# Packages in the harness's repository that contain trainers. If an old run recorded no commits of trainers, the
# harness's commit is used for these trainers.
_BESIDE = ("reference_impl", "examples")


def trainers(view: ReportView) -> list[str]:
    """Return the systems under test as `module:Class`, in the order of the contracts."""
    return list(dict.fromkeys(contract.system for contract in view.contracts))


def trainer_commit(view: ReportView) -> str:
    """Return the short commits of the trainers, each commit once, with a mark if a trainer had uncommitted changes.

    With `--baseline`, return the candidate's commit. An old run recorded only the harness's commit. This commit is also
    the trainer's commit if both are in one repository. If no commit is known, return `NOT_RECORDED`.
    """
    commits = view.header.commits
    if commits is not None:
        return quoted(commits.candidate.commit + (CHANGES if commits.candidate.changes else ""))
    found = [_commit_of(view, system) for system in trainers(view)]
    return ", ".join(dict.fromkeys(quoted(commit) for commit in found if commit)) or NOT_RECORDED


def harness_commit(view: ReportView) -> str:
    """Return the commit of the harness's checkout in short form, with a mark if the checkout had uncommitted
    changes."""
    commit = view.header.environment.git.commit
    return quoted(commit) if commit else NOT_RECORDED


def _commit_of(view: ReportView, system: str) -> str | None:
    recorded = view.header.environment
    if system in recorded.trainers:
        return recorded.trainers[system].commit
    beside = system.partition(":")[0].partition(".")[0] in _BESIDE
    return recorded.git.commit if beside and not recorded.trainers else None


# The functions below show each judged figure over the runs, with its interval and its demand. Figures that never
# changed are shown, too.

_RUN = ["run", "started_at", "commit", "machine"]
_NAMED = ["trainer", "contract", "claim", "workload"]
_UNIT = [*_NAMED, "mechanism"]
COLUMNS = [*_RUN, *_UNIT, "status", "figure", "unit", "value", "low", "high", "demand", "bound", "judged"]
PLOTS, BYTES = 60, 260_000  # largest number of plots, and of bytes of all plots, on a page of at most 400 KB
ROWS = 300
# A demanded bound is not drawn if it differs from the figure's values by more than this factor. Otherwise the curve
# would look flat.
NEAR = 4.0
TICKS = 7
UNKNOWN = "unknown"


def history(runs: Sequence[HistoryRun]) -> DataFrame:
    """Return a row for each figure of each unit of each run, in the order of the runs.

    Columns: `COLUMNS`. `judged` marks a figure that decides the claim. Such a figure has its `demand`, the number in
    the demand as `bound`, and `low` and `high` if it has an interval. For all other figures, these columns are empty or
    NaN. A unit without figures has one row with an empty `figure` and NaN as `value`. `machine` is GPU (or CPU), driver
    and torch; `trainer` is the system as `module:Class`. In a plot, a line may connect only rows with equal machine and
    trainer.
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
    """Return a table of the verdicts that changed since the previous run on a machine of the same kind.

    A change of only the capture mechanism is not listed, because the mechanism is unknown if an arm ended with an
    error.
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
        return Part("Changes", ["No unit changed its verdict between two runs on machines of the same kind."])
    order = {run: place for place, run in enumerate(dict.fromkeys(frame["run"]))}
    rows.sort(key=lambda row: order[row[0]], reverse=True)
    columns = ["run", "trainer's commit", "trainer", "unit", "verdict", "machine"]
    return Part("Changes", tables=[table("Verdicts that changed, the latest first", columns, rows)])


def figures(frame: DataFrame) -> list[Section]:
    """Return a section for each trainer: its judged figures, in a table and as plots over its runs."""
    sections, left = [], [PLOTS, BYTES]
    for place, (trainer, group) in enumerate(frame.groupby("trainer", sort=True), start=1):
        keys = ["contract", "claim", "workload", "mechanism", "figure"]
        judged = [one for _, one in group[group["judged"]].groupby(keys, sort=False)]
        repeated = [one for one in judged if len(set(one["run"])) > 1]
        repeated.sort(key=lambda one: len(set(one["value"])) == 1)  # figures whose value changed come first
        parts = [Part("Latest values", tables=[_latest(judged, group)])] if judged else []
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
        lead = f"Figures that decide claims, by the trainer's commit. A line joins only runs on equal machines.{note}"
        parts += [*drawn, *([others] if others else [])]
        if parts:
            sections.append(Section(f"trainer-{place}", line(trainer, 120), lead, parts))
    return sections


def _unit(claim: str, workload: str, mechanism: str) -> str:
    return " · ".join([claim, workload, *([words(mechanism)] if mechanism else [])])


def _latest(judged: Sequence[DataFrame], group: DataFrame) -> Table:
    """Return a table with the last value of each judged figure.

    If later runs of the unit do not have the figure, the table names the run of the last value.
    """
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
    return table("Latest value of each judged figure", columns, rows, shown=ROWS)


def _range(values: Sequence[float]) -> str:
    """Return a text with the range of a figure's values, and with the number of runs in which the value was NaN."""
    known = [value for value in values if not math.isnan(value)]
    missing = f"NaN in {counted(len(values) - len(known), 'run')}" if len(known) < len(values) else ""
    if not missing and min(known) == max(known):
        return "the same in all"
    ends = f"{number(min(known))} to {number(max(known))}" if known else ""
    return ", ".join(part for part in (ends, missing) if part)


def _part(one: DataFrame) -> Part:
    """Return a part about a figure over its runs: a plot, and a table with the figure's value in each run."""
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
    """Return a table of the figures that decide nothing, but that changed between runs on equal machines. Return None
    if there are no such figures."""
    rows = []
    plain = group[~group["judged"] & (group["figure"] != "")]
    keys = ["contract", "claim", "workload", "mechanism", "figure", "unit", "machine"]
    for named, one in plain.groupby(keys, sort=False):
        values = [float(value) for value in one["value"]]
        if len(set(map(str, values))) > 1:  # compare the values as texts, because NaN is not equal to itself
            _, claim, workload, mechanism, figure, unit, where = map(str, named)
            unit_named = _unit(claim, workload, mechanism)
            rows.append([unit_named, words(figure), values[0], values[-1], unit, len(values), where])
    columns = ["claim", "figure", "first", "latest", "unit", "runs", "machine"]
    listed = table(f"{counted(len(rows), 'other')} that changed", columns, rows, folded=True)
    return Part("Figures that decide nothing", [], [], [listed]) if rows else None


def plot(one: DataFrame) -> Plot:
    """Plot a figure over its runs, with intervals and demand. Runs on unknown machines are points without a line.

    one: rows of `history` of one trainer, unit and figure.
    """
    order = {run: place for place, run in enumerate(dict.fromkeys(one["run"]))}
    last = one.iloc[-1]
    machines = [
        MachineRuns(
            label(known, 60),
            UNKNOWN not in str(known),
            [order[run] for run in mine["run"]],
            mine["value"].to_list(),
            mine[["low", "high"]].to_numpy().tolist(),
        )
        for known, mine in one.groupby("machine", sort=True)
    ]
    named = {at: _tick(one, run) for run, at in list(order.items())[:: -(-len(order) // TICKS)]}
    bound = (float(last["bound"]), label(last["demand"])) if _near(one) else None
    values = ", ".join(f"{value:.4g}" for value in one["value"].tail(6))
    alt = f"{words(last['figure'])} over {counted(len(order), 'run')}; the latest: {values}."
    return over_runs(machines, named, bound, label(last["unit"] or "value", 30), alt)


def _near(one: DataFrame) -> bool:
    """Return True if the demanded bound is near enough to the figure's values to be drawn on their scale."""
    bound, values = float(one.iloc[-1]["bound"]), [abs(float(value)) for value in one["value"]]
    return not math.isnan(bound) and max(values) / NEAR <= abs(bound) <= max(values) * NEAR


def _tick(one: DataFrame, run: str) -> str:
    """Return the first digits of the commit, or the day of the run if no commit was recorded."""
    first = one[one["run"] == run].iloc[0]
    commit = str(first["commit"])
    return label(str(first["started_at"])[5:10] if commit == NOT_RECORDED else commit[:7])


@dataclass(frozen=True)
class HistoryRun:
    """A run directory in a history. link: address of the directory's page, relative to the page of the history.

    left_out: the reason why the run's figures are not drawn. "": a verified run, or a fire drill (all faults of a
    contract are planted). Figures of a fire drill are not drawn, either.
    """

    name: str
    link: str | None
    view: ReportView | None
    left_out: str = ""

    @property
    def drawn(self) -> bool:
        """Return True if the run's figures are drawn. The run must have been read, must not be left out, and must have
        no planted fault."""
        return self.view is not None and not self.view.is_drill and not self.left_out

    @property
    def started(self) -> str:
        return self.view.header.started_at if self.view is not None else ""

    @property
    def gate(self) -> str:
        """Return the name that all parts of a gate share: the run's name without its ending. The ending is a number, or
        the id of a claim or contract. Return the whole name if it has no such ending.

        If the run's name is only the id of a claim or contract, return the name of the run's folder.
        """
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
    """Return the facts of a machine that must be equal if timings are compared: GPU or CPU, driver and torch."""
    collected = view.header.environment
    device = collected.gpu.name or collected.cpu.model or UNKNOWN
    driver = f"driver {collected.gpu.driver}, " if collected.gpu.driver else ""
    return f"{device}, {driver}torch {collected.versions.get('torch') or UNKNOWN}"


SHOWN = 3  # number of trainers of a run that are named; the others are only counted


@dataclass(frozen=True)
class Row:
    """A row of the history, for a run or a gate. link: address of the run's page. parts: name and address of each part
    of the gate.

    about: start time and machines. harness: the harness's commit, or "" if it is also the trainer's commit.
    """

    name: str
    link: str | None
    parts: list[tuple[str, str | None]]
    about: str
    trainer: str
    commit: str
    harness: str
    cells: list[str]


def render_history(runs: Sequence[HistoryRun]) -> str:
    """Return the history as one HTML page that needs no other file: every run, then each judged figure."""
    shown = sorted(runs, key=lambda run: (run.started, run.name))
    verified = [run for run in shown if run.drawn]
    drills = [run for run in shown if run.view is not None and run.view.of_controls]
    left_out = [run for run in shown if run.left_out]
    frame = history(verified)
    turned = Section(
        "verdicts", "Verdicts", "Units whose verdict differs from that of the run before.", [changes(frame)]
    )
    return render_page(
        "history.html.j2",
        title="Contract history",
        count_line=_count_line(len(runs), len(verified), len(drills), len(left_out)),
        verified=[_gate(gate) for gate in reversed(gates(verified))],
        drills=[_drill(run) for run in reversed(drills)],
        left_out=[(line(run.name), run.link, clean(run.left_out, 600)) for run in left_out],
        sections=[turned, *figures(frame)],
    )


def _count_line(runs: int, verified: int, drills: int, left_out: int) -> str:
    """Return a line such as `14 runs: 9 verified, 3 fire drills, 2 left out`. Each part of a gate counts as a run."""
    kinds = [f"{verified} verified", counted(drills, "fire drill"), f"{left_out} left out"]
    return f"{counted(runs, 'run')}: " + ", ".join(kind for kind in kinds if not kind.startswith("0 "))


def _row(parts: Sequence[HistoryRun], cells: Sequence[object]) -> Row:
    """Return the row of a run, or of all parts of a gate.

    The parts of a gate have the same trainer and commit, but may come from several machines.
    """
    views = [part.view for part in parts if part.view is not None]
    named = trainers(views[0])
    more = f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
    commit, harness = trainer_commit(views[0]), harness_commit(views[0])
    machines = "; ".join(dict.fromkeys(machine(view) for view in views))
    return Row(
        name=line(parts[0].name if len(parts) == 1 else parts[0].gate),
        link=parts[0].link if len(parts) == 1 else None,
        parts=[(line(part.name), part.link) for part in parts] if len(parts) > 1 else [],
        about=line(f"{parts[0].started[:16].replace('T', ' ')} · {machines}"),
        trainer=line("; ".join(named[:SHOWN]) + more, 300),
        commit=line(commit),
        harness=line(harness) if harness != commit else "",
        cells=[str(cell) for cell in cells],
    )


def _gate(parts: Sequence[HistoryRun]) -> Row:
    """Return a row that counts the units and verdicts of one run, or of all parts of a gate together."""
    statuses = [verdict.status for run in parts if run.view is not None for verdict in run.view.verdicts]
    return _row(parts, [len(statuses), *(statuses.count(status) for status in Status)])


def _drill(run: HistoryRun) -> Row:
    record = run.view.drill if run.view is not None else None
    if record is None:
        return _row([run], ["–"] * 4)
    survived, controls = len(record.survivors), len(record.controls)
    killed, held = len(record.rows) - survived, controls - len(record.failed_controls)
    return _row([run], [f"{killed} of {record.planned}", survived, len(record.not_run), f"{held} of {controls}"])


def gates(runs: Sequence[HistoryRun]) -> list[list[HistoryRun]]:
    """Return the runs grouped by gate, in the order of the first part of each gate.

    The names of a gate's parts differ only in their endings (`HistoryRun.gate`). The parts have the same sources,
    commits, trainers and contracts. No unit occurs in two parts of a gate. A second run of a unit begins another gate.
    """
    found: dict[object, list[list[HistoryRun]]] = {}
    ordered: list[list[HistoryRun]] = []
    for run in runs:
        known = found.setdefault(_sources(run), [])
        gate = next((parts for parts in known if _fits(run, parts)), None)
        if gate is None:
            gate = []
            known.append(gate)
            ordered.append(gate)
        gate.append(run)
    return ordered


def _sources(run: HistoryRun) -> tuple[object, ...]:
    if run.view is None:
        return (run.name,)
    header = run.view.header
    commits = header.commits.model_dump_json(exclude={"accepted"}) if header.commits is not None else ""
    return run.gate, header.digests.source, header.environment.git.commit, commits, tuple(trainers(run.view))


def _fits(run: HistoryRun, parts: Sequence[HistoryRun]) -> bool:
    """Return True if the run can be another part of the gate with these parts: the run shares no unit with any part,
    and contracts of the same name have equal digests."""
    return all(_units(run).isdisjoint(_units(part)) and _alike(_contracts(run), _contracts(part)) for part in parts)


def _units(run: HistoryRun) -> set[tuple[str, str, str]]:
    verdicts = run.view.verdicts if run.view is not None else []
    return {(verdict.contract, verdict.claim, verdict.workload) for verdict in verdicts}


def _contracts(run: HistoryRun) -> dict[str, str]:
    return run.view.header.digests.contracts if run.view is not None else {}


def _alike(ours: dict[str, str], theirs: dict[str, str]) -> bool:
    return all(theirs[name] == digest for name, digest in ours.items() if name in theirs)

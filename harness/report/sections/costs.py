"""Show where the time went: seconds by kind of cost, and by run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from harness.report.blocks import ROWS_SHOWN, Part, Section, Table
from harness.report.charts import plots
from harness.report.charts.svg import Plot
from harness.report.text import line, several
from harness.report.view import ReportView
from harness.run_directory.costs import Costs, Kind, PhaseSeconds

NAMED = 4  # number of kinds of cost that the one-line summary names
COLUMNS = 6  # number of kinds of cost that have a column of their own in the table of runs
RUNS = 5  # number of runs in the open table; the other runs are in a folded table
UNCLOCKED = (
    "These are sums over the runs, even if several runs executed at the same time. Each run counts from its first "
    "record to its last, because the times at which its process started and ended were not recorded."
)
CLOCKED = "Each run counts in full, even if several runs executed at the same time."
SHARED = "GPU time is the filled part of a bar; a moment of a GPU that several runs share is divided among them."


def section(view: ReportView) -> Section | None:
    """Return the section about costs, which is collapsed at first. Return None if no run recorded times."""
    costs = view.costs
    if not costs.by_kind:
        return None
    text = summary(costs)
    kinds = Part("By kind of cost", [_how(costs)], [bars(costs.by_kind, costs.gpu_by_kind)], [_kinds(costs)])
    return Section(
        "costs",
        "Where the time went",
        f"{text[:1].upper()}{text[1:]}.",
        [kinds, Part("By run", tables=_runs(costs))],
        folded=True,
    )


def summary(costs: Costs) -> str:
    """Return one line about how long the runs took, and about the kinds of cost with the most seconds. Return "" if no
    times were recorded."""
    if not costs.by_kind:
        return ""
    ordered = sorted(costs.by_kind.items(), key=lambda item: -item[1])
    named = [f"{kind.words} {seconds(took)}" for kind, took in ordered[:NAMED]]
    rest = sum(took for _, took in ordered[NAMED:])
    named += [f"all else {seconds(rest)}"] if rest else []
    clock = [f"{seconds(costs.wall_seconds)} by the clock"] if costs.clocked else []
    clock += [f"{seconds(costs.gpu_seconds)} of GPU time"] if costs.clocked and costs.gpu_seconds else []
    count = len(costs.by_run)
    runs = f"{count:,} run{'' if count == 1 else 's'} of {seconds(costs.run_seconds)}"
    return f"{', '.join([*clock, runs])}: {' · '.join(named)}"


def changes(before: Costs, after: Costs) -> Iterator[str]:
    """Yield lines that compare the seconds of two run directories. Yield none if one of them has no recorded times."""
    if not before.by_kind or not after.by_kind:
        return
    for name, costs in (("before", before), ("after", after)):
        if not costs.clocked:
            yield f"{name}: sums over the runs, as if they had gone one after the other"
    yield _change("wall", before.wall_seconds, after.wall_seconds)
    yield _change("GPU", before.gpu_seconds, after.gpu_seconds)
    yield _change(f"runs ({len(before.by_run)} -> {len(after.by_run)})", before.run_seconds, after.run_seconds)
    for kind in Kind:
        if kind in before.by_kind or kind in after.by_kind:
            yield _change(kind.words, before.by_kind.get(kind, 0.0), after.by_kind.get(kind, 0.0))


def seconds(value: float) -> str:
    """Return seconds as text. Small numbers have one decimal."""
    return f"{value:,.0f} s" if value >= 10 else f"{value:.1f} s"


def _change(name: str, before: float, after: float) -> str:
    return f"{name}: {seconds(before)} -> {seconds(after)}"


def _how(costs: Costs) -> str:
    if not costs.clocked:
        return UNCLOCKED
    worked = costs.processor_seconds
    processor = f"It took {seconds(worked)} of processor time." if worked is not None else ""
    return " ".join(filter(None, [CLOCKED, SHARED if costs.gpu_seconds else "", processor]))


def _kinds(costs: Costs) -> Table:
    columns = ["", "seconds of runs", "%", *(["seconds of GPUs"] if costs.gpu_seconds else [])]
    figures = [(kind.words, took, costs.gpu_by_kind.get(kind, 0.0)) for kind, took in costs.by_kind.items()]
    rows = [
        [name, _tenths(took), f"{100 * took / costs.run_seconds:.0f}", _tenths(of_gpus)]
        for name, took, of_gpus in [*figures, ("all", costs.run_seconds, costs.gpu_seconds)]
    ]
    return _table("Seconds by kind of cost", columns, [row[: len(columns)] for row in rows])


def _runs(costs: Costs) -> list[Table]:
    """Return tables of the runs, the longest run first. The `COLUMNS` kinds of cost with the most seconds have
    columns."""
    kinds = sorted(costs.by_kind, key=lambda kind: -costs.by_kind[kind])
    spent = {run: _by_kind(phases) for run, phases in costs.by_run.items()}
    ordered = sorted(spent.items(), key=lambda item: -sum(item[1].values()))
    columns = ["run", "seconds", *(kind.words for kind in kinds[:COLUMNS]), *(["all else"] if kinds[COLUMNS:] else [])]
    rows = [[line(run, 120), *map(_tenths, _figures(took, kinds))][: len(columns)] for run, took in ordered]
    tables = [_table("The longest runs" if rows[RUNS:] else "Runs", columns, rows[:RUNS])]
    return [
        *tables,
        *([_table(several(len(rows) - RUNS, "more run"), columns, rows[RUNS:], folded=True)] if rows[RUNS:] else []),
    ]


def _by_kind(phases: Sequence[PhaseSeconds]) -> Mapping[Kind, float]:
    spent: defaultdict[Kind, float] = defaultdict(float)
    for phase in phases:
        spent[phase.kind] += phase.seconds
    return spent


def _figures(took: Mapping[Kind, float], kinds: Sequence[Kind]) -> list[float]:
    """Return the seconds of a run: the total, then one number for each of the first `COLUMNS` kinds of cost, then the
    sum of all other kinds."""
    each = [took.get(kind, 0.0) for kind in kinds]
    return [sum(each), *each[:COLUMNS], sum(each[COLUMNS:])]


def _table(caption: str, columns: list[str], rows: list[list[str]], *, folded: bool = False) -> Table:
    numeric = frozenset(range(1, len(columns)))
    return Table(caption, columns, rows[:ROWS_SHOWN], numeric, folded, left_out=max(0, len(rows) - ROWS_SHOWN))


def _tenths(value: float) -> str:
    return f"{value:,.1f}"


def bars(spent: Mapping[Kind, float], of_gpus: Mapping[Kind, float]) -> Plot:
    """Plot a bar for each kind of cost. The length of the bar is the seconds of runs, and its filled part is the
    seconds of GPUs. If no GPU was used, the whole bar is filled."""
    told = [f"{kind.words} {took:,.1f} s{_of_a_gpu(of_gpus.get(kind, 0.0))}" for kind, took in spent.items()]
    parts = {"seconds of GPUs": [min(of_gpus.get(kind, 0.0), took) for kind, took in spent.items()]}
    return plots.bars(
        [kind.words for kind in spent],
        {**(parts if of_gpus else {}), "seconds of runs": list(spent.values())},
        alt=f"Seconds of all runs by kind of cost: {'; '.join(told)}.",
    )


def _of_a_gpu(took: float) -> str:
    return f", {took:,.1f} s of GPUs" if took else ""

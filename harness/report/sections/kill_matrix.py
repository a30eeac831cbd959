"""Show the kill matrix of a fire drill, in which all faults are planted: small tables of the faults against the claims
that they must break.

Claims of a contract share only some faults, so one table of all claims would be mostly empty. Therefore claims that
share faults are grouped in tables in which at least half of the cells have a planned fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.judging.verdict import WORST_FIRST, Verdict
from harness.numbers import counted
from harness.report.blocks import Table, table
from harness.report.cards import SIGNS, explanation
from harness.report.text import line
from harness.report.view import ReportView
from harness.run_directory.verdict_file import INTERRUPTED, DrillRecord, NotDrilled, Row, Triple

KILLED, SURVIVED, NOT_RUN, NOT_PLANNED = "killed", "survived", "not run", "not planned"
LEGEND = {
    SURVIVED: ("✗", "the claim did not give the verdict that the fault declares"),
    KILLED: ("✓", "the claim gave the verdict that the fault declares"),
    NOT_RUN: ("–", "the fault was not run"),
    NOT_PLANNED: ("·", "the fault is not planned for this claim"),
}
FILLED = 0.5  # smallest share of the cells of a table that must have a planned fault
LISTED = 300  # largest number of rows in a table of faults
WHOLE = 1200  # largest number of characters in a cell with a long text, such as a tolerance
REASONS = 5  # largest number of reasons for faults that were not run; further reasons are only counted
_UPSTREAM = {True: "would pass it", False: "catches it", None: "–"}


@dataclass(frozen=True)
class Cell:
    """The result of one fault for one claim. link: the anchor of a surviving fault's row in the table of survivors.

    slips: True if a check of the tolerance alone would have missed the fault.
    """

    word: str
    slips: bool = False
    link: str = ""

    @property
    def sign(self) -> str:
        return LEGEND[self.word][0]


@dataclass(frozen=True)
class Column:
    """A claim, its title, and the result of each of its faults, by the name of the fault.

    control: word and sign of the claim's verdict without a fault. anchor: the card with this verdict. slipped: how many
    faults a check of the tolerance alone would have missed, such as `5 of 8`; "" if the claim has no tolerance.
    """

    name: str
    title: str
    anchor: str
    control: tuple[str, str]
    cells: Mapping[str, Cell]
    slipped: str

    @property
    def killed(self) -> str:
        return _killed(list(self.cells.values()))


@dataclass(frozen=True)
class Group:
    """Claims that share faults. They form one table, with a row for each fault."""

    columns: list[Column]
    rows: list[tuple[str, list[Cell]]]

    @property
    def has_upstream(self) -> bool:
        return any(column.slipped for column in self.columns)


@dataclass(frozen=True)
class OfContract:
    """The faults of one contract. upstream: a table of the faults that a check of the tolerances alone would miss."""

    name: str
    system: str
    killed: str
    groups: list[Group]
    upstream: Table | None


@dataclass(frozen=True)
class KillMatrix:
    """The top of a drill's page. Contracts with a surviving fault come first, contracts without any killed fault come
    last.

    Row n of `survivors` has the anchor `survivor-n`. `killed` is a folded table of the killed faults.
    """

    lead: str
    legend: list[tuple[str, str, str]]  # each entry: sign, word and meaning
    slips: bool  # True: a check of the tolerances alone would miss at least one fault
    contracts: list[OfContract]
    left_out: list[str]  # the reasons why faults were not run
    survivors: Table | None
    killed: Table | None


def kill_matrix(view: ReportView) -> KillMatrix | None:
    """Return the matrix of a drill. Return None without a drill or a planted fault.

    The matrix is shown on the drill's own page, and on a page of runs and their drill if the user asked for it.
    """
    record = view.drill
    if record is None or not record.planned or not (view.of_controls or view.drill_named):
        return None
    contracts = sorted(_contracts(view, record), key=_told_later)
    seen = {name for contract in contracts for name in _words(contract)}
    legend = [(sign, name, meaning) for name, (sign, meaning) in LEGEND.items() if name in seen]
    slips = any(row.upstream_alone_passes for row in record.rows)
    return KillMatrix(_lead(record), legend, slips, contracts, _left_out(record), _survivors(record), _others(record))


def _told_later(contract: OfContract) -> tuple[bool, bool]:
    """Return a sort key: contracts with a surviving fault come first, and contracts without any killed fault last."""
    words = _words(contract)
    return SURVIVED not in words, KILLED not in words


def _words(contract: OfContract) -> set[str]:
    return {cell.word for group in contract.groups for _, cells in group.rows for cell in cells}


def _contracts(view: ReportView, record: DrillRecord) -> list[OfContract]:
    cells = _cells(record)
    placed = list(enumerate(view.verdicts, start=1))
    best_first = sorted(placed, key=lambda each: WORST_FIRST.index(each[1].status), reverse=True)
    # For each claim: the claim's worst verdict without a fault (control), and this verdict's number on the page.
    verdicts = {(item.contract, item.claim): (at, item) for at, item in best_first}
    made = []
    for name in dict.fromkeys(contract for contract, _ in cells):
        claims = [claim for contract, claim in cells if contract == name]
        rows = [row for row in record.rows if row.contract == name]
        columns = [
            _column(
                *(view, name, claim, cells[name, claim]),
                *(verdicts.get((name, claim)), [row for row in rows if row.claim == claim]),
            )
            for claim in claims
        ]
        known = view.contract(name)
        made.append(
            OfContract(
                name=line(name, 100),
                system=line(known.system, 120) if known else "",
                killed=_killed([cell for column in columns for cell in column.cells.values()]),
                groups=[_group(columns) for columns in groups(columns)],
                upstream=_upstream(view, name, rows),
            )
        )
    return made


def _cells(record: DrillRecord) -> dict[tuple[str, str], dict[str, Cell]]:
    """Return the result of each fault by contract and claim.

    A fault that was planted several times counts as surviving if it survived at least once.
    """
    survivors = {id(row): f"survivor-{at}" for at, row in enumerate(record.survivors[:LISTED], start=1)}
    cells: dict[tuple[str, str], dict[str, Cell]] = {}
    items: list[Row | NotDrilled] = [*record.not_run, *sorted(record.rows, key=lambda row: not row.killed)]
    for item in items:
        cell = Cell(NOT_RUN)
        if isinstance(item, Row):
            ended = KILLED if item.killed else SURVIVED
            cell = Cell(ended, item.upstream_alone_passes is True, survivors.get(id(item), ""))
        cells.setdefault((item.contract, item.claim), {})[item.fault] = cell
    return cells


def _column(
    view: ReportView,
    contract: str,
    claim: str,
    cells: Mapping[str, Cell],
    control: tuple[int, Verdict] | None,
    rows: Sequence[Row],
) -> Column:
    known = view.claim(contract, claim)
    ended = view.word(control[1]) if control else "not run"
    numbers = [row.upstream_alone_passes for row in rows if row.upstream_alone_passes is not None]
    return Column(
        name=line(claim, 80),
        title=line(known.title, 200) if known else "",
        anchor=f"unit-{control[0]}" if control else "",
        control=(ended, SIGNS[ended]),
        cells=cells,
        slipped=f"{sum(numbers)} of {len(numbers)}" if numbers else "",
    )


def groups(columns: Sequence[Column]) -> list[list[Column]]:
    """Return groups of claims that share faults, so that each table is at least half filled.

    Claims with many faults are placed first. A claim can join a group that has at least half of the claim's faults. Of
    these groups, the claim joins the one whose table stays fullest.
    """
    found: list[list[Column]] = []
    for column in sorted(columns, key=lambda one: -len(one.cells)):
        faults = set(column.cells)
        choices = [(_share([*group, column]), at) for at, group in enumerate(found) if _has_half(group, faults)]
        share, at = max(choices, key=lambda choice: (choice[0], -choice[1]), default=(0.0, 0))
        if share >= FILLED:
            found[at].append(column)
        else:
            found.append([column])
    return found


def _has_half(group: Sequence[Column], faults: set[str]) -> bool:
    known = {fault for column in group for fault in column.cells}
    return 2 * len(faults & known) >= len(faults)


def _share(columns: Sequence[Column]) -> float:
    """Return the share of the cells that have a planned fault in a table of these claims."""
    faults = {fault for column in columns for fault in column.cells}
    return sum(len(column.cells) for column in columns) / (len(faults) * len(columns))


def _group(columns: Sequence[Column]) -> Group:
    """Return a table of these claims. Rows of surviving faults come first. The other rows are ordered by the number of
    claims for which the fault is planned, the largest first. Faults of the same claims are next to each other.
    """
    faults = dict.fromkeys(fault for column in columns for fault in column.cells)
    rows = [(fault, [column.cells.get(fault, Cell(NOT_PLANNED)) for column in columns]) for fault in faults]

    def order(row: tuple[str, list[Cell]]) -> tuple[bool, int, list[bool]]:
        gaps = [cell.word == NOT_PLANNED for cell in row[1]]
        return all(cell.word != SURVIVED for cell in row[1]), sum(gaps), gaps

    return Group(list(columns), [(line(fault, 60), cells) for fault, cells in sorted(rows, key=order)])


def _killed(cells: Sequence[Cell]) -> str:
    return f"{sum(cell.word == KILLED for cell in cells)} of {len(cells)}"


def _lead(record: DrillRecord) -> str:
    """Return sentences on how many faults were killed, and on how many faults a check of the tolerances alone would
    have missed."""
    survived, left = len(record.survivors), len(record.not_run)
    dead = f"{len(record.rows) - survived} of {counted(record.planned, 'planned fault')} killed"
    killed = f"{dead}, {survived} survived, {left} not run."
    numbers = [row.upstream_alone_passes for row in record.rows if row.upstream_alone_passes is not None]
    if not numbers:
        return killed
    return (
        f"{killed} The tolerances alone would have let {sum(numbers)} of {len(numbers)} pass; the other faults break "
        "claims that have no tolerance, or ended the check before it compared the tolerance."
    )


def _left_out(record: DrillRecord) -> list[str]:
    why = Counter(item.reason for item in record.not_run).most_common()
    named, others = why[:REASONS], why[REASONS:]
    told = [f"Not run, {number}: {line(reason, 60)}. {_meaning(reason)}".strip() for reason, number in named]
    left = f"Not run, {sum(number for _, number in others)}: for {counted(len(others), 'other reason')}."
    return [*told, *([left] if others else [])]


def _meaning(reason: str) -> str:
    """Return the meaning of a reason code.

    The messages in `drill.json` are not shown, because nothing verifies these messages.
    """
    return "The drill ended before." if reason == INTERRUPTED else explanation(reason) or ""


def _upstream(view: ReportView, contract: str, rows: Sequence[Row]) -> Table | None:
    """Return a table by claim: the tolerance, and the faults that a check of only this tolerance would miss."""
    listed = []
    for claim in dict.fromkeys(row.claim for row in rows if row.upstream_alone_passes is not None):
        own = [row for row in rows if row.claim == claim and row.upstream_alone_passes is not None]
        passed = [row.fault for row in own if row.upstream_alone_passes]
        known = view.claim(contract, claim)
        demanded = known.upstream if known is not None else None
        passes = [f"{len(passed)} of {len(own)}", ", ".join(passed) or "none"]
        listed.append([claim, demanded or "the claim's tolerance, without its equality in bits", *passes])
    columns = ["claim", "the tolerance", "would pass", "faults that it would pass"]
    return table("The tolerance alone", columns, listed, folded=True, cell=WHOLE) if listed else None


def _survivors(record: DrillRecord) -> Table | None:
    rows = [
        [
            row.fault,
            row.claim,
            _triple(row.expected),
            _triple(row.seen),
            _meaning(row.seen.reason),
            _UPSTREAM[row.upstream_alone_passes],
        ]
        for row in record.survivors
    ]
    columns = ["survivor", "claim", "expected", "seen", "what was seen means", "the tolerance alone"]
    return table("What survived", columns, rows, shown=LISTED, cell=WHOLE) if rows else None


def survived(view: ReportView) -> list[str]:
    """Return one line for each surviving fault of the page's drill, for formats without a matrix."""
    rows = view.drill.survivors if view.drill is not None and (view.of_controls or view.drill_named) else []
    return [
        f"{row.fault} in {row.claim} on {row.workload}: expected {_triple(row.expected)}, seen {_triple(row.seen)}"
        for row in rows
    ]


def _others(record: DrillRecord) -> Table | None:
    """Return a table of the killed faults with the verdict of each, or None if no fault was killed."""
    killed = [row for row in record.rows if row.killed]
    rows = [[row.fault, row.claim, _triple(row.seen), _UPSTREAM[row.upstream_alone_passes]] for row in killed]
    columns = ["killed fault", "claim", "expected and seen", "the tolerance alone"]
    title = f"What was seen of the {len(rows)} killed"
    return table(title, columns, rows, folded=True, shown=LISTED) if rows else None


def _triple(value: Triple) -> str:
    figures = ", ".join(f"{name}={figure}" for name, figure in value.figures.items())
    return " ".join(part for part in (value.status, value.reason, figures) if part)

"""Compare two run directories: environment, verdicts, faults of a drill, figures and seconds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from harness.judging.verdict import Figure, Verdict
from harness.report.sections.closing import flatten
from harness.report.sections.costs import changes as changed_costs
from harness.report.text import figure, line, number, words
from harness.report.view import ReportView
from harness.run_directory.bundle import Header

Unit = tuple[str, str, str]
NOT_PLANNED = "not planned"
# Figures whose noise was measured in the run, each with the figures that contain the noise. For a mean ratio these are
# both ends of its interval. For the largest difference of two trajectories this is the noise floor.
_INTERVALS = {"mean_ratio": ("lower_bound", "upper_bound")}
_FLOORS = {"max_abs_difference": "noise_floor"}


@dataclass(frozen=True)
class Change:
    """One figure that differs between two runs. beyond_noise: True if it differs by more than noise; None: unknown."""

    unit: Unit
    name: str
    before: Figure | None
    after: Figure | None
    beyond_noise: bool | None


def compare(before: ReportView, after: ReportView) -> list[str]:
    """Return lines of text: what differs in environment, verdicts and figures, and which differences are noise."""
    lines = [f"before: {before.count_line()}", f"after:  {after.count_line()}"]
    for name, view in (("before", before), ("after", after)):
        lines += [f"FIRE DRILL, {name}: {line(view.drill_sentence(), 400)}"] if view.is_drill else []
        lines += [f"WARNING, {name}: {line(warning, 2000)}" for warning in view.warnings()]
    lines += ["", "Environment", *(_environment(before, after) or ["  the same"])]
    names = _Names.of(before, after)
    lines += ["", "Verdicts", *(_verdicts(before, after, names) or ["  the same"])]
    if before.of_controls and after.of_controls:
        lines += ["", "Faults", *(_faults(before, after, names) or ["  the same"])]
    changes = list(figure_changes(before, after))
    for title, kind in (
        ("Figures beyond noise", True),
        ("Figures changed, noise unknown", None),
        ("Figures changed within noise", False),
    ):
        shown = [_change(change, names) for change in changes if change.beyond_noise is kind]
        lines += ["", title, *shown] if shown else []
    lines += [] if changes else ["", "Figures", "  the same"]
    spent = [f"  {text}" for text in changed_costs(before.costs, after.costs)]
    return [*lines, *(["", "Seconds", *spent] if spent else [])]


def figure_changes(before: ReportView, after: ReportView) -> Iterator[Change]:
    """Yield the figures that differ between two runs, for each unit that both runs have, in the order of the units in
    `after`."""
    old = _by_unit(before)
    for unit, new in _by_unit(after).items():
        if unit not in old:
            continue
        first, second = old[unit].figures, new.figures
        for name in dict.fromkeys([*second, *first]):
            left, right = first.get(name), second.get(name)
            if not _same(left, right) and not _bound(name):
                yield Change(unit, name, left, right, _beyond(name, first, second))


def _same(left: Figure | None, right: Figure | None) -> bool:
    values = [one.value for one in (left, right) if one is not None and isinstance(one.value, float)]
    return left == right or [math.isnan(value) for value in values] == [True, True]


def _bound(name: str) -> bool:
    """Return True for a figure that is not listed separately, because it is a noise floor or an end of another figure's
    interval."""
    tail = name.rpartition(".")[2]
    return tail in set(_FLOORS.values()) or any(tail in bounds for bounds in _INTERVALS.values())


def _beyond(name: str, first: Mapping[str, Figure], second: Mapping[str, Figure]) -> bool | None:
    """Return True if a figure changed by more than noise, or None if its noise is unknown.

    If the figure has an interval in both runs, the change exceeds noise if the two intervals do not overlap. If the
    figure has noise floors, the change must be larger than each floor. Any change of a count exceeds noise.
    """
    prefix, _, tail = name.rpartition(".")
    prefix = f"{prefix}." if prefix else ""
    left, right = _number(first, name), _number(second, name)
    if left is None or right is None:
        return None
    counts = isinstance(left, bool | int) and isinstance(right, bool | int)
    if counts or not (math.isfinite(left) and math.isfinite(right)):
        return True  # a count has no noise, and a change to or from NaN or infinity is always reported
    if tail in _INTERVALS:
        low, high = _INTERVALS[tail]
        ends = [_number(one, prefix + end) for one in (first, second) for end in (low, high)]
        known = [float(end) for end in ends if end is not None and not math.isnan(end)]
        return _apart(*known) if len(known) == len(ends) else None
    floors = [_number(one, prefix + _FLOORS[tail]) for one in (first, second)] if tail in _FLOORS else []
    known = [float(floor) for floor in floors if floor is not None]
    measured = bool(known) and all(map(math.isfinite, known))
    return abs(float(left) - float(right)) > max(known) if measured else None


def _apart(old_low: float, old_high: float, new_low: float, new_high: float) -> bool:
    return old_high < new_low or new_high < old_low


def _number(figures: Mapping[str, Figure], name: str) -> bool | float | None:
    value = figures[name].value if name in figures else None
    return value if isinstance(value, int | float) else None


def _by_unit(view: ReportView) -> dict[Unit, Verdict]:
    return {(item.contract, item.claim, item.workload): item for item in view.verdicts}


def _environment(before: ReportView, after: ReportView) -> list[str]:
    """Return a line for each fact in the headers of two run directories that differs. A fact that only one run
    directory has counts as unknown in the other directory."""
    old, new = _facts(before.header), _facts(after.header)
    return [
        f"  {line(path, 80)}: {line(old.get(path, 'unknown'), 80)} -> {line(new.get(path, 'unknown'), 80)}"
        for path in dict.fromkeys([*old, *new])
        if old.get(path) != new.get(path)
    ]


def _facts(header: Header) -> dict[str, str]:
    """Return the facts in the header of a run directory (`run.json`), each under the path of its field.

    The facts are: the machine, the commits, what the command line selected (claims, workloads and tags), and all
    digests except the digests of evidence.
    """
    digests = header.digests.model_copy(update={"evidence": {}})
    records = (header.environment, *([header.commits] if header.commits is not None else []), header.narrowed, digests)
    facts = [fact for record in records for fact in flatten(record).items()]
    return {path: value if isinstance(value, str) else number(value) for path, value in facts}


def _verdicts(before: ReportView, after: ReportView, name: _Names) -> list[str]:
    old, new = _by_unit(before), _by_unit(after)
    lines = []
    for unit in dict.fromkeys([*new, *old]):
        first, second = _ended(before, old.get(unit)), _ended(after, new.get(unit))
        if first != second:
            lines.append(f"  {name.unit(unit)}: {line(first, 100)} -> {line(second, 100)}")
    return lines


def _ended(view: ReportView, verdict: Verdict | None) -> str:
    if verdict is None:
        return NOT_PLANNED
    return f"{verdict.status} {verdict.reason}{', waived' if view.waiver(verdict) else ''}"


def _faults(before: ReportView, after: ReportView, name: _Names) -> list[str]:
    """Return a line for each fault whose result in one drill differs from its result in the other drill."""
    old, new = _by_fault(before, name), _by_fault(after, name)
    ends = [(fault, old.get(fault, NOT_PLANNED), new.get(fault, NOT_PLANNED)) for fault in dict.fromkeys([*new, *old])]
    return [f"  {fault}: {line(first, 100)} -> {line(second, 100)}" for fault, first, second in ends if first != second]


def _by_fault(view: ReportView, name: _Names) -> dict[str, str]:
    """Return the result of each fault of a drill. A key names claim, fault and, if the fault was planted, workload."""
    if view.drill is None:
        return {}
    ended = {
        f"{name.unit((row.contract, row.claim, row.workload))}, {line(row.fault, 80)}": (
            "killed" if row.killed else "SURVIVED"
        )
        for row in view.drill.rows
    }
    left = {
        f"{name.claim(item.contract, item.claim)}, {line(item.fault, 80)}": f"not run {item.reason}"
        for item in view.drill.not_run
    }
    return ended | left


@dataclass(frozen=True)
class _Names:
    """Names of claims and units. If claims of several contracts have the same name, the name of the contract is
    added."""

    shared: frozenset[str]  # names of claims that occur in several contracts

    @classmethod
    def of(cls, *views: ReportView) -> _Names:
        having: dict[str, set[str]] = {}
        for verdict in (verdict for view in views for verdict in view.verdicts):
            having.setdefault(verdict.claim, set()).add(verdict.contract)
        return cls(frozenset(claim for claim, contracts in having.items() if len(contracts) > 1))

    def claim(self, contract: str, claim: str) -> str:
        return f"{line(claim, 80)}{self._of(contract, claim)}"

    def unit(self, unit: Unit) -> str:
        contract, claim, workload = unit
        return f"{line(claim, 80)} on {line(workload, 60)}{self._of(contract, claim)}"

    def _of(self, contract: str, claim: str) -> str:
        return f" ({line(contract, 80)})" if claim in self.shared else ""


def _change(change: Change, name: _Names) -> str:
    first, second = (figure(item) if item else "unknown" for item in (change.before, change.after))
    return f"  {name.unit(change.unit)}, {words(change.name)}: {first} -> {second}"

"""What changed from one run directory to another: environment, verdicts, figures beyond noise, seconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from harness.judge.verdict import Figure, Verdict
from harness.report.sections.closing import flatten
from harness.report.sections.costs import changes as changed_costs
from harness.report.text import figure, line, number, words
from harness.report.view import ReportView
from harness.run_directory.bundle import Header

Unit = tuple[str, str, str]
# Figures whose noise the run itself measured: the interval of a mean ratio, the noise floor of a trajectory.
_INTERVALS = {"mean_ratio": ("lower_bound", "upper_bound")}
_FLOORS = {"max_abs_difference": "noise_floor"}


@dataclass(frozen=True)
class Change:
    """One figure that is not the same. `beyond_noise` is None where neither run measured the figure's noise."""

    unit: Unit
    name: str
    before: Figure | None
    after: Figure | None
    beyond_noise: bool | None


def compare(before: ReportView, after: ReportView) -> list[str]:
    """Lines of text: differences of the environment, of verdicts, and of figures, with how much of it is noise."""
    lines = [f"before: {before.count_line()}", f"after:  {after.count_line()}"]
    for name, view in (("before", before), ("after", after)):
        lines += [f"FIRE DRILL, {name}: {line(view.drill_sentence(), 400)}"] if view.is_drill else []
        lines += [f"WARNING, {name}: {line(warning, 2000)}" for warning in view.warnings()]
    lines += ["", "Environment", *(_environment(before, after) or ["  the same"])]
    lines += ["", "Verdicts", *(_verdicts(before, after) or ["  the same"])]
    changes = list(figure_changes(before, after))
    for title, kind in (
        ("Figures beyond noise", True),
        ("Figures changed, noise unknown", None),
        ("Figures changed within noise", False),
    ):
        shown = [_change(change) for change in changes if change.beyond_noise is kind]
        lines += ["", title, *shown] if shown else []
    lines += [] if changes else ["", "Figures", "  the same"]
    spent = [f"  {text}" for text in changed_costs(before.costs, after.costs)]
    return [*lines, *(["", "Seconds", *spent] if spent else [])]


def figure_changes(before: ReportView, after: ReportView) -> Iterator[Change]:
    """Figures of the units that both runs decided or measured, where they differ; in the order of the later run."""
    old = _by_unit(before)
    for unit, new in _by_unit(after).items():
        if unit not in old:
            continue
        first, second = old[unit].figures, new.figures
        for name in dict.fromkeys([*second, *first]):
            left, right = first.get(name), second.get(name)
            if left != right and not _bound(name):
                yield Change(unit, name, left, right, _beyond(name, first, second))


def _bound(name: str) -> bool:
    """Figures that only say how noisy another one is are no changes of their own."""
    tail = name.rpartition(".")[2]
    return tail in set(_FLOORS.values()) or any(tail in bounds for bounds in _INTERVALS.values())


def _beyond(name: str, first: Mapping[str, Figure], second: Mapping[str, Figure]) -> bool | None:
    """Whether a change exceeds the noise that the runs measured: intervals apart, or more than both floors."""
    prefix, _, tail = name.rpartition(".")
    prefix = f"{prefix}." if prefix else ""
    left, right = _number(first, name), _number(second, name)
    if left is None or right is None:
        return None
    if isinstance(left, bool | int) and isinstance(right, bool | int):
        return True  # counts have no noise
    if tail in _INTERVALS:
        low, high = _INTERVALS[tail]
        ends = [_number(one, prefix + end) for one in (first, second) for end in (low, high)]
        if any(end is None for end in ends):
            return None
        old_low, old_high, new_low, new_high = (float(end) for end in ends if end is not None)
        return old_high < new_low or new_high < old_low
    if tail in _FLOORS:
        floors = [_number(one, prefix + _FLOORS[tail]) for one in (first, second)]
        known = [float(floor) for floor in floors if floor is not None]
        return abs(float(left) - float(right)) > max(known) if known else None
    return None


def _number(figures: Mapping[str, Figure], name: str) -> bool | float | None:
    value = figures[name].value if name in figures else None
    return value if isinstance(value, int | float) else None


def _by_unit(view: ReportView) -> dict[Unit, Verdict]:
    return {(item.contract, item.claim, item.workload): item for item in view.verdicts}


def _environment(before: ReportView, after: ReportView) -> list[str]:
    """Facts that differ; a fact that one run directory does not know is shown as unknown."""
    old, new = _facts(before.header), _facts(after.header)
    return [
        f"  {line(path, 80)}: {line(old.get(path, 'unknown'), 80)} -> {line(new.get(path, 'unknown'), 80)}"
        for path in dict.fromkeys([*old, *new])
        if old.get(path) != new.get(path)
    ]


def _facts(header: Header) -> dict[str, str]:
    """What was collected of the machine, and the digests; those of evidence differ always and say nothing."""
    digests = header.digests.model_copy(update={"evidence": {}})
    return {path: number(value) for path, value in (flatten(header.environment) | flatten(digests)).items()}


def _verdicts(before: ReportView, after: ReportView) -> list[str]:
    old, new = _by_unit(before), _by_unit(after)
    lines = []
    for unit in dict.fromkeys([*new, *old]):
        first, second = (
            f"{item.status} {item.reason}" if item else "not planned" for item in (old.get(unit), new.get(unit))
        )
        if first != second:
            lines.append(f"  {_unit(unit)}: {line(first, 100)} -> {line(second, 100)}")
    return lines


def _change(change: Change) -> str:
    first, second = (figure(item) if item else "unknown" for item in (change.before, change.after))
    return f"  {_unit(change.unit)}, {words(change.name)}: {first} -> {second}"


def _unit(unit: Unit) -> str:
    return f"{line(unit[1], 80)} on {line(unit[2], 60)}"

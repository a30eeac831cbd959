"""Describe the parts of a page of several run directories: machine, commit and verdict of each, and what differs.

A value that most parts share stands as it is; any other value has `DIFFERS` before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from harness.evidence.environment_records import quoted
from harness.judging.verdict import Status
from harness.report.headline import headline
from harness.report.text import line
from harness.report.view import ReportView
from harness.run_directory.bundle import Header

DIFFERS = "≠ "
FEW = 3  # values of a fact that stand at the top
UNKNOWN = "–"


def facts(view: ReportView) -> dict[str, str]:
    """Return the facts that must be equal in runs of one gate on one kind of machine; `UNKNOWN` if not recorded."""
    header = view.header
    collected = header.environment
    known: dict[str, str | None] = {
        "GPU": view.gpus_used() or "none",
        "driver": collected.gpu.driver,
        "torch": collected.versions.get("torch"),
        "harness commit": quoted(collected.git.commit or "") or None,
        "trainer commit": _trainers(header),
        "sources": header.digests.source[:12],
    }
    return {name: line(value, 120) if value else UNKNOWN for name, value in known.items()}


def columns(view: ReportView) -> dict[str, list[str]]:
    """Return the facts of all parts by name, a value for each part, marked where most parts have another value.

    A fact that no part knows is left out.
    """
    of_parts = [facts(part.view) for part in view.parts]
    found = {name: [each[name] for each in of_parts] for name in (of_parts[0] if of_parts else ())}
    return {name: _marked(values) for name, values in found.items() if set(values) != {UNKNOWN}}


def differences(view: ReportView) -> str:
    """Return which facts the parts do not share, with how many values each has; empty if they share all."""
    found = {name: {value.removeprefix(DIFFERS) for value in values} for name, values in columns(view).items()}
    several = [f"{name} ({len(values)} of them)" for name, values in found.items() if len(values) > 1]
    return f"The parts differ in {', '.join(several)}." if several else ""


def notes(view: ReportView) -> list[str]:
    """Return notes on several parts: why they are not one gate, what differs, which units were judged differently."""
    if not view.parts:
        return []
    apart = f"Not one gate ({'; '.join(view.apart)}): each run is judged by itself." if view.apart else ""
    units = view.contradictory()
    named = ", ".join(f"{line(unit.claim, 80)} on {line(unit.workload, 60)}" for unit in units[:5])
    more = f" and {len(units) - 5} more" if len(units) > 5 else ""
    again = f"Judged in several parts, and not alike: {named}{more}. The earliest attempt counts." if units else ""
    return [note for note in (apart, differences(view), again) if note]


def rows(view: ReportView) -> tuple[list[str], list[list[str]]]:
    """Return the table of the parts: the names of its columns, and a row for each part, in the order of their start."""
    marked = columns(view)
    names = ["part", "verdict", "units held", *marked, "started (UTC)"]
    cells = []
    for place, part in enumerate(view.parts):
        verdicts = part.view.verdicts
        held = f"{sum(verdict.status is Status.PASS for verdict in verdicts)} of {len(verdicts)}"
        own = [values[place] for values in marked.values()]
        cells.append([line(part.name, 160), headline(part.view).word, held, *own, _minute(part.view.header.started_at)])
    return names, cells


def part_lines(view: ReportView) -> list[str]:
    """Return a line for each part, for a terminal."""
    names, cells = rows(view)
    return [
        f"part {name}: {word}, {held} held · " + " · ".join(map(" ".join, zip(names[3:], facts, strict=True)))
        for name, word, held, *facts in cells
    ]


def of_each_part(view: ReportView, facts_of: Callable[[ReportView], list[tuple[str, str]]]) -> list[tuple[str, str]]:
    """Return facts for the top of a page by name; of several parts each value once, and only the first few."""
    found: dict[str, list[str]] = {}
    for one in [part.view for part in view.parts] or [view]:
        for name, value in facts_of(one):
            if value not in found.setdefault(name, []):
                found[name].append(value)
    return [(name, _few(values)) for name, values in found.items()]


def _few(values: list[str]) -> str:
    return "; ".join(values[:FEW]) + (f" and {len(values) - FEW} more" if len(values) > FEW else "")


def _minute(moment: str) -> str:
    """Return a time of a header to the minute: `2026-11-22 16:16`."""
    return line(moment, 60)[:16].replace("T", " ")


def _marked(values: list[str]) -> list[str]:
    [(usual, count)] = Counter(values).most_common(1)
    return [value if value == usual and count > 1 else DIFFERS + value for value in values]


def _trainers(header: Header) -> str | None:
    """Return the commits of the trainers' own repositories, each once; the candidate's if two commits are compared."""
    if header.commits is not None:
        return header.commits.candidate.line()
    commits = dict.fromkeys(quoted(facts.commit) for facts in header.environment.trainers.values() if facts.commit)
    return ", ".join(commits) or None

"""What broke, the kill matrix, the environment, and how to reproduce the run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from harness.report.blocks import Part, Section, Table, table
from harness.report.text import clean, line, number
from harness.report.view import RunView, mappings

_UPSTREAM = {"True": "would pass it", "False": "catches it"}


def deaths(view: RunView) -> Section | None:
    """Every worker that did not complete, with the last Python stack that was seen of it."""
    parts = []
    for run in view.evidence.values():
        if run.death is None:
            continue
        where = f" in the phase {line(run.death.phase, 80)}" if run.death.phase else ""
        cause = f"{run.death.cause.replace('_', ' ')}{where}: {line(run.death.detail, 600)}"
        stack = clean(run.death.stack, 6000).strip()
        parts.append(Part(line(run.run_id, 120), [cause], runs=[run.run_id], listing=stack))
    return Section("broke", "What broke", "Workers that ended before their work was done.", parts) if parts else None


def kill_matrix(view: RunView) -> Section | None:
    """Each planted fault against the claim it must break; survivors first."""
    found = mappings((view.drill or {}).get("rows"))
    if not found:
        return None
    ordered = sorted(found, key=lambda row: bool(row.get("killed")))
    survivors = sum(1 for row in found if not row.get("killed"))
    rows = [
        [
            "killed" if row.get("killed") else "SURVIVED",
            str(row.get("claim", "")),
            str(row.get("fault", "")),
            _triple(row.get("expected")),
            _triple(row.get("seen")),
            _UPSTREAM.get(str(row.get("upstream_alone_passes")), "–"),
        ]
        for row in ordered
    ]
    columns = ["result", "claim", "planted fault", "must say", "said", "upstream's number alone"]
    recorded = (view.drill or {}).get("recorded_at")
    text = [f"{len(found)} planted faults, {len(found) - survivors} killed, {survivors} survived."]
    text += [f"Recorded {line(recorded, 60)}."] if recorded else []
    lead = "A check that was never seen to fail proves nothing: each claim against the faults it must catch."
    return Section(
        "drill", "Fire drill", lead, [Part("Kill matrix", text, [], [table("Faults", columns, rows, shown=300)])]
    )


def _triple(value: object) -> str:
    if not isinstance(value, Mapping):
        return "–"
    figures = value.get("figures")
    listed = ", ".join(f"{key}={item}" for key, item in figures.items()) if isinstance(figures, Mapping) else ""
    return " ".join(part for part in (str(value.get("status", "")), str(value.get("reason", "")), listed) if part)


def environment(view: RunView) -> Section | None:
    """Everything `run.json` says of the machine, its software and the digests, and the system's own facts."""
    tables: list[Table] = []
    for title in ("environment", "digests", "narrowed"):
        facts = list(flatten(view.run.get(title)))
        if facts:
            tables.append(table(title.capitalize(), ["", "value"], facts, shown=80, folded=title == "digests"))
    stated = _stated(view)
    if stated:
        tables.append(table("Stated by the system", ["fact", "value", "by"], stated, folded=True, shown=60))
    lead = "The machine and its software, as collected when the run began."
    return Section("environment", "Environment", lead, [Part("Fingerprint", [], [], tables)]) if tables else None


def _stated(view: RunView) -> list[list[object]]:
    """Facts of the arms' systems, each value once: those all arms share first, the others with the arms that say so."""
    speakers: dict[tuple[str, str], list[str]] = {}
    arms = [(run, arm, items[0]) for run in view.evidence.values() for arm, items in run.arms.items() if items]
    for run, arm, item in arms:
        for key, value in item.start.facts.items():
            fact = (key, value if isinstance(value, str) else number(value))
            speakers.setdefault(fact, []).append(f"{view.title_of(run.run_id)} · {arm}")
    ordered = sorted(speakers.items(), key=lambda item: len(item[1]) != len(arms))
    return [[*fact, _named(said, len(arms))] for fact, said in ordered]


def _named(said: list[str], of: int) -> str:
    different = list(dict.fromkeys(said))
    if len(said) == of > 1:
        return f"all {of} arms of all runs"
    more = f" and {len(different) - 2} more" if len(different) > 2 else ""
    return "; ".join(different[:2]) + more


def flatten(value: Any, path: str = "", depth: int = 0) -> Iterator[list[object]]:
    """Nested mappings as rows of (path, text); a list becomes one row, empty values none, and depth is bounded."""
    if isinstance(value, Mapping) and depth < 6:
        for key, item in value.items():
            yield from flatten(item, f"{path}.{key}" if path else str(key), depth + 1)
        return
    if isinstance(value, list | tuple):
        value = ", ".join(map(str, value[:20]))
    if value is not None and value != "":
        yield [path, number(value) if isinstance(value, int | float) else str(value)]


def command(view: RunView) -> str | None:
    """The one command that repeats the run, as a shell takes it."""
    found = view.run.get("reproduce") or view.run.get("command")
    if isinstance(found, list | tuple):
        found = shlex.join(map(str, found))
    return clean(found, 2000) if isinstance(found, str) and found.strip() else None

"""Show runs over time: each run by name with its trainer's commit, and every judged figure with its interval.

A line joins only runs of like machines and of one trainer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.judging.verdict import Status
from harness.numbers import counted
from harness.report.blocks import Section
from harness.report.history_figures import HistoryRun, changes, figures, history, machine
from harness.report.page import render_page
from harness.report.text import clean, line
from harness.report.trainer import harness_commit, trainer_commit, trainers

SHOWN = 3  # trainers of a run that are named; the others are counted


@dataclass(frozen=True)
class Row:
    """A line of a table of runs. `link`: the address of its page; `parts`: of a gate, names and addresses.

    about: when and where; harness: its commit, where that is not the trainer's.
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
    """Return the history as one self-contained HTML page: every run that was named, then each judged figure."""
    shown = sorted(runs, key=lambda run: (run.started, run.name))
    verified = [run for run in shown if run.drawn]
    drills = [run for run in shown if run.view is not None and run.view.of_controls]
    left_out = [run for run in shown if run.left_out]
    frame = history(verified)
    turned = Section(
        "verdicts", "Verdicts", "Units that one run judged otherwise than the run before.", [changes(frame)]
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
    """Return `14 runs: 9 verified, 3 fire drills, 2 left out`; the parts of a gate count as runs of their own."""
    kinds = [f"{verified} verified", counted(drills, "fire drill"), f"{left_out} left out"]
    return f"{counted(runs, 'run')}: " + ", ".join(kind for kind in kinds if not kind.startswith("0 "))


def _row(parts: Sequence[HistoryRun], cells: Sequence[object]) -> Row:
    """Return the row of a run, or of the parts of a gate: each has a machine; trainer and commit are common."""
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
    """Return a row with how many units had which verdict, in one run or in the parts of a gate together."""
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
    """Group the runs by gate, in the order in which the first part of each gate stands.

    The parts of a gate share the beginning of their name, sources, commits, trainers and contracts. They share no unit:
    a second run of a unit belongs to another gate.
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
    commits = header.commits.model_dump_json() if header.commits is not None else ""
    return run.gate, header.digests.source, header.environment.git.commit, commits, tuple(trainers(run.view))


def _fits(run: HistoryRun, parts: Sequence[HistoryRun]) -> bool:
    """Return True if no part has a unit of the run, or another text of one of the run's contracts."""
    return all(_units(run).isdisjoint(_units(part)) and _alike(_contracts(run), _contracts(part)) for part in parts)


def _units(run: HistoryRun) -> set[tuple[str, str, str]]:
    verdicts = run.view.verdicts if run.view is not None else []
    return {(verdict.contract, verdict.claim, verdict.workload) for verdict in verdicts}


def _contracts(run: HistoryRun) -> dict[str, str]:
    return run.view.header.digests.contracts if run.view is not None else {}


def _alike(ours: dict[str, str], theirs: dict[str, str]) -> bool:
    return all(theirs[name] == digest for name, digest in ours.items() if name in theirs)

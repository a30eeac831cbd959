"""Write a forecast as `--plan` prints it: the counts first, then the units, then the runs, then the seconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.evidence.base import Obstacle
from harness.forecast.records import Forecast, PlannedRun, PlannedUnit
from harness.numbers import counted
from harness.report.text import line


def shown(forecast: Forecast) -> list[str]:
    """Return the lines of a forecast. Untrusted names are made harmless."""
    here, planned = forecast.decidable, len(forecast.units)
    return [
        f"{planned} planned · {here} can be decided here · {planned - here} cannot",
        *(
            f"  can run   {_name(unit)}: {line(', '.join(unit.runs) or 'evidence of other runs', 400)}"
            for unit in forecast.units
            if unit.obstacle is None
        ),
        *_not_here([unit for unit in forecast.units if unit.obstacle is not None]),
        f"{counted(len(forecast.runs), 'run')} to execute; nothing was executed yet",
        *(text for run in forecast.runs for text in _run(run)),
        *_seconds(forecast),
    ]


def _name(unit: PlannedUnit) -> str:
    name = line(f"{unit.claim} on {unit.workload}" if unit.workload else unit.claim, 140)
    return f"{name} with the fault {line(unit.fault, 80)}" if unit.fault is not None else name


def _not_here(units: Sequence[PlannedUnit]) -> Iterator[str]:
    """Yield the units that cannot be decided here, under one line for each obstacle: without a GPU they are most."""
    together: dict[Obstacle, list[PlannedUnit]] = {}
    for unit in units:
        if unit.obstacle is not None:
            together.setdefault(unit.obstacle, []).append(unit)
    for obstacle, kept in together.items():
        yield f"  not here  {counted(len(kept), 'unit')}, {line(obstacle.reason, 60)}: {line(obstacle.message, 400)}"
        yield from (f"            {_name(unit)}" for unit in kept)


def _run(run: PlannedRun) -> Iterator[str]:
    where = "GPU" if run.device == "gpu" else "processors"
    processes = f", {run.processes} processes side by side" if run.processes > 1 else ""
    took = "unknown: no run like it is recorded"
    if run.estimate is not None:
        took = f"about {run.estimate.seconds:,.1f} s, by {line(run.estimate.source, 300)}"
    yield f"  {line(run.id, 120)} ({run.probe}, {where}: {line(run.device_name, 80)}{processes}): {took}"
    yield f"            serves {line('; '.join(run.serves), 600)}"
    if run.stands_for:
        yield f"            stands for {line(', '.join(run.stands_for), 400)}"


def _seconds(forecast: Forecast) -> Iterator[str]:
    known = len(forecast.runs) - forecast.unknown
    if known:
        yield f"About {forecast.seconds:,.1f} s for {counted(known, 'run')}, if one process followed another."
    if forecast.unknown:
        unknown = counted(forecast.unknown, "run")
        yield f"Unknown for {unknown}: nothing like that is recorded in the folder of --reports."
    if forecast.together is not None:
        together = forecast.together
        yield f"Together, as they are executed, they took {together.seconds:,.1f} s in {line(together.source, 200)}."

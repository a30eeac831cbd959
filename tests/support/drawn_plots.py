"""Return every plot of a run's sections, also those that the page budget leaves out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from harness.report.blocks import JudgedPlot, Unit
from harness.report.charts.svg import Plot
from harness.report.html import evidence
from harness.report.view import ReportView


class DrawnPlot(NamedTuple):
    """A plot, its section, its units (claim and workload), and the arms by role for each part of their claims."""

    anchor: str
    plot: Plot
    units: frozenset[Unit]
    arms: tuple[Mapping[str, str], ...]


def drawn_plots(view: ReportView) -> tuple[DrawnPlot, ...]:
    """Return all plots of a view, in reading order."""
    parts = {(one.contract, one.claim, one.workload): found for one, found, _ in view.judged()}
    return tuple(
        DrawnPlot(
            section.anchor,
            drawn.plot,
            drawn.units,
            tuple(part.arms() for unit, found in parts.items() if unit in drawn.units for part in found),
        )
        for section in evidence(view)
        for part in section.parts
        for drawn in [*part.judged, *(JudgedPlot(plot, frozenset()) for plot in part.plots)]
    )

"""Which card a plot stands in: that of the first unit that is judged by it; the other cards lead there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from harness.report.blocks import Part, Section
from harness.report.cards import Card
from harness.report.svg import Plot


@dataclass(frozen=True)
class Figure:
    """A plot in a card, or, with `plot` None, a link to where it stands."""

    anchor: str
    title: str
    plot: Plot | None = None


@dataclass(frozen=True)
class Placed:
    """Sections without the plots that cards have, and the figures of each card by the anchor of its first unit."""

    sections: list[Section]
    figures: dict[str, list[Figure]] = field(default_factory=dict)


def placed(sections: Sequence[Section], cards: Sequence[Card]) -> Placed:
    """Every judged plot in the first card that has a unit of it; where no card has, it stays in its section."""
    figures: dict[str, list[Figure]] = {}
    number = 0
    left: list[Section] = []
    for section in sections:
        parts: list[Part] = []
        for part in section.parts:
            plots, drawn_with = list(part.plots), dict[str, str]()
            for each in part.judged:
                having = [card for card in cards if any(unit.unit in each.units for unit in card.units)]
                if not having:
                    plots.append(each.plot)
                    continue
                number += 1
                anchor, first = f"plot-{number}", having[0]
                of = ", ".join(unit.workload for unit in first.units if unit.unit in each.units)
                title = f"{section.title}, {of}"
                figures.setdefault(first.anchor, []).append(Figure(anchor, title, each.plot))
                for card in having[1:]:
                    where = f"{title}, with {first.claim}"
                    figures.setdefault(card.anchor, []).append(Figure(anchor, where))
                drawn_with.setdefault(first.anchor, first.claim)
            parts.append(replace(part, plots=plots, judged=[], drawn_with=list(drawn_with.items())))
        left.append(replace(section, parts=parts))
    return Placed(left, figures)

"""The words in a card's figures that a reviewer need not know, explained in the card or in one that has the same."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness.report.cards import Card
from harness.report.glossary import terms_in


@dataclass(frozen=True)
class CardTerms:
    """The terms of a card; `elsewhere` is the anchor of the card that explains them, empty for this one."""

    terms: dict[str, str]
    elsewhere: str = ""


def card_terms(cards: Iterable[Card]) -> dict[str, CardTerms]:
    """By the anchor of a card's first unit; cards without a term have none."""
    first: dict[tuple[str, ...], str] = {}
    found = {}
    for card in cards:
        names = [name for name, _ in (*card.figures, *card.denominators)]
        if terms := terms_in(names):
            anchor = card.units[0].anchor
            explained = first.setdefault(tuple(terms), anchor)
            found[anchor] = CardTerms(terms) if explained == anchor else CardTerms({}, explained)
    return found

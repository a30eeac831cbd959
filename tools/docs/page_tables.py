"""Make Markdown tables, and write them between the two marks (HTML comments) of a page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

PLACE = re.compile(r"(<!-- tables?\b[^>]*-->).*?(<!-- end of tables? -->)", re.DOTALL)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], bar: str = "\\|") -> str:
    """Return a Markdown table. In a cell, each `|` is replaced by `bar`, and each line break by a space."""
    lines = [head, ["---"] * len(head), *rows]
    cells = [[" ".join(cell.replace("|", bar).split()) for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def filled(page: str, text: str) -> str:
    """Return the page with `text` between its marks. Raises ValueError unless the page has one pair of marks."""
    written, places = PLACE.subn(lambda found: f"{found[1]}\n\n{text}\n\n{found[2]}", page)
    if places != 1:
        raise ValueError(
            f"a page must have exactly one place for tables, but this page has {places}; correct its marks"
        )
    return written

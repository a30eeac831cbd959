"""Which terms of the glossary occur in texts: a page explains those that it shows."""

from __future__ import annotations

import re
from collections.abc import Iterable

from harness.report.wording import glossary


def terms_in(texts: Iterable[str]) -> dict[str, str]:
    """The terms that occur in any of these texts, with their explanations, in the glossary's order.

    A term counts in the plural too; one within a longer one that stands there (`sync` in `host sync`) does not.
    """
    joined = "\n".join(texts).replace("_", " ").casefold()
    found = set()
    for term in sorted(glossary(), key=len, reverse=True):
        joined, number = re.subn(rf"(?<![a-z0-9]){re.escape(term)}(?:s|es)?(?![a-z])", "\0", joined)
        if number:
            found.add(term)
    return {term: meaning for term, meaning in glossary().items() if term in found}

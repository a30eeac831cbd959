"""Rules of prose: lines end at 100 columns, and the field's words are used, each the same one."""

from __future__ import annotations

import re

WIDEST = 100
# A word of the house, as a pattern, and what to write.
REPLACEMENTS = {
    r"tells?|told": "report, record, print",
    r"beside": "next to, with",
    r"nobody|whoever": "name the actor",
    r"mend(s|ed|ing)?": "fix",
    r"(goes|go|going|went|gone) on with": "resume",
    r"strangers?": "user code, untrusted code",
    r"(?<!there )is no (?!longer\b|more\b)[a-z]+": "is not a",
    r"other than": "different from",
    r"in (the )?place of": "instead of",
    r"for want of": "without",
}
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def prose(text: str) -> list[str]:
    """Return the lines without blocks of code and without what stands in backticks."""
    return re.sub(r"`[^`\n]*`", "", FENCED.sub("", text)).splitlines()


def too_wide(text: str) -> list[str]:
    """Return a complaint for each line that is too long. Rows of tables, links and comments may be longer."""
    return [
        f"more than {WIDEST} columns: {line}"
        for line in FENCED.sub("", text).splitlines()
        if len(line) > WIDEST and not line.startswith(("|", "<!--")) and "](" not in line
    ]


def house_words(text: str) -> list[str]:
    """Return a complaint for each word that has a better known replacement."""
    return [
        f"{found[0]}: write {instead}"
        for line in prose(text)
        for word, instead in REPLACEMENTS.items()
        for found in re.finditer(rf"\b({word})\b", line, re.IGNORECASE)
    ]

"""Text from anywhere made fit to show: no control characters, no hidden direction marks, bounded length.

Escaping for HTML is Jinja's work, for XML and Markdown that of the writers; this comes before it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from harness.judge.verdict import Figure

# Not characters of XML 1.0, or (tabs and line ends apart) invisible to a reader: C0, C1, surrogates, non-characters.
_INVALID = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
# Marks that turn the direction of the text after them, or hide inside it: shown as U+FFFD, never obeyed.
_HIDDEN = re.compile(
    "[\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
_REPLACEMENT = "\ufffd"


def clean(value: object, limit: int = 2000) -> str:
    """Text without invalid or hidden characters, at most `limit` long; what was cut out of the middle is counted."""
    text = value if isinstance(value, str) else str(value)
    if len(text) > limit:
        # A long name differs at either end: keep both.
        tail = limit // 4
        text = f"{text[: limit - tail]} … ({len(text) - limit:,} characters left out) … {text[-tail:]}"
    return _HIDDEN.sub(_REPLACEMENT, _INVALID.sub(_REPLACEMENT, text))


def line(value: object, limit: int = 200) -> str:
    """`clean` on one line."""
    text = value if isinstance(value, str) else str(value)
    head = text if len(text) <= 4 * limit else text[: 3 * limit] + text[-limit:]
    short = clean(" ".join(head.split()), limit)
    return short if len(text) == len(head) else f"{short} ({len(text):,} characters)"


def label(value: object, limit: int = 36) -> str:
    """A label for a plot: characters the plot's font has, on one line, never empty, no leading underscore."""
    text = "".join(sign if " " <= sign <= "~" or "\xa1" <= sign <= "\xff" else "?" for sign in line(value, 400))
    text = text.replace("\xad", "?").lstrip("_ ")
    return (text if len(text) <= limit else f"{text[: limit - 13]}...{text[-10:]}") or "unnamed"


def number(value: object) -> str:
    """A figure's value for people: six significant digits, thousands grouped, non-finite numbers by name."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        if value != value:  # noqa: PLR0124 - the definition of NaN
            return "NaN"
        if abs(value) == float("inf"):
            return "∞" if value > 0 else "−∞"
        short = f"{value:.6g}"
        return f"{value:,.0f}" if value.is_integer() and 1e4 <= abs(value) < 1e15 else short.replace("e-0", "e-")
    return "–" if value is None else line(value, 300)


def figure(value: Figure) -> str:
    """A figure with its unit; a step's number needs none, its name says what it counts."""
    unit = "" if value.unit == "step" or value.value is None else line(value.unit, 40)
    return f"{number(value.value)} {unit}".rstrip()


def words(name: str) -> str:
    """`capture.first_differing_step` as `capture: first differing step`."""
    return line(name.replace("_", " ").replace(".", ": "), 80)


def sentence(text: str) -> str:
    """A sentence with its first letter large, unless it begins with a name (`sm_90`, `loss_1`, `gradient_match:`)."""
    first = text.partition(" ")[0]
    return text[:1].upper() + text[1:] if first.isascii() and first.isalpha() and first.islower() else text


def rows(figures: Mapping[str, Figure]) -> list[tuple[str, str]]:
    """Figures as rows of a table: what it is, and the number with its unit."""
    return [(words(name), figure(value)) for name, value in list(figures.items())[:60]]


def size(count: float) -> str:
    """A number of bytes in a binary unit."""
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"

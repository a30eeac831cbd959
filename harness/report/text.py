"""Make untrusted text safe to show: escape it (`harness.errors`) and limit its length.

The text must then also be escaped for its format. Jinja does this for HTML, and the writers of XML and Markdown do it
for their formats.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from harness.errors import escaped, printable
from harness.judging.verdict import Figure


def clean(value: object, limit: int = 2000) -> str:
    """Return escaped text that keeps its line breaks and tabs, cut to `limit` characters. A note shows how much was
    cut."""
    return _lines(value, limit, escaped)


def listing(value: object, limit: int = 6000) -> str:
    """Return lines of printable text, cut to `limit` characters. Commands of CI systems are not escaped, because the
    `^^^` of a traceback is such a command. Use this function only for HTML pages, which no CI system reads.
    """
    return _lines(value, limit, printable)


def _lines(value: object, limit: int, made_fit: Callable[[object], str]) -> str:
    text = value if isinstance(value, str) else str(value)
    cut = _bounded(text, limit)
    shown = "\n".join("\t".join(made_fit(part) for part in each.split("\t")) for each in cut.split("\n"))
    return shown if len(shown) == len(cut) else _bounded(shown, limit)


def _bounded(text: str, limit: int) -> str:
    """Return a text of at most `limit` characters. The middle of a longer text is cut out between words, because long
    names often differ only at their ends. Only a word of more than 40 characters is itself cut."""
    if len(text) <= limit:
        return text
    tail = limit // 4
    first = re.sub(r"\s\S{0,40}\Z", "", text[: limit - tail]).rstrip()
    last = re.sub(r"\A\S{0,40}\s", "", text[-tail:]).lstrip()
    return f"{first} … ({several(len(text) - len(first) - len(last), 'character')} left out) … {last}"


def line(value: object, limit: int = 200) -> str:
    """Return escaped text on one line, cut to `limit` characters. A note shows how much was cut."""
    text = value if isinstance(value, str) else str(value)
    head = text if len(text) <= 4 * limit else text[: 3 * limit] + text[-limit:]
    short = clean(" ".join(head.split()), limit)
    return short if len(text) == len(head) else f"{short} ({len(text):,} characters)"


def opening(value: object, limit: int) -> str:
    """Return text on one line. If it has more than `limit` characters, end it after the last full stop, semicolon or
    colon within the limit, and add ` …`. If less than half of `limit` would remain, end it after a whole word instead.
    """
    text = line(value, 8 * limit)
    if len(text) <= limit:
        return text
    ends = [found.start() + 1 for found in re.finditer(r"[.;:](?= )", text[:limit])]
    whole = text[: ends[-1]].rstrip(";:") if ends and 2 * ends[-1] >= limit else ""
    return f"{whole or text[:limit].rpartition(' ')[0] or text[:limit]} …"


def label(value: object, limit: int = 36) -> str:
    """Return one line as a label for a plot. The label is never empty, and has no leading underscore.

    The label contains only characters that the plot's font has.
    """
    text = "".join(sign if " " <= sign <= "~" or "\xa1" <= sign <= "\xff" else "?" for sign in line(value, 400))
    text = text.replace("\xad", "?").lstrip("_ ")
    return (text if len(text) <= limit else f"{text[: limit - 13]}...{text[-10:]}") or "unnamed"


def number(value: object) -> str:
    """Return a value as text for people: six significant digits, grouped thousands, and names for non-finite
    numbers."""
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


def larger(value: float) -> tuple[bool, float]:
    """Return a sort key in which NaN is larger than any number."""
    return value != value, value  # noqa: PLR0124 - the definition of NaN


def several(count: int, noun: str, ending: str = "s") -> str:
    """Return text such as `1 step` or `1,200 steps`. Unlike in `numbers.counted`, thousands are grouped."""
    return f"{count:,} {noun if count == 1 else f'{noun}{ending}'}"


def figure(value: Figure, name: str = "") -> str:
    """Return a figure's value with its unit of measurement. The unit `step` is left out, and also a unit that the
    figure's name already contains."""
    known = value.unit == "step" or value.value is None or value.unit in words(name).split()
    unit = "" if known else line(value.unit, 40)
    return f"{number(value.value)} {of_count(unit, value.value)}".rstrip()


def of_count(unit: str, count: object) -> str:
    """Return a unit of measurement in the form that fits the count: `step` for 1, otherwise `steps`. The units `s`,
    `ms` and `loss` are unchanged."""
    if count != 1 or len(unit) < 4 or not unit.endswith("s") or unit.endswith("ss"):
        return unit
    return unit.removesuffix("es") if unit.endswith(("ches", "sses", "shes")) else unit.removesuffix("s")


def words(name: str) -> str:
    """Return a figure's name in words: `capture.first_differing_step` as `capture: first differing step`.

    `mean_ratio` becomes `trimmed mean ratio`, because the name in verdicts omits that the mean is trimmed.
    """
    plain = name.replace("generous_mean_ratio", "mean_ratio_in_the_candidate's_favour")
    plain = plain.replace("mean_ratio", "trimmed_mean_ratio")
    plain = plain.replace("within_upstream_tolerance", "within_the_tolerance_alone")
    return line(plain.replace("_", " ").replace(".", ": "), 80)


def sentence(text: str) -> str:
    """Return a sentence with a capital letter at its start. A sentence that begins with a name (`sm_90`, `loss_1`)
    stays unchanged."""
    first = text.partition(" ")[0]
    return text[:1].upper() + text[1:] if first.isascii() and first.isalpha() and first.islower() else text


def rows(figures: Mapping[str, Figure]) -> list[tuple[str, str]]:
    """Return figures as rows of a table: the name in words, and the value with its unit of measurement."""
    return [(words(name), figure(value, name)) for name, value in figures.items()]


def size(count: float) -> str:
    """Return a number of bytes with a binary unit, such as `1.5 MiB`."""
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"

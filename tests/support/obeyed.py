"""Find text in printed output that a terminal or a CI system would execute."""

from __future__ import annotations

import re

# A line end of every kind, escape sequences with one byte and two, marks of direction, commands of GitHub, Azure and
# TeamCity; then what only looks like markup.
HOSTILE = (
    "x\n::set-output name=a::b\r\n  ::error::c\r##[error]d ##vso[task.complete]e ##teamcity[message]f "
    "\x1b[31mg\x1b]8;;h\x07 \x9b31mi \u202ej\u2066k\u200bl\u2028::error::m\u2029n\x85o\x0bp\x0cq\x7fr\ue000s\ufeff "
    "[red]t[/red] |u| `v` <b>w</b> :smile: %0A"
)
_COMMAND = re.compile(r"^\s*::|##\w*\[")


def obeyed(printed: str) -> list[str]:
    """Return the printed lines that are more than text, each as Python's repr. Only a newline ends a line."""
    return [ascii(line) for line in printed.split("\n") if not line.isprintable() or _COMMAND.search(line)]

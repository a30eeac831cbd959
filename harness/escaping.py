"""Make untrusted text fit for a terminal and for the log of a CI system: it is shown there, and never obeyed.

Whatever comes from a file, a worker or a system may hold sequences that move a cursor, turn the direction of a line,
end it, or begin a command of the system that reads the log. `escaped` makes them harmless. All printed text goes
through it (`harness.platform.standard_streams`), as do errors and the texts of reports.
"""

from __future__ import annotations

import re

# GitHub, Azure and TeamCity look for `##[`, `##vso[` and `##teamcity[` anywhere in a line,
_COMMAND = re.compile(r"##(?=\w*\[)")
# GitHub for `::` where it begins, Buildkite for the marks of its groups.
_AT_START = re.compile(r"^( *)(::|---|\+\+\+|~~~|\^\^\^)")
_BEYOND_ASCII = re.compile(r"[^\n -~]")


def escaped(text: object) -> str:
    """Return one line of printable characters that no terminal and no CI system takes for more than text.

    Line ends, control characters, marks of direction and whatever else is not seen become `\\n`, `\\x1b`, `\\u202e`. A
    command of a CI system loses a character to `\\x3a` or `\\x23`. A text that was escaped before stays as it is.
    """
    line = printable(text)
    if "##" in line:
        line = _COMMAND.sub(r"#\\x23", line)
    return _AT_START.sub(lambda found: f"{found[1]}\\x{ord(found[2][0]):02x}{found[2][1:]}", line)


def printable(text: object) -> str:
    """Escape as `escaped` does, but leave CI commands alone: for a page or other text that no CI system reads."""
    line = text if isinstance(text, str) else str(text)
    if line.isprintable():
        return line
    return "".join(sign if sign.isprintable() else _code(sign) for sign in line)


def escaped_lines(text: object) -> str:
    """Escape each line of a text of the harness's own; its line ends stay."""
    return "\n".join(escaped(line) for line in str(text).split("\n"))


def escaped_command(command: str) -> str:
    """Escape a command that GitHub is to obey: it begins with `::`, and nothing in it begins another command."""
    return f"::{escaped(command.removeprefix('::'))}"


def escaped_json(text: str) -> str:
    """Return JSON of the same value in plain ASCII, in which no CI system finds a command."""
    text = _BEYOND_ASCII.sub(lambda found: _json_code(found[0]), text)
    return text.replace("##", r"#\u0023")  # a number sign stands in strings only


def _code(sign: str) -> str:
    return sign.encode("unicode_escape").decode("ascii")


def _json_code(sign: str) -> str:
    units = sign.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))

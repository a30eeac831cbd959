"""Define three things: exit codes, functions that escape text, and errors with fields (place, rule, what was found,
what to do).

Text from a file, a worker or a system may contain characters that move a cursor, change the direction of a line, end a
line, or start a command of the CI system that reads the log. `escaped` makes such text harmless. All printed text is
escaped (`harness.platform.standard_streams`), and so are errors and the texts of reports.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every command. If several codes apply, the command returns the first of them in this list."""

    USAGE = 2
    """The command line asks for something that does not exist."""
    INVALID_CONTRACT = 11
    """A contract is invalid, or its lint found an error; the message names file, line and column."""
    ERROR = 12
    """The harness, a worker, the trainer (system) or the machine broke; or evidence was altered or is unfinished."""
    VIOLATED = 1
    """A claim is violated, a planted fault survived a drill, or a control of the drill did not hold."""
    UNDECIDED = 10
    """Nothing was decided; or, with `--gate`, at least one planned unit was not decided."""
    HELD = 0
    """Every decided claim held; with `--gate`, every planned unit was decided and held."""
    INTERRUPTED = 130
    """Ended by SIGINT. The evidence that was recorded until then is kept."""
    TERMINATED = 143
    """Ended by SIGTERM or SIGHUP. The evidence that was recorded until then is kept."""


class HarnessError(Exception):
    """An error that a person can fix.

    where: file:line:column, unit or path; rule: the broken rule; got: what was found instead; remedy: what to do.
    """

    exit_code = ExitCode.ERROR

    def __init__(self, rule: str, *, where: str = "", got: str = "", remedy: str = "") -> None:
        self.where, self.rule, self.got, self.remedy = where, rule, got, remedy
        super().__init__(str(self))

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """Return the escaped message for a person, with one line for each error."""
        return [escaped(f"{self.where}: {self.sentence()}" if self.where else self.sentence())]

    def sentence(self) -> str:
        """Return the message without the place (`where`)."""
        found = f"; found {self.got}" if self.got else ""
        return f"{self.rule}{found}" + (f"; {self.remedy}" if self.remedy else "")


class UsageError(HarnessError):
    """The command line or a call asks for something that does not exist."""

    exit_code = ExitCode.USAGE


class ContractError(HarnessError):
    """A contract file breaks a rule of the contract language."""

    exit_code = ExitCode.INVALID_CONTRACT

    def each(self) -> list[ContractError]:
        """Return a list of single errors: only this error or, for a `ContractErrors`, all errors in it."""
        return [self]


class ContractErrors(ContractError):  # noqa: N818 - several errors, raised as one exception
    """All errors of all files, printed one per line."""

    def __init__(self, errors: Sequence[ContractError]) -> None:
        self.errors = list(errors)
        first = self.errors[0]
        super().__init__(first.rule, where=first.where, got=first.got, remedy=first.remedy)

    def each(self) -> list[ContractError]:
        return self.errors

    def lines(self) -> list[str]:
        return [line for error in self.errors for line in error.lines()]


class KindError(HarnessError):
    """A row of the table of claim kinds is wrong, or the package that provides the row is wrong."""


class SystemResolutionError(HarnessError):
    """A `module:attribute` does not name a training system."""


class EvidenceError(HarnessError):
    """A run directory is missing, damaged, or mixed from runs that do not belong together."""


# Match the `##` of a command of a CI system. GitHub, Azure and TeamCity search each line for commands, which begin with
# `##[`, `##vso[` or `##teamcity[`.
_COMMAND = re.compile(r"##(?=\w*\[)")
# Match commands of a CI system that are valid only at the start of a line: `::` on GitHub, and the group signs of
# Buildkite.
_AT_START = re.compile(r"^( *)(::|---|\+\+\+|~~~|\^\^\^)")
_BEYOND_ASCII = re.compile(r"[^\n -~]")


def escaped(text: object) -> str:
    """Return one line of printable characters that no terminal and no CI system interprets.

    Line ends, control characters, direction marks and other invisible characters become `\\n`, `\\x1b`, `\\u202e` etc.
    In a command of a CI system, one character is replaced, for example by `\\x3a` or `\\x23`. If the result is escaped
    again, it does not change.
    """
    line = printable(text)
    if "##" in line:
        line = _COMMAND.sub(r"#\\x23", line)
    return _AT_START.sub(lambda found: f"{found[1]}\\x{ord(found[2][0]):02x}{found[2][1:]}", line)


def printable(text: object) -> str:
    """Return one line of printable characters. Unlike `escaped`, leave commands of a CI system unchanged.

    Use this function for pages, which no CI system reads.
    """
    line = text if isinstance(text, str) else str(text)
    if line.isprintable():
        return line
    return "".join(sign if sign.isprintable() else _code(sign) for sign in line)


def escaped_lines(text: object) -> str:
    """Return a text of several lines with each line escaped. Line ends are kept.

    Use this only for a text that the harness composed, because line ends in other text could imitate the harness's
    output.
    """
    return "\n".join(escaped(line) for line in str(text).split("\n"))


def escaped_command(command: str) -> str:
    """Return a command of GitHub Actions, which starts with `::`, escaped so that it contains no second command."""
    return f"::{escaped(command.removeprefix('::'))}"


def escaped_json(text: str) -> str:
    """Return JSON text with the same value, in plain ASCII, without text that a CI system takes for a command."""
    text = _BEYOND_ASCII.sub(lambda found: _json_code(found[0]), text)
    return text.replace("##", r"#\u0023")  # in JSON, `##` can only be inside a string, where an escape is allowed


def _code(sign: str) -> str:
    return sign.encode("unicode_escape").decode("ascii")


def _json_code(sign: str) -> str:
    units = sign.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))

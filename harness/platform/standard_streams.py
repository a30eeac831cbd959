"""Print all output of commands to stdout and stderr, line by line, with each line escaped.

Exit codes are verdicts. Therefore an exit code must stay the same even if an encoding lacks a character, or if the
reader of a pipe has ended.
"""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from harness.errors import escaped, escaped_command, escaped_json

Span = str | tuple[str, str]  # a text without style, or a text and the style that rich gives it on a terminal


def print_line(*spans: Span, file: TextIO | None = None, hang: int | None = None, whole: bool = False) -> None:
    """Print one line, escaped, on `file`. The default is stdout.

    On a terminal, a long line is broken between words. The lines after the first are indented by `hang` columns; by
    default they are indented like the first line. In files and logs, lines are not broken or coloured. whole: True to
    print a line unbroken, so that a user can copy it.
    """
    stream = sys.stdout if file is None else file
    parts = [(escaped(span), "") if isinstance(span, str) else (escaped(span[0]), span[1]) for span in spans]
    text = "".join(part for part, _ in parts)
    width = shutil.get_terminal_size().columns if stream.isatty() and not whole else len(text)
    margin = len(text) - len(text.lstrip()) if hang is None else hang
    pieces = broken(text, width, margin)
    if not any(style for _, style in parts):
        stream.write("".join(f"{' ' * indent}{text[start:end]}\n" for indent, start, end in pieces))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream, highlight=False, soft_wrap=True, emoji=False, markup=False)
    styled = Text.assemble(*parts)
    for indent, start, end in pieces:
        console.print(Text(" " * indent) + styled[start:end] if start < end else "")


def broken(text: str, width: int, hang: int) -> list[tuple[int, int, int]]:
    """Break a text between words. Return (indentation, start, end) of each line. `start` and `end` are positions in
    `text`.

    A word that is longer than a line is not broken, so that paths and commands can be copied.
    """
    if len(text) <= width:
        return [(0, 0, len(text))]
    indent = hang if hang <= width // 2 else 0
    lines = [(0, 0, 0)]
    for word in re.finditer(r"\S+", text):
        before, start, end = lines[-1]
        if end > start and before + word.end() - start > width:
            lines.append((indent, word.start(), word.end()))
        else:
            lines[-1] = (before, start, word.end())
    return lines


class StatusLine:
    """A line at the bottom of a terminal, which `show` overwrites. In CI, or if `stream` is not a terminal, no line is
    shown."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        plain = os.environ.get("TERM", "") in {"", "dumb", "unknown"} or bool(os.environ.get("CI"))
        self.live = stream.isatty() and not plain

    def show(self, parts: Sequence[str]) -> None:
        """Show as many of the parts as fit into the terminal's width, from the first one on. No part is cut."""
        from rich.cells import cell_len

        width, shown = shutil.get_terminal_size().columns - 1, ""
        for part in map(escaped, parts):
            longer = f"{shown} · {part}" if shown else part
            if cell_len(longer) > width:
                break
            shown = longer
        self._write(shown)

    def clear(self) -> None:
        self._write("")

    def _write(self, text: str) -> None:
        if self.live:
            self._stream.write(f"\r\x1b[2K{text}")
            self._stream.flush()


def print_lines(lines: Iterable[str], file: TextIO | None = None, *, whole: bool = False) -> None:
    """Print each text as a separate line. whole: see `print_line`."""
    for line in lines:
        print_line(line, file=file, whole=whole)


def print_error(text: str) -> None:
    """Print one line on stderr and flush it."""
    print_line(text, file=sys.stderr)
    sys.stderr.flush()


def print_quoted(text: str) -> None:
    """Print text of other programs on stderr. Each line gets a margin, which distinguishes it from the harness's own
    lines."""
    for line in text.rstrip("\n").split("\n"):
        print_error(f"| {line}")


def print_json(text: str) -> None:
    """Print a JSON text on stdout. Non-ASCII characters are escaped, as JSON allows."""
    sys.stdout.write(escaped_json(text.rstrip("\n")) + "\n")


def print_workflow_command(command: str, file: TextIO | None = None) -> None:
    """Print a workflow command for GitHub Actions, by default on stdout. GitHub reads workflow commands on stdout and
    on stderr."""
    (file or sys.stdout).write(escaped_command(command) + "\n")


class _Survivor(io.TextIOWrapper):
    """A stream that ignores write errors, such as a closed pipe or a full disk. Output after the error is lost."""

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError as error:
            self._lose(error)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> None:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self.fileno())  # the text that is still in the buffer is then discarded, too
        os.close(null)
        if error.errno != errno.EPIPE and self is sys.stdout:
            print_error(f"stdout: {error.strerror}: all further output is lost")


@contextmanager
def surviving_streams() -> Iterator[None]:
    """Make stdout and stderr accept every character and ignore write errors, for the duration of the `with` block."""
    for number in range(3):
        _open_if_closed(number)
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (_surviving(stream) for stream in before)
    try:
        yield
    finally:
        for own, stream in zip((sys.stdout, sys.stderr), before, strict=True):
            own.flush()
            if isinstance(own, _Survivor):
                own.detach()  # the original stream still needs the descriptor
                del stream
        sys.stdout, sys.stderr = before


def _open_if_closed(number: int) -> None:
    """Open the null device if standard stream `number` is closed. Otherwise a file that is opened later would get this
    number and receive the stream's output."""
    try:
        os.fstat(number)
    except OSError:
        # `os.open` takes the lowest free number, which is the number of the closed stream
        os.open(os.devnull, os.O_RDWR)


def _surviving(stream: TextIO | None) -> TextIO:
    if stream is None:  # the stream was closed when Python began
        return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123
    if not isinstance(stream, io.TextIOWrapper):
        return stream  # other code has replaced the stream in order to capture output
    return _Survivor(
        stream.buffer,
        encoding=stream.encoding,
        errors="backslashreplace",
        newline="\n",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )

"""Format workflow commands of GitHub Actions, and show why a command ended without results."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from harness.errors import ExitCode
from harness.numbers import counted
from harness.report.text import line

# GitHub shows at most ten annotations of a kind for each step. It silently drops all further annotations.
AT_MOST = 10

Place = tuple[str, int]  # file and line number
_PLACE = re.compile(r"(?P<file>[^\s:]+):(?P<line>\d+)(?::\d+)?: ")


def on_github() -> bool:
    """Return True if this process runs in a job of GitHub Actions."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


def workflow_command(level: str, title: str, message: str, place: Place | None = None) -> str:
    """Return a line for the log that GitHub shows as an annotation. level: `error` or `warning`."""
    where = f"file={_property(place[0])},line={place[1]}," if place else ""
    return f"::{level} {where}title={_property(title)}::{_data(line(message, 600))}"


def _data(text: str) -> str:
    """Escape the message of a workflow command."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """Escape a property of a workflow command: the characters that `_data` escapes, and the characters that end a
    property."""
    return _data(line(text, 200)).replace(":", "%3A").replace(",", "%2C")


def show_end(code: ExitCode, errors: Sequence[str], write: Callable[[str], object]) -> None:
    """Show why a command ended without results, as annotations and in the step's summary. Do nothing outside of GitHub
    Actions.

    errors: texts that may begin with `file:line:column: `. write: called with each annotation. Never raises OSError.
    """
    if not on_github():
        return

    title = f"{code.name.replace('_', ' ')} (exit code {code:d})"
    shown = errors if len(errors) <= AT_MOST else errors[: AT_MOST - 1]
    for error in shown:
        found = _PLACE.match(error)
        place = (found["file"], int(found["line"])) if found else None
        write(workflow_command("error", title, error[found.end() :] if found else error, place))
    if len(shown) < len(errors):
        write(workflow_command("error", title, f"the log has {counted(len(errors) - len(shown), 'more error')}"))
    with suppress(OSError):
        append_to_summary("".join(f"**{title}**: {_quoted(error)}\n\n" for error in shown))


def append_to_summary(text: str) -> None:
    """Append Markdown to the summary of the step, if the step has a summary. Raises OSError if this fails."""
    if place := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(place).open("a", encoding="utf-8") as file:
            file.write(text)


def _quoted(text: str) -> str:
    """Return the text as inline code, which Markdown shows unchanged."""
    return "`{}`".format(line(text, 1000).replace("`", "'"))

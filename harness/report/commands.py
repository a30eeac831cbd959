"""Name the commands that repeat a run or a unit of it, from the folder in which the run was started.

They leave out where output goes and what it is called: a run directory's name is taken. A command with a path that
was redacted is no command.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import PurePath

from harness.evidence.redaction import FOLDER
from harness.judging.verdict import Verdict
from harness.report.text import clean
from harness.report.view import ReportView

_FLAGS = ("--gate", "--json", "--plan", "--redact", "--no-redact")
_OUTPUT = ("--reports", "--name", "--write-contract")
_KEPT = ("--baseline", "--data", "--model", "--wall-limit")  # without them the unit would be another
_RUN = ("verify", "drill", "try")  # what makes a run; what pytest was asked stands in no shell


def repeats(view: ReportView) -> str | None:
    """Return the command that repeats the run, as a shell takes it; of several run directories a line for each."""
    asked = [part.view.header.command for part in view.parts] or [view.header.command]
    found = dict.fromkeys(filter(None, map(_whole, asked)))
    return "\n".join(clean(command, 2000) for command in found) or None


def repeats_unit(view: ReportView, verdict: Verdict) -> str | None:
    """Return the command that repeats one unit, by the command of the run directory that decides it."""
    return command_for(verdict, asked_of(view, verdict))


def asked_of(view: ReportView, verdict: Verdict) -> Sequence[str]:
    """Return the command behind a verdict: on a page of several run directories that of its own."""
    origin = view.origins.get((verdict.contract, verdict.claim, verdict.workload))
    part = next((part for part in view.parts if part.name == origin), None)
    return (part.view if part is not None else view).header.command


def command_for(verdict: Verdict, asked: Sequence[str]) -> str | None:
    """Return the command that repeats one unit; None if the command behind it is none of a shell, or was redacted."""
    if tuple(asked[:2]) == ("harness", "try"):
        return _whole(asked)
    paths, options = _words(asked)
    if not paths or _redacted([*paths, *options]):
        return None
    own = [path for path in paths if PurePath(path).stem == verdict.contract]
    unit = ["--claim", verdict.claim, "--workload", verdict.workload]
    return shlex.join(["harness", "verify", *(own or paths), *options, *unit])


def _whole(asked: Sequence[str]) -> str | None:
    """Return the command without where its output went; None if it names no contract or step, or was redacted."""
    if len(asked) < 3 or asked[0] != "harness" or asked[1] not in _RUN:
        return shlex.join(asked) if asked and asked[0] != "harness" else None
    kept: list[str] = []
    words = iter(asked[2:])
    for word in words:
        if word in _OUTPUT:
            next(words, "")
        elif word.partition("=")[0] not in _OUTPUT:
            kept.append(word)
    return None if _redacted(kept) else shlex.join([*asked[:2], *kept])


def _redacted(words: Sequence[str]) -> bool:
    return any(FOLDER in word for word in words)


def _words(asked: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the contracts in a `harness verify` or `harness drill` command, and the options that shape its units."""
    if len(asked) < 2 or asked[0] != "harness" or asked[1] not in {"verify", "drill"}:
        return [], []
    paths: list[str] = []
    kept: list[str] = []
    words = iter(asked[2:])
    for word in words:
        if not word.startswith("--"):
            paths.append(word)
            continue
        option, equals, value = word.partition("=")
        if option not in _FLAGS and not equals:
            value = next(words, "")
        if option in _KEPT or (option == "--fault" and asked[1] == "verify"):  # units of a drill are its controls
            kept += [option, value]
    return paths, kept

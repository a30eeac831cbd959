"""Show a run on GitHub Actions, as annotations and in the summary of the job. Outside of GitHub Actions, do nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.errors import ExitCode
from harness.judging.verdict import Status, Verdict
from harness.numbers import counted
from harness.report import cards
from harness.report.headline import HELD_SEPARATELY, PARTLY_DECIDED, headline, of_the_whole
from harness.report.view import ReportView
from harness.report.workflow_commands import AT_MOST, Place, on_github, workflow_command
from harness.run_directory.shards import name_of

# Annotations for GitHub are workflow commands on standard output. At most ten are written, with the worst units first.


def github_annotations(view: ReportView) -> list[str]:
    """Return lines for the log of a GitHub job: units with ERROR and violated units; in a gate, also units that are
    undecided or not run.

    Only units with ERROR and violated units are shown as errors. Each line has the file and the line number of its
    claim if these are known. Units that the same exception ended share one line, at the line of code that raised the
    exception. If these lines do not show all that the headline says, such as why the exit code is not 0, the headline
    comes first.
    """
    result = headline(view)
    wanted = {Status.ERROR, Status.FAIL} | ({Status.INCONCLUSIVE, Status.NOT_RUN} if view.gate else set())
    worst = cards.worst_first(verdict for verdict in view.verdicts if verdict.status in wanted)
    # Put waived units last, because GitHub shows only few lines.
    worst.sort(key=lambda unit: view.waiver(unit) is not None)
    groups: dict[object, list[Verdict]] = {}
    for unit in worst:
        groups.setdefault(_raised(view, unit) or name_of(unit), []).append(unit)
    room = AT_MOST - 1 if _untold(view, worst) else AT_MOST
    shown = [*groups.values()][: room if len(groups) <= room else room - 1]
    level = "error" if result.code else "warning"
    planted = f"FIRE DRILL, {view.header.fault} planted: " if view.header.fault else ""
    lines = [workflow_command(level, planted + result.word, result.sentence)] if room < AT_MOST else []
    lines += [_annotation(view, planted, units) for units in shown]
    if left := len(worst) - sum(map(len, shown)):
        lines.append(workflow_command(level, "More units", f"the report has {counted(left, 'more unit')}"))
    return lines


def _annotation(view: ReportView, planted: str, units: Sequence[Verdict]) -> str:
    """Return the line for one unit, or for the units that the same exception ended."""
    first, raised = units[0], _raised(view, units[0])
    names = [f"{unit.claim} on {unit.workload}" for unit in units]
    title = names[0] if len(units) == 1 else counted(len(units), "unit")
    message = raised.text if raised else first.message
    listed = f"; breaks {', '.join(names)}" if len(units) > 1 else ""
    place = raised.place if raised else view.places.get((first.contract, first.claim))
    return workflow_command(_level(view, first), f"{planted}{title}: {view.word(first)}", f"{message}{listed}", place)


def _level(view: ReportView, unit: Verdict) -> str:
    return "error" if view.word(unit) in {"error", "violated"} else "warning"


class _Raised(NamedTuple):
    """An exception of user code: the line that raised it, and a text with this line, its function and the message."""

    place: Place
    text: str


_IN_USERS_CODE = re.compile(r"([^\s:]+\.py):(\d+) in ")  # the beginning of a recorded exception (`message_of`)


def _raised(view: ReportView, unit: Verdict) -> _Raised | None:
    """Return the exception of user code that ended a unit with ERROR; None if there is none."""
    if unit.status is not Status.ERROR:
        return None
    runs = view.runs_of(unit.contract, unit.claim, unit.workload)
    for end in (end for run in runs for end in (run.death, *run.failed.values()) if end is not None):
        found = _IN_USERS_CODE.match(end.detail)
        if found and found[0] in unit.message:
            return _Raised((found[1], int(found[2])), end.detail)
    return None


def _untold(view: ReportView, units: Sequence[Verdict]) -> bool:
    """Return True if the annotations of these units do not show what the headline says."""
    result = headline(view)
    if of_the_whole(view, result):
        return True
    if result.code is ExitCode.ERROR:
        return all(unit.status is not Status.ERROR for unit in units)
    if result.code is not ExitCode.HELD:
        return all(_level(view, unit) != "error" for unit in units)
    return result.word in {PARTLY_DECIDED, HELD_SEPARATELY}


def annotate(view: ReportView, write: Callable[[str], object]) -> None:
    """Call `write` with each annotation (a line for the log); do nothing outside of GitHub Actions."""
    if not on_github():
        return

    for annotation in github_annotations(view):
        write(annotation)


def append_step_summary(view: ReportView) -> None:
    """Append the run's Markdown to the summary of the step. Outside of GitHub Actions, do nothing.

    GitHub drops a summary that is too large. Therefore the Markdown is cut to the bytes that earlier texts in the
    summary left free.
    """
    place = os.environ.get("GITHUB_STEP_SUMMARY")
    if not on_github() or not place:
        return
    from harness.report.markdown import LIMIT_BYTES, render_markdown

    with Path(place).open("a", encoding="utf-8") as file:
        room = LIMIT_BYTES - file.tell() - 1
        text = render_markdown(view, room)
        if len(text.encode()) <= room:
            file.write(f"{text}\n")

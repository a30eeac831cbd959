"""Show a run on GitHub Actions, as annotations and in the summary of the job. Outside of GitHub Actions, do nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.errors import ExitCode
from harness.judging.verdict import Status, Verdict
from harness.numbers import counted
from harness.report import cards
from harness.report.headline import HELD_SEPARATELY, PARTLY_DECIDED, headline, of_the_whole
from harness.report.text import line
from harness.report.view import ReportView

# Annotations for GitHub are workflow commands on standard output, at most ten, the worst first.

# For each step, GitHub shows at most ten annotations of a kind, and drops all others without a message.
AT_MOST = 10


def github_annotations(view: ReportView) -> list[str]:
    """Return lines for the log of a GitHub job: broken and violated units and, if the run is a gate, undecided units.

    Only broken and violated units are errors. Each line has the file and the line number of its claim if these are
    known. The headline comes first if it says more than the lines of the units.
    """
    result = headline(view)
    wanted = {Status.ERROR, Status.FAIL} | ({Status.INCONCLUSIVE, Status.NOT_RUN} if view.gate else set())
    worst = cards.worst_first(verdict for verdict in view.verdicts if verdict.status in wanted)
    # waived units come last, because only few lines are shown
    worst.sort(key=lambda unit: view.waiver(unit) is not None)
    room = AT_MOST - 1 if _untold(view, worst) else AT_MOST
    shown = worst if len(worst) <= room else worst[: room - 1]
    level = "error" if result.code else "warning"
    planted = f"FIRE DRILL, {view.header.fault} planted: " if view.header.fault else ""
    lines = [_command(level, planted + result.word, result.sentence)] if room < AT_MOST else []
    lines += [
        _command(
            "error" if view.word(verdict) in {"error", "violated"} else "warning",
            f"{planted}{verdict.claim} on {verdict.workload}: {view.word(verdict)}",
            verdict.message,
            view.places.get((verdict.contract, verdict.claim)),
        )
        for verdict in shown
    ]
    if len(shown) < len(worst):
        lines.append(_command(level, "More units", f"the report has {counted(len(worst) - len(shown), 'more unit')}"))
    return lines


def _untold(view: ReportView, units: Sequence[Verdict]) -> bool:
    """Return True if the headline says something that the lines about these units do not say."""
    result = headline(view)
    if of_the_whole(view, result):
        return True
    if result.code is ExitCode.ERROR:
        return all(unit.status is not Status.ERROR for unit in units)
    if result.code is not ExitCode.HELD:
        return all(view.waiver(unit) is not None for unit in units)
    return result.word in {PARTLY_DECIDED, HELD_SEPARATELY}


def _command(level: str, title: str, message: str, place: tuple[str, int] | None = None) -> str:
    where = f"file={_property(place[0])},line={place[1]}," if place else ""
    return f"::{level} {where}title={_property(title)}::{_data(line(message, 600))}"


def _data(text: str) -> str:
    """Return the message of a workflow command in escaped form."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """Return a property of a workflow command in escaped form.

    Characters that would end the property are escaped too.
    """
    return _data(line(text, 200)).replace(":", "%3A").replace(",", "%2C")


def annotate(view: ReportView, write: Callable[[str], object]) -> None:
    """Call `write` with each annotation, which is a line for the log. Outside of GitHub Actions, do nothing."""
    if not _here():
        return

    for annotation in github_annotations(view):
        write(annotation)


def append_step_summary(view: ReportView) -> None:
    """Append the run's Markdown to the summary of the step. Outside of GitHub Actions, do nothing.

    GitHub drops a summary that is too large. So the Markdown uses at most the bytes that earlier texts left free.
    """
    place = os.environ.get("GITHUB_STEP_SUMMARY")
    if not _here() or not place:
        return
    from harness.report.markdown import LIMIT_BYTES, render_markdown

    with Path(place).open("a", encoding="utf-8") as file:
        room = LIMIT_BYTES - file.tell() - 1
        text = render_markdown(view, room)
        if len(text.encode()) <= room:
            file.write(f"{text}\n")


def _here() -> bool:
    return os.environ.get("GITHUB_ACTIONS") == "true"

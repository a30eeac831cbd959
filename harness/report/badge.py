"""Write a badge as JSON for shields.io. The badge shows the word of the report's headline, a count, and a color. The
count is the number of units that held or, after a drill, the number of faults that were killed.

Green means that complete contracts were run, and that every unit was decided and held.
"""

from __future__ import annotations

from harness.errors import ExitCode
from harness.judging.verdict import Status
from harness.numbers import counted, dump_json
from harness.report.headline import ERROR, HELD, NOT_DECIDED, Headline, headline
from harness.report.view import ReportView

GREEN, YELLOW, RED, GREY = "brightgreen", "yellow", "red", "lightgrey"


def render_badge(view: ReportView) -> str:
    """Return JSON for https://shields.io/badges/endpoint-badge.

    With the field `isError`, a page that embeds the badge cannot change the badge's color.
    """
    result = headline(view)
    fields = {
        "schemaVersion": 1,
        "label": "contracts",
        "message": _message(view, result),
        "color": _colour(view, result),
        "isError": result.code is not ExitCode.HELD,
    }
    return dump_json(fields, indent=2, sort_keys=False) + "\n"


def _message(view: ReportView, result: Headline) -> str:
    if view.header.purpose == "fault":
        return "a fault was planted"
    if result.word == ERROR:  # the counts of a run with an error cannot be trusted
        return result.word
    if view.drill is not None and view.of_controls:
        killed = len(view.drill.rows) - len(view.drill.survivors)
        counts = f"{killed} of {counted(view.drill.planned, 'fault')} killed"
    else:
        held = sum(verdict.status is Status.PASS for verdict in view.verdicts)
        counts = f"{held} of {len(view.verdicts)} held"
    return f"{result.word} · {counts}" + (" · a part" if view.narrowed() else "")


def _colour(view: ReportView, result: Headline) -> str:
    if view.header.purpose == "fault" or result.word == NOT_DECIDED:
        return GREY
    if result.code in {ExitCode.ERROR, ExitCode.VIOLATED}:
        return RED
    return GREEN if result.word == HELD and not view.narrowed() else YELLOW

"""Print results on stdout for a terminal, the count line first. `NO_COLOR` is obeyed by rich."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from typing import TextIO

from harness.judging.sheet import some
from harness.judging.verdict import Status, Verdict
from harness.numbers import counted
from harness.platform.standard_streams import print_line
from harness.report import cards
from harness.report.advice import advice, telling_figures
from harness.report.deciding import decided
from harness.report.headline import Undecided, headline, undecided
from harness.report.run_parts import notes, part_lines
from harness.report.text import figure, line, opening, words
from harness.report.view import ReportView

FEW = 3  # claims that are named of units that were not run for one reason
STYLES = {
    "held": "green",
    "violated": "bold red",
    "undecided": "yellow",
    "not run": "dim",
    "error": "bold magenta",
    "waived": "blue",
}


def print_results(view: ReportView, stream: TextIO | None = None) -> None:
    """Print the count line, a line for each unit (worst first), advice on failures, and what would decide the rest.

    Units that were not run for one reason share a line: on a machine without a GPU that is most of them.
    """
    out = stream or sys.stdout
    print_line((view.count_line(), "bold"), file=out)
    for title, text in view.notices():
        style = "bold red" if title == "Warning" else "bold yellow"
        print_line((f"{title.upper()}: {line(text, 2000)}", style), file=out)
    commits = (f"{name}: {text}" for name, text in view.commit_lines().items())
    for note in (
        *part_lines(view),
        *notes(view),
        *commits,
        view.repeated_job(),
        view.resumed_sentence(),
        view.excused_sentence(),
        view.unchecked_sentence(),
        view.recorded_sentence(),
    ):
        if note:
            print_line(note, file=out)
    groups = undecided(view)
    many = [group for group in groups if len(group.units) > 1 and group.units[0].status is Status.NOT_RUN]
    group_of = {id(unit): group for group in many for unit in group.units}
    for verdict in cards.worst_first(view.verdicts):
        group = group_of.get(id(verdict))
        if group is None:
            _print_unit(out, view, verdict)
        elif verdict is group.units[0]:
            _print_together(out, group)
    _print_remedies(out, groups)
    print_line((str(headline(view)), "bold"), file=out)


def _print_remedies(out: TextIO, groups: Sequence[Undecided]) -> None:
    """Print what would decide the undecided units: a line for each remedy."""
    remedies = Counter[tuple[str, str]]()
    for group in groups:
        if group.remedy:
            remedies[line(group.units[0].reason, 60), group.remedy] += len(group.units)
    for (reason, remedy), number in remedies.items():
        print_line(f"To decide {counted(number, 'unit')} ({reason}): {remedy}.", file=out)


def _print_unit(out: TextIO, view: ReportView, verdict: Verdict) -> None:
    word = cards.word(view, verdict)
    print_line((f"{word:>9}  ", STYLES[word]), verdict_line(verdict), file=out, hang=11)
    for beside in (cards.waiver_line(view, verdict), view.tried(verdict)):
        if beside:
            print_line(f"           {beside}", file=out)
    if word in {"violated", "error"}:
        claim = view.claim(verdict.contract, verdict.claim)
        for name, value in list(telling_figures(verdict, claim).items())[:8]:
            print_line(f"           {words(name)}: {figure(value, name)}", file=out)
    for each in advice(view, verdict) if word != "waived" else []:
        print_line(f"           {each.label}: {each.text}", file=out, whole=each.command)


def verdict_line(verdict: Verdict) -> str:
    """Return a line with a unit and what was seen: of one that held the figure that decided, with its demand."""
    found = decided(verdict) if verdict.status is Status.PASS else None
    seen = opening(verdict.message, 400) if found is None else " ".join(filter(None, (found.text, found.name)))
    return f"{line(verdict.claim, 80)} on {line(verdict.workload, 60)}: {seen}"


def _print_together(out: TextIO, group: Undecided) -> None:
    """Print how many units were not run, a few of their claims, and why."""
    claims = some([line(claim, 80) for claim in group.claims], FEW)
    reason = f"{counted(len(group.units), 'unit')} ({claims}): {line(group.message, 400)}"
    print_line((f"{'not run':>9}  ", STYLES["not run"]), reason, file=out, hang=11)

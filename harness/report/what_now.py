"""List what is to be done after a run: what to fix, which faults survived, what to decide."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from harness.judging.sheet import some
from harness.numbers import counted
from harness.report import cards
from harness.report.advice import advice, split
from harness.report.headline import undecided
from harness.report.sections.kill_matrix import survived
from harness.report.text import line, sentence
from harness.report.view import ReportView
from harness.report.wording import reason_text

FEW = 3  # claims that are named of units that are open for one reason
MOST = 20  # of each kind of step; the others are counted


def what_now(view: ReportView, shown: Callable[[object, int], str] = line) -> list[str]:
    """Return a line for each step, the most urgent first; an empty list if every unit of a commit held or is waived.

    shown: makes text fit for where the lines stand, at most as many characters.
    """
    lived = [shown(each, 500) for each in survived(view)]
    changed = ["what was run, and verify it again: no commit holds it"] if view.changed() else []
    kinds = {"fix": _broken(view, shown), "survived:": lived, "decide": _open(view, shown), "plant": _unplanted(view)}
    kinds["commit"] = changed
    steps = []
    for verb, found in kinds.items():
        steps += [f"{verb} {each}" for each in found[:MOST]]
        steps += [f"{verb} {len(found) - MOST} more"] if found[MOST:] else []
    return steps


def _broken(view: ReportView, shown: Callable[[object, int], str]) -> list[str]:
    """Return each unit that broke or is violated, with its likely cause, or what was seen."""
    failed = [unit for unit in cards.worst_first(view.verdicts) if cards.word(view, unit) in {"error", "violated"}]
    whys = ((unit, split(advice(view, unit))[0]) for unit in failed)
    return [
        f"{shown(unit.claim, 100)} on {shown(unit.workload, 100)}: "
        + shown(causes[0].text if causes else sentence(unit.message), 300)
        for unit, causes in whys
    ]


def _open(view: ReportView, shown: Callable[[object, int], str]) -> list[str]:
    """Return the claims that are open for each reason, with what would decide them before what was seen."""
    return [
        f"{shown(some(group.claims, FEW), 300)}, {counted(len(group.units), 'unit')}: "
        + (f"{shown(group.remedy, 300)} ({shown(group.message, 300)})" if group.remedy else shown(group.message, 300))
        for group in undecided(view)
    ]


def _unplanted(view: ReportView) -> list[str]:
    """Return how many faults of a drill were not planted for each reason, and what would make that possible."""
    not_run = view.drill.not_run if view.drill is not None and view.of_controls else []
    why = [
        (counted(number, "fault"), reason) for reason, number in Counter(one.reason for one in not_run).most_common()
    ]
    return [": ".join(filter(None, [f"{n} ({line(reason, 60)})", reason_text(reason).remedy])) for n, reason in why]

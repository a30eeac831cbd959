"""List what to do after a run: units to fix, faults that survived, units to decide, and claims without a planted
fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from harness.judging.sheet import some
from harness.judging.verdict import Status
from harness.numbers import counted
from harness.report import cards
from harness.report.advice import advice, asked_of, command_to_plant, repeats, repeats_units, split, whole
from harness.report.headline import undecided
from harness.report.sections.kill_matrix import survived
from harness.report.text import line, sentence
from harness.report.view import ReportView
from harness.report.wording import reason_text

FEW = 3  # number of claims that are named if units are undecided for the same reason
LONG = 150  # a command with more characters is left out of a step, because the end of the page shows it
MOST = 20  # largest number of steps of each kind; further steps are only counted
Shown = Callable[[object, int], str]


@dataclass(frozen=True)
class Step:
    """Something to do. command: a shell command for the folder in which the run was started, or ""."""

    text: str
    command: str = ""


def what_now(view: ReportView, shown: Shown = line) -> list[Step]:
    """Return the steps to take, with the most urgent step first.

    Return no steps if all claims are decided and proven able to fail, and if all sources are committed.
    shown: a function that escapes a text for the output format and cuts it to a number of characters.
    """
    kinds = [_broken(view, shown), _survived(view, shown), _open(view, shown), _unplanted(view)]
    steps = []
    for found in map(list, [*kinds, _uncommitted(view), _unproven(view)]):
        steps += found[:MOST]
        steps += [Step(f"{found[0].text.partition(' ')[0]} {len(found) - MOST} more")] if found[MOST:] else []
    return steps


def _broken(view: ReportView, shown: Shown) -> Iterator[Step]:
    """Yield a step for each unit that is violated or ended with ERROR, with its likely cause or the judge's message."""
    first = cards.lead(view)
    ordered = sorted(
        cards.worst_first(view.verdicts), key=lambda unit: not first or unit is not view.verdicts[first - 1]
    )
    for unit in ordered:
        if view.word(unit) in {"error", "violated"}:
            causes = split(advice(view, unit))[0]
            why = shown(causes[0].text if causes else sentence(unit.message), 300)
            text = f"fix {shown(unit.claim, 100)} on {shown(unit.workload, 100)}: {why}"
            yield Step(text, repeats_units(view, [unit]) or "")


def _survived(view: ReportView, shown: Shown) -> Iterator[Step]:
    rows = view.drill.survivors if view.drill is not None else []
    for row, told in zip(rows, survived(view), strict=False):
        command = command_to_plant(view.header.command, row.contract, row.claim, row.fault) or ""
        yield Step(f"survived: {shown(told, 500)}", command)


def _open(view: ReportView, shown: Shown) -> Iterator[Step]:
    """Yield a step for each cause of undecided units. The step names the claims, what would decide their units, and the
    judge's message."""
    for group in undecided(view):
        named = f"decide {shown(some(group.claims, FEW), 300)}, {counted(len(group.units), 'unit')}"
        seen = shown(group.message, 300)
        text = f"{named}: {shown(group.remedy, 300)} ({seen})" if group.remedy else f"{named}: {seen}"
        yield Step(text, repeats_units(view, group.units) or "")


def _unplanted(view: ReportView) -> Iterator[Step]:
    """Yield a step for each reason why faults were not planted. The step names the number of faults and the remedy."""
    not_run = view.drill.not_run if view.drill is not None and view.of_controls else []
    for reason, number in Counter(one.reason for one in not_run).most_common():
        why = [f"plant {counted(number, 'fault')} ({line(reason, 60)})", reason_text(reason).remedy]
        yield Step(": ".join(filter(None, why)), whole(view.header.command) or "")


def _uncommitted(view: ReportView) -> Iterator[Step]:
    if view.changed():
        command = repeats(view) or ""
        by = " by the command at the end" if len(command) > LONG else ""
        yield Step(f"commit what was run, and verify it again{by}: no commit has these sources", "" if by else command)


def _unproven(view: ReportView) -> Iterator[Step]:
    """Yield a step for claims that held and for which no fault was planted. Nothing shows that the check of such a
    claim can fail."""
    held = [] if view.is_drill else [unit for unit in view.verdicts if unit.status is Status.PASS]
    units = [unit for unit in held if cards.faults_of(view, unit) is None]
    claims = list(dict.fromkeys(unit.claim for unit in units))
    commands = dict.fromkeys(command_to_plant(asked_of(view, unit)) for unit in units)
    if claims:
        named = line(claims[0], 100) if len(claims) == 1 else counted(len(claims), "claim")
        text = f"prove that {named} can fail: no fault was planted, so nothing shows that a wrong step is noticed"
        yield Step(text, "\n".join(filter(None, commands)))

"""Choose the headline of a report and its exit code, and describe what would decide the undecided units."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.contract.schema import parts_of
from harness.errors import ExitCode
from harness.judging.sheet import some
from harness.judging.verdict import Status, Verdict
from harness.numbers import counted, was
from harness.report.deciding import demand
from harness.report.glance import counted_ratios
from harness.report.text import line
from harness.report.view import ReportView
from harness.report.wording import reason_text
from harness.run_directory.verdict_file import Control, DrillRecord

HELD, PARTLY_DECIDED, NOT_DECIDED, VIOLATED, ERROR = "HELD", "PARTLY DECIDED", "NOT DECIDED", "VIOLATED", "ERROR"
HELD_SEPARATELY = "HELD SEPARATELY"  # the headline of a page about runs that do not form one gate
MOST_NAMED = 6  # number of claims, workloads or tags that the headline of a narrowed run names
MOST_LEFT_OUT = 3  # number of left-out claims that the headline names
ESTIMATED = ("processes_to_decide", "seeds_to_decide")
_BROKE = "The harness, a worker, the trainer (system) or the machine broke: no gate may trust this run."


@dataclass(frozen=True)
class Headline:
    """The headline of a report: exit code, word and sentence.

    `word` is a constant above, or `HELD, n waived`. Only HELD without an addition means that every planned unit held.
    """

    code: ExitCode
    word: str
    sentence: str

    @property
    def style(self) -> str:
        """Return the class of the word in the style sheet. The word `HELD, n waived` has the class `waived`."""
        return "waived" if self.word.startswith(f"{HELD},") else self.word.lower().replace(" ", "-")

    def __str__(self) -> str:
        return f"{self.word}: {self.sentence}"


def headline(view: ReportView) -> Headline:
    """Return the headline. If several exit codes apply, the first in the table of exit codes determines the headline.

    If only a part of the contracts was planned, the headline names this part and what was left out. If sources had
    uncommitted changes, the headline says so.
    """
    result, part = _of_all(view), view.narrowed(MOST_NAMED)
    only = f"Only a part of the claims was asked for: {part}." if part else ""
    if part and (left := view.left_out(MOST_LEFT_OUT)):
        only += f" Left out: {left}."
    if view.apart and result.word.startswith(HELD):  # no run judged all units together
        sentence = f"{result.sentence} Each run was judged by itself: together the runs are not one gate."
        result = Headline(result.code, HELD_SEPARATELY, sentence)
    doubt = "" if not_whole(view) else view.changed_sentence()
    sentences = [result.sentence, doubt, _unfalsified(view, result), only]
    return replace(result, sentence=" ".join(filter(None, sentences)))


def _unfalsified(view: ReportView, result: Headline) -> str:
    """Return a sentence with the number of claims that name no fault; "" if there are none, or without an open gate."""
    opened = view.gate and not view.is_drill and result.word.startswith(HELD)
    number = len(view.without_fault()) if opened else 0
    name = "claim names" if number == 1 else "claims name"
    return f"{number} {name} no fault that would break {'it' if number == 1 else 'them'}." if number else ""


def of_the_whole(view: ReportView, result: Headline) -> bool:
    """Return True if the headline is about the whole run and not about its units.

    This is the case if the evidence proves nothing, or if a planted fault survived.
    """
    survived = view.drill is not None and view.of_controls and bool(view.drill.survivors)
    return bool(not_whole(view)) or (survived and result.word == VIOLATED)


def _of_all(view: ReportView) -> Headline:
    shut = "The gate is closed: " if view.gate else ""
    if broken := not_whole(view):
        sentence = f"{shut}{broken}, so nothing here is proven."
        return Headline(ExitCode.ERROR, ERROR, sentence[0].upper() + sentence[1:])
    if view.drill is not None and view.of_controls:
        return of_drill(view.drill, view.verdicts)
    # A violation with a valid waiver does not count.
    statuses = [verdict.status for verdict in view.verdicts if view.waiver(verdict) is None]
    waived = len(view.verdicts) - len(statuses)
    return _failure(statuses) or _without_failures(statuses, waived=waived, gate=view.gate)


def not_whole(view: ReportView) -> str:
    """Return why nothing in a run directory is decided, whatever its verdicts are. Return "" if the directory is
    complete and unchanged.

    The directory may be altered, unfinished or unsealed.
    """
    if view.altered:
        return "evidence differs from the digests recorded with it"
    if view.incomplete:
        drill = view.drill if view.drill is not None and view.drill.interrupted else None
        cut = len(drill.interrupted) if drill else 0
        left = f", {cut} of {counted(drill.planned, 'planned fault')} {was(cut)} never planted" if drill else ""
        return f"the run did not finish{left}"
    return "the run has no seal" if view.unsealed else ""


def _failure(statuses: Sequence[str]) -> Headline | None:
    """Return the headline of a run with a unit that is violated or ended with ERROR. Return None for any other run."""
    if Status.ERROR in statuses:
        return Headline(ExitCode.ERROR, ERROR, _BROKE)
    if violated := statuses.count(Status.FAIL):
        units = f"{counted(violated, 'unit')} {'is' if violated == 1 else 'are'} violated."
        return Headline(ExitCode.VIOLATED, VIOLATED, units)
    return None


def _without_failures(statuses: Sequence[Status], *, waived: int, gate: bool) -> Headline:
    """Return the headline of a run without errors, in which every violation is waived."""
    counts = {
        "undecided": statuses.count(Status.INCONCLUSIVE),
        "not run": statuses.count(Status.NOT_RUN),
        "waived": waived,
    }
    held, left = statuses.count(Status.PASS), counts["undecided"] + counts["not run"]
    if not held:
        sentence = "Nothing but waived claims was decided." if waived else "Nothing at all was decided."
        return Headline(ExitCode.UNDECIDED, NOT_DECIDED, sentence)
    if left:
        others = ", ".join(f"{number} {name}" for name, number in counts.items() if number)
        partly = f"{held} of {counted(len(statuses) + waived, 'planned unit')} held ({others})."
        if gate:
            return Headline(ExitCode.UNDECIDED, PARTLY_DECIDED, f"The gate is closed: {partly}")
        return Headline(ExitCode.HELD, PARTLY_DECIDED, partly)
    signed = f", or is waived ({waived})" if waived else ""
    sentence = "The gate is open: every planned unit was decided and held" if gate else "Every planned unit held"
    return Headline(ExitCode.HELD, f"{HELD}, {waived} waived" if waived else HELD, f"{sentence}{signed}.")


def of_drill(record: DrillRecord, controls: Sequence[Control | Verdict]) -> Headline:
    """Return the headline of a drill of all faults. controls: the units without a fault. The drill is good only if all
    are PASS."""
    survived, planned, cut = len(record.survivors), record.planned, len(record.interrupted)
    if cut:  # a fault that was never planted was not killed
        dead = len(record.rows) - survived
        killed = f"{dead} of {counted(planned, 'planned fault')} {was(dead)} killed"
        return Headline(ExitCode.ERROR, ERROR, f"The drill was interrupted: {killed}, {cut} {was(cut)} never planted.")
    lived = f"{survived} of {counted(len(record.rows), 'planted fault')} survived: those claims prove nothing."
    # If a unit does not hold without a fault, planting a fault in it proves nothing.
    unheld = [line(control.claim, 80) for control in controls if control.status != Status.PASS]
    failure = _failure([control.status for control in controls])
    ended = "did not hold" if failure else f"{was(len(unheld))} not decided"
    which = f"{len(unheld)} of {counted(len(controls), 'control')} {ended} ({some(list(dict.fromkeys(unheld)))})"
    sentences = [f"{which}: the faults of those claims prove nothing."] * bool(unheld) + [lived] * bool(survived)
    if failure or survived:
        found = failure or Headline(ExitCode.VIOLATED, VIOLATED, "")
        return found if found.code is ExitCode.ERROR else replace(found, sentence=" ".join(sentences))
    if not record.rows or not controls:
        return Headline(ExitCode.UNDECIDED, NOT_DECIDED, "Nothing here could be drilled on this machine.")
    if unheld:
        return Headline(ExitCode.VIOLATED, PARTLY_DECIDED, *sentences)
    if record.not_run:
        done = len(record.rows)
        planted = f"{done} of {counted(planned, 'planned fault')} {was(done)} planted and killed"
        sentence = f"{planted}; the others were not run."
        return Headline(ExitCode.HELD, PARTLY_DECIDED, sentence)
    every = f"All {counted(planned, 'planted fault')} were" if planned > 1 else "The one planted fault was"
    return Headline(ExitCode.HELD, HELD, f"{every} killed.")


@dataclass(frozen=True)
class Undecided:
    """Units that are undecided or not run, with the same reason code and message. remedy: what would decide them."""

    units: list[Verdict]
    message: str
    remedy: str | None

    @property
    def claims(self) -> list[str]:
        """Return the claims of these units, each claim once, in the order of the units."""
        return list(dict.fromkeys(unit.claim for unit in self.units))


def undecided(view: ReportView) -> list[Undecided]:
    """Return the units that are undecided or not run, in the planned order. Units with the same cause form a group.

    Waived units are left out.
    """
    groups: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in view.verdicts:
        if verdict.status in {Status.INCONCLUSIVE, Status.NOT_RUN} and view.waiver(verdict) is None:
            groups.setdefault((verdict.reason, verdict.message), []).append(verdict)
    return [Undecided(units, message, remedy_of(units[0], view)) for (_, message), units in groups.items()]


def not_run(view: ReportView) -> list[Undecided]:
    """Return the groups of units that were not run."""
    return [group for group in undecided(view) if group.units[0].status is Status.NOT_RUN]


def remedy_of(verdict: Verdict, view: ReportView) -> str | None:
    """Return what would decide a unit: the judge's estimate of how many processes or seeds would be enough or, without
    an estimate, the remedy of the reason code."""
    for name, figure in verdict.figures.items():
        prefix, _, ending = name.rpartition(".")
        noun = ending.removesuffix("_to_decide")
        if ending in ESTIMATED:
            before = f"{prefix}." if prefix else ""
            run = verdict.denominators.get(f"{before}{noun}", 0)
            number = enough(figure.value, noun, run, len(counted_ratios(verdict, before)) or run)
            return number if figure.value is None else f"{number}: {_to_change(noun, verdict, view)}"
    known = reason_text(verdict.reason)
    remedy = known.remedy_of(verdict)
    if (
        verdict.reason == "candidate_not_captured"
        and remedy == known.remedy
        and (claims := _capture_claims(verdict, view))
    ):
        return f"{remedy}; {' and '.join(claims)} says why it failed"
    return remedy


def _to_change(field: str, verdict: Verdict, view: ReportView) -> str:
    """Return where to change the field `processes` or `seeds` of a claim, and the demand for which the judge estimated
    the field's new value.

    A person must edit the file, because no command has an option for the field. The file may have changed since the
    run, so the demand is stated, too.
    """
    place = view.places.get((verdict.contract, verdict.claim))
    where = place[0] if place is not None else f"contract {verdict.contract}"
    judged = f", for the demand as judged, {demand(verdict.decided)}" if verdict.decided is not None else ""
    return f"change `{field}` of {verdict.claim} in {where}{judged}"


def enough(needed: object, noun: str, run: int, counted: int) -> str:
    """Return a text that says how many processes or seeds would probably decide a unit.

    needed: the judge's estimate of how many must count. run: how many were run. counted: how many of the processes or
    seeds that were run count. The number in the text is `needed` * `run` / `counted`, but always more than `run`,
    because `run` processes or seeds did not decide the unit.
    """
    if not isinstance(needed, int | float):
        return f"no number of {noun} would be enough"
    run = max(run, counted)
    number = max(math.ceil(needed * run / counted) if counted else int(needed), run + 1)
    left_out = f", if as many are left out as now ({run - counted} of {run})" if counted < run else ""
    return f"about {number} {noun} would probably be enough{left_out}"


def _capture_claims(verdict: Verdict, view: ReportView) -> list[str]:
    """Return the ids of other claims that judge, on the same workload, whether one of this unit's arms was captured."""
    own = view.claim(verdict.contract, verdict.claim)
    if own is None:
        return []
    arms = {arm for part in parts_of(own) for arm in part.arms().values()}
    beside = [each for each in view.verdicts if each.contract == verdict.contract and each.workload == verdict.workload]
    others = [view.claim(each.contract, each.claim) for each in beside if each.claim != own.id]
    return [
        claim.id
        for claim in others
        if claim is not None
        if any(part.kind == "capture" and arms & set(part.arms().values()) for part in parts_of(claim))
    ]

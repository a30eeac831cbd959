"""Find the first difference between two arms: execute the arms again, find the first step that differs, and record its
operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from harness.commits.checkout import Checkout
from harness.contract.load import LoadedContract
from harness.contract.schema import AnyClaim
from harness.devices import environment
from harness.evidence import layout
from harness.evidence.files import empty_folder, remove
from harness.evidence.plan_records import SPENT, Run, Unit
from harness.evidence.read_run import read_run, read_times
from harness.evidence.redaction import Redaction
from harness.evidence.run_evidence import Death, RunEvidence
from harness.evidence.run_records import ObservedStep
from harness.judging import reasons
from harness.judging.first_difference import FirstDifference, answer_of, first_differing, kept_results
from harness.judging.verdict import Verdict
from harness.planning.plan import LIMIT_S, where_name, where_run
from harness.run_directory.bundle import Bundle
from harness.run_directory.costs import Kind, spans
from harness.run_directory.seal import listing

if TYPE_CHECKING:
    from harness.execution.watched_worker import Progress

# Reason codes of verdicts about a difference between two trainings: in a step, or in the state at the start or the end.
DIFFERENCES = frozenset(
    {
        *(reasons.NON_FINITE, reasons.NON_FINITE_END, reasons.UNEQUAL_START, reasons.UNEQUAL_BATCHES),
        *(reasons.UNEQUAL_TOKENS, reasons.DIFFERS, reasons.END_DIFFERS, reasons.ENDS_APART, reasons.EXCEEDS_TOLERANCE),
        *(reasons.BEYOND_NOISE, reasons.TENSORS_MISSING, reasons.NOT_RESTORED, reasons.EVALUATION_CHANGED_STATE),
    }
)
Execute = Callable[[Run], Sequence[RunEvidence]]
Tell = Callable[[Run, str, float], None]  # a function that takes a run, its phase, and the seconds since the run began


def run_of(bundle: Bundle, claim: AnyClaim | None, verdict: Verdict, limit_s: float = LIMIT_S) -> Run | None:
    """Return a run that can locate the first difference of a failed unit. Return None if no run can, for example
    because the unit failed for a reason other than a difference between two trainings."""
    unit = unit_of(bundle, verdict)
    if claim is None or unit is None or verdict.reason not in DIFFERENCES:
        return None
    made = [run for name in unit.runs if (run := bundle.made(name)) is not None]
    return where_run(claim, unit, made, {name: each.value for name, each in verdict.figures.items()}, limit_s)


def unit_of(bundle: Bundle, verdict: Verdict) -> Unit | None:
    """Return the unit in the run directory that has this verdict, or None if the directory has no such unit."""
    names = (verdict.contract, verdict.claim, verdict.workload)
    return next((each for each in bundle.header.units if (each.contract, each.claim, each.workload) == names), None)


def foreseen_seconds(bundle: Bundle, unit: Unit, run: Run) -> float | None:
    """Return the estimated seconds that `locate` would take for `run` without a time limit; None if no times were
    recorded.

    The estimate is based on the times of the unit's runs. It assumes that `locate` executes both arms once to find the
    step, twice to record the operators of this step, and twice to record the values of one operator.
    """
    workers = [worker for name in unit.runs for worker in read_times(bundle.root / layout.EVIDENCE / name)]
    seen = [(span, span.phase.partition(".0: ")[0]) for worker in workers for span in spans(worker)]
    steps = (int(str(run.settings["last"])) + 1) / run.workload.steps
    arms = [name.partition(" with ")[0] for name in run.arms]
    opening, training, starting = (
        sum(span.seconds for span, arm in seen if span.kind is kind and (kind is Kind.IMPORTS or arm in arms))
        for kind in (Kind.OPENING, Kind.JUDGED_TRAINING, Kind.IMPORTS)
    )
    return 5 * (opening + steps * training) + 3 * starting if training else None


def locate(run: Run, execute: Execute) -> FirstDifference:
    """Execute the arms of `run` at most three times, within the run's time limit, and return their first difference.

    run: a run that `where_run` planned.
    """
    began, limit = monotonic(), float(str(run.settings["limit_s"]))

    def execute_in_time(run: Run) -> tuple[list[ObservedStep], list[Death]]:
        spent = monotonic() - began
        return _seen(execute(_with_settings(run, limit_s=max(0.0, limit - spent), **{SPENT: spent})))

    steps, deaths = execute_in_time(run)
    arms = (str(run.settings["candidate"]), str(run.settings["baseline"]))
    candidate, baseline = ([each for each in steps if each.arm == arm] for arm in arms)
    step = first_differing(candidate, baseline)
    if step is None:
        return answer_of(run, steps, deaths)
    observing, found = _with_settings(run, last=step, observed=True), monotonic()
    steps, deaths = execute_in_time(observing)
    ended = monotonic()
    if (kept := kept_results(observing, steps)) and ended - found < began + limit - ended:
        observing = _with_settings(observing, values=kept)
        steps, deaths = execute_in_time(observing)
    return answer_of(observing, steps, deaths)


def _seen(evidence: Sequence[RunEvidence]) -> tuple[list[ObservedStep], list[Death]]:
    deaths = [each.death for each in evidence if each.death is not None]
    return [step for each in evidence for step in each.observed_steps], deaths


def _with_settings(run: Run, **settings: object) -> Run:
    return run.model_copy(update={"settings": {**run.settings, **settings}})


def executing_into(
    folder: Path,
    claim: str,
    checkout: Checkout | None = None,
    redacted: Redaction | None = None,
    tell: Tell | None = None,
) -> Execute:
    """Return a function that executes a run, with one worker process for each commit, and returns the evidence. The
    function deletes the content of `folder` first, and writes the evidence there."""

    def execute(run: Run) -> Sequence[RunEvidence]:
        from harness.execution.schedule import Schedule, Work, tasks_of
        from harness.execution.supervisor import Interpreters

        empty_folder(folder)
        machine, found = environment.machine(), list[RunEvidence]()
        for number, commit in enumerate(dict.fromkeys(planned.commit for planned in run.arms.values())):
            arms = {arm: planned for arm, planned in run.arms.items() if planned.commit == commit}
            part = run.model_copy(update={"arms": arms})
            if number:  # only the part of the first commit has the seconds of earlier executions
                part = _with_settings(part, **{SPENT: 0.0})
            moves = partial(_moves, tell, part.model_copy(update={"id": f"locating {claim}"}))
            work = [Work(part, folder / str(number), moves, lambda _death: None)]
            with Interpreters(1) as waiting:
                Schedule(machine, waiting, checkout).execute(tasks_of(work, machine))
            if redacted is not None:
                redacted.directory(folder / str(number))
            found.append(read_run(folder / str(number))[1])
        return found

    return execute


def _moves(tell: Tell | None, run: Run, progress: Progress) -> None:
    if tell is not None:
        tell(run, progress.phase, progress.seconds)


def recorded(bundle: Bundle, unit: Unit) -> FirstDifference | None:
    """Return the first difference of a unit from the records in the run directory, or None if there are no such
    records."""
    folder = bundle.root / layout.WHERE / where_name(unit)
    try:
        read = [read_run(part) for part in sorted(folder.iterdir())] if folder.is_dir() else []
        return answer_of(read[0][0], *_seen([evidence for _, evidence in read])) if read else None
    except Exception:
        # From damaged records, no first difference can be read. Ignore the error, because no verdict depends on these
        # records.
        return None


def locate_all(
    bundle: Bundle,
    contracts: Sequence[LoadedContract],
    verdicts: Sequence[Verdict],
    into: Path,
    checkout: Checkout | None = None,
    redacted: Redaction | None = None,
    tell: Tell | None = None,
) -> bool:
    """Find the first difference of each failed unit and write it below `into`. Return True if anything was written.

    All units together take at most `LIMIT_S` seconds, not counting the time for starting processes. After this time,
    the remaining units are left out. A unit is also left out after an error, or if its files are not allowed in a run
    directory (links, sockets, files that are too large).
    """
    claims = {(each.contract.id, claim.id): claim for each in contracts for claim in each.contract.claims}
    until = monotonic() + LIMIT_S
    for verdict in verdicts:
        left, run = until - monotonic(), None
        if left <= 0:
            break
        try:
            run = run_of(bundle, claims.get((verdict.contract, verdict.claim)), verdict, left)
            if run is not None:
                locate(run, executing_into(into / layout.WHERE / run.id, verdict.claim, checkout, redacted, tell))
            is_fit = not listing(into).unfit
        except Exception:
            is_fit = False
        if run is not None and not is_fit:
            remove(into / layout.WHERE / run.id)
    return (into / layout.WHERE).is_dir() and any((into / layout.WHERE).iterdir())

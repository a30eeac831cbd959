"""Show the events between two steps: saves and loads in other processes, and the results of evaluations."""

from __future__ import annotations

from harness.evidence.arm_records import Evaluated
from harness.evidence.run_evidence import RunEvidence
from harness.judging.context import end_of
from harness.kinds.between_steps.evaluation import evaluated_and_not
from harness.kinds.between_steps.model import Evaluation, Resume
from harness.kinds.between_steps.resume import Joint, chain_of, compared
from harness.numbers import counted
from harness.report.blocks import Part, Section, Table, table
from harness.report.charts import plots
from harness.report.charts.plots import Role
from harness.report.glance import JudgedPart, judged_parts
from harness.report.text import line, several
from harness.report.view import ReportView

SHOWN = 12  # largest number of rows in a table; the run directory has all rows


def sections(view: ReportView) -> list[Section]:
    """Return a section about resumed trainings and one about evaluations, each only if a claim judged them."""
    resumed = [part for each in judged_parts(view, Resume) for run in each.runs for part in _resumed(each, run)]
    evaluated = [part for each in judged_parts(view, Evaluation) for run in each.runs for part in _evaluated(each, run)]
    going_on = (
        "An arm is trained and saved, and its process ends. A new process opens the arm, loads the saved state "
        "and continues the training. This happens as often as the claim states. The losses of all processes, one "
        "after the other, are compared with those of the uninterrupted arm."
    )
    watched = (
        "An arm is trained without evaluations, and once more with them, over the same batches. State is compared "
        "right before and right after each evaluation."
    )
    found = []
    if resumed:
        found.append(Section("resume", "Resumed from a checkpoint", going_on, resumed))
    if evaluated:
        found.append(Section("evaluation", "Evaluations between steps", watched, evaluated))
    return found


def _resumed(of: JudgedPart[Resume], run: RunEvidence) -> list[Part]:
    part = of.claim
    found = chain_of(part, run)
    if found is None:
        return []
    chain, _ = found
    [pair] = compared(part, run)
    curves = [
        plots.Curve(pair.baseline, Role.BASELINE, pair.theirs),
        plots.Curve(pair.candidate, Role.CANDIDATE, pair.ours),
    ]
    images = [plots.trajectories(curves)]
    values, first = pair.distances, pair.difference().first_differing
    if len(values) and first is not None:
        bounds = [part.max_abs_difference] if part.max_abs_difference is not None else []
        images.append(plots.difference(values, tolerances=bounds, floor=None, first=first, name=pair.name))
    text = [*map(_processes, chain.joints), _equal(len(values), first)]
    judged = [of.drawn(image) for image in images]
    several_loads = len(chain.joints) > 1
    tables = [_restored(joint, named=several_loads) for joint in chain.joints]
    return [Part(f"{of.where} · {part.candidate}", text, tables=tables, runs=[run.run_id], judged=judged)]


def _processes(joint: Joint) -> str:
    """Return sentences that name the process that saved and the process that loaded, with the numbers of steps."""
    saved, loaded = joint.saved, joint.loaded
    trained_on = (
        f" The process that saved took {counted(saved.steps_after, 'more step')} before it ended."
        if saved.steps_after
        else ""
    )
    return (
        f"Process {saved.process} saved after {counted(saved.steps, 'step')}: {several(saved.bytes, 'byte')} in "
        f"{counted(saved.files, 'file')}. Process {loaded.process} loaded this after making "
        f"{counted(loaded.steps_before, 'step')}.{trained_on}"
    )


def _restored(joint: Joint, *, named: bool) -> Table:
    """Return a table: for each kind of state, how many tensors were saved, and how many the checkpoint restored."""
    state = end_of(joint.first).state
    after = joint.loaded.after.digests
    rows: list[list[object]] = [
        [category, len(saved), sum(after.get(category, {}).get(name) == digest for name, digest in saved.items())]
        for category, saved in (state.digests if state is not None else {}).items()
        if saved
    ]
    title = f"State right after the load of step {joint.saved.steps}" if named else "State right after the load"
    return table(title, ["kind", "tensors saved", "equal to the saved state"], rows)


def _equal(steps: int, differing: int | None) -> str:
    if not steps:
        return "No step was compared."
    if differing is None:
        return f"Equal in every bit at {'all ' if steps != 1 else ''}{several(steps, 'step')}."
    return f"The first of {several(steps, 'step')} that differs is step {differing}."


def _evaluated(of: JudgedPart[Evaluation], run: RunEvidence) -> list[Part]:
    part = of.claim
    executions = run.arms.get(part.candidate, [])
    if len(executions) < 2 or not executions[1].evaluations:
        return []
    found, [pair] = executions[1].evaluations, evaluated_and_not(executions)
    text = [
        f"{counted(len(found), 'evaluation')}, one after every {counted(part.every, 'step')}.",
        _equal(len(pair.distances), pair.difference().first_differing),
    ]
    values = list(dict.fromkeys(name for each in found for name in each.values))
    columns = ["after steps", *(line(name, 40) for name in values), "state changed"]
    rows = [_row(each, values) for each in found]
    numbers = table("Evaluations", columns, rows, folded=len(rows) > SHOWN, shown=SHOWN)
    curves = [
        plots.Curve(pair.baseline, Role.BASELINE, pair.theirs),
        plots.Curve(pair.candidate, Role.CANDIDATE, pair.ours),
    ]
    judged = [of.drawn(plots.trajectories(curves))] if all(len(each.values) for each in curves) else []
    return [Part(f"{of.where} · {part.candidate}", text, tables=[numbers], runs=[run.run_id], judged=judged)]


def _row(each: Evaluated, names: list[str]) -> list[object]:
    changed = [category for category in each.before if each.before[category] != each.after.get(category)]
    return [each.steps, *(each.values.get(name) for name in names), ", ".join(changed) or "none"]

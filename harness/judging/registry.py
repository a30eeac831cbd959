"""Judge a unit (contract, claim, workload) from its evidence, with the judge of the claim's kind.

Only this module creates verdicts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from harness.contract.schema import AnyClaim, AnyPart, CompositeClaim, Contract, part_names, parts_of
from harness.errors import KindError
from harness.evidence.base import Obstacle
from harness.evidence.environment_records import GpuFacts
from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.judging import reasons
from harness.judging.context import Context, end_of, executed, obstacle_reason, require_uncaptured
from harness.judging.controls import accused_by_bits
from harness.judging.random_numbers import with_other_numbers, with_other_precision
from harness.judging.sheet import Sheet, concluded, settle
from harness.judging.verdict import WORST_FIRST, Figure, Judgement, Status, Verdict
from harness.kinds import kind_of, probe_of, resolve
from harness.kinds.steps.model import StepAccuracy

# The code below requires that a claim was observed over all steps of its workload. A run that ended early may lack the
# steps in which a claim does not hold. The number of steps in a claim is only the smallest number with which the claim
# can be judged. This check comes last, and only if the result would be PASS, because a fault in a shorter run is still
# a fault.


def require_whole_runs(part: AnyPart, context: Context) -> None:
    """Raise ERROR if an arm of the part executed fewer or more steps than its workload has, on any rank."""
    steps = context.contract.workloads[context.workload].steps
    probe = probe_of(part)
    found = [run for run in context.runs if run.probe == probe.name and probe.trainings != "none"]
    for view in [view for run in found for view in (run, *run.ranks)]:
        for arm in dict.fromkeys(part.arms().values()):
            for training in _trainings(part, view, arm):
                called = sum(end_of(execution).steps_called for execution in training)
                # True if the training itself decided to end early.
                ended = any(each.long_replay is not None and each.long_replay.ended for each in training)
                if called != steps and not ended:
                    settle(
                        reasons.EVIDENCE_MISSING,
                        f"run {view.run_id} has {called} steps of arm {arm}, but its workload has {steps}",
                    )


def _trainings(part: AnyPart, run: RunEvidence, arm: str) -> list[Sequence[ArmEvidence]]:
    """Return the executions of an arm, grouped by training. With each load of a checkpoint, a training continues as a
    new execution."""
    executions = run.arms.get(arm, [])
    # an execution with a seed for which only gradients are compared has fewer steps, so it is left out
    if isinstance(part, StepAccuracy):
        return [(each,) for each in executions if each.start.facts.get("seed") in part.loss_seeds]
    trainings: list[Sequence[ArmEvidence]] = []
    for each in executions:
        # This execution resumed the training of the previous execution.
        if each.loaded is not None and trainings:
            trainings[-1] = [*trainings[-1], each]
        else:
            trainings.append([each])
    return trainings


# The first argument of a judge is the model of the claim or part that it judges.
Judge = Callable[[Any, Context, Sheet], Judgement]


def judge_of(kind: str) -> Judge:
    """Return the judge of a kind of claim. Raises KindError if the judge cannot be imported."""
    judge: Judge = resolve(kind_of(kind).judge)
    return judge


def judge_unit(
    contract: Contract,
    claim: AnyClaim,
    workload_name: str,
    runs: Sequence[RunEvidence],
    obstacle: Obstacle | None = None,
    gpu: GpuFacts = GpuFacts(),  # noqa: B008 - frozen
) -> Verdict:
    """Return the verdict of one unit. The verdict depends only on the contract, the evidence of the unit's runs, the
    obstacle, and the GPU's facts.

    runs: the evidence of the unit's runs in their planned order. If evidence is missing, the verdict is ERROR.
    obstacle: why this machine or system cannot run the unit. The verdict is then NOT_RUN, or ERROR if the system could
    not be described.
    gpu: facts about the machine's GPU, from the header of the run directory, for bounds that depend on the GPU.

    A composite claim gets the verdict of its worst part.
    """
    if obstacle is not None:
        judgement = Sheet(claim.mechanism).conclude(obstacle_reason(obstacle), obstacle.message)
    else:
        context = Context(contract, claim, runs, workload_name, gpu)
        judged = _composite(claim, context) if isinstance(claim, CompositeClaim) else _judge_part(claim, context)
        judgement = _if_whole(judged, claim, context)
    return Verdict(contract=contract.id, claim=claim.id, workload=workload_name, **dict(judgement))


def _if_whole(judgement: Judgement, claim: AnyClaim, context: Context) -> Judgement:
    """Return the judgement of a claim. If it is PASS, but a run ended early, return ERROR instead."""
    if judgement.status is not Status.PASS:
        return judgement

    def require_all_whole() -> None:
        for part in parts_of(claim):
            require_whole_runs(part, context)

    return _if_still(judgement, require_all_whole)


def _if_still(judgement: Judgement, check: Callable[[], None]) -> Judgement:
    """Return the judgement if `check` ends normally. If it raises `Settled`, return the result in this exception
    instead, together with the figures of the judgement."""

    def checked(_: Sheet) -> Judgement:
        check()
        return judgement

    settled = concluded(checked, judgement.mechanism)
    seen = {field: getattr(judgement, field) for field in ("figures", "denominators", "demands")}
    decided = None if settled.status is Status.FAIL else judgement.decided
    return settled.model_copy(update={**seen, "decided": decided})


def _is_undecided_but_captured(judgement: Judgement) -> bool:
    """Return True if the judgement is INCONCLUSIVE for another reason than a missing capture of the candidate."""
    return judgement.status is Status.INCONCLUSIVE and judgement.reason != reasons.CANDIDATE_NOT_CAPTURED


def not_in_contract(contract: str, claim: str, workload: str) -> Verdict:
    """Return the verdict of a unit that the judging contract lacks. The unit's evidence is of another contract."""
    judgement = Sheet().conclude(
        reasons.NOT_IN_CONTRACT, "the contract by which the evidence is judged has no unit with this claim and workload"
    )
    return Verdict(contract=contract, claim=claim, workload=workload, **dict(judgement))


def of_another_contract(contract: Contract, claim: AnyClaim, workload: str, difference: str) -> Verdict:
    """Return the verdict of a unit whose runs are not what the contract requires. difference: what differs."""
    message = f"the run was made with settings that differ from the contract's: {difference}"
    judgement = Sheet(claim.mechanism).conclude(reasons.EVIDENCE_OF_ANOTHER_CONTRACT, message)
    return Verdict(contract=contract.id, claim=claim.id, workload=workload, **dict(judgement))


def _judge_part(part: AnyPart, context: Context) -> Judgement:
    mechanism = context.mechanism(part)
    try:
        judge = judge_of(part.kind)
    except KindError as error:  # only the judge of this kind of claim is missing; other kinds can still be judged
        return Sheet(mechanism).conclude(reasons.JUDGE_MISSING, f"no judge for `{part.kind}` is installed: {error}")

    def at(rank: int) -> Judgement:
        seen = context.at_rank(rank) if rank else context
        judgement = concluded(lambda sheet: judge(_by_its_bounds(part, seen, sheet), seen, sheet), mechanism)
        if judgement.status is Status.PASS or _is_undecided_but_captured(judgement):
            return _if_still(judgement, lambda: require_uncaptured(part, seen))
        excused = with_other_precision(with_other_numbers(judgement, part, seen), part, seen)
        return accused_by_bits(excused, part, seen)

    return _worst_rank([_introduced(at(rank), part) for rank in range(_ranks(part, context))])


def _introduced(judgement: Judgement, part: AnyPart) -> Judgement:
    """Return the judgement. If its message begins with the name of an arm, put `arm` before the name. Otherwise a
    reader might not recognize the name, because any word may be the name of an arm."""
    arms = "|".join(re.escape(arm) for arm in part.arms().values())
    found = re.match(rf"(?:{arms})(?![\w-])( and (?:{arms})(?![\w-]))?", judgement.message) if arms else None
    if found is None:
        return judgement
    return judgement.model_copy(update={"message": f"arm{'s' if found[1] else ''} {judgement.message}"})


def _ranks(part: AnyPart, context: Context) -> int:
    """Return how often the part is judged: once for each rank if its kind of claim demands this, and otherwise once."""
    if part.judged_at != "each rank":
        return 1
    return max(context.contract.arms[arm].ranks for arm in part.arms().values())


def _worst_rank(judged: Sequence[Judgement]) -> Judgement:
    """Return the judgement of the rank with the worst result, with the number of this rank.

    If there is only one rank, return its judgement unchanged. Also return an ERROR of the first rank unchanged, because
    its message already names the rank.
    """
    if len(judged) == 1 or judged[0].status is Status.ERROR:
        return judged[0]
    rank = min(range(len(judged)), key=lambda each: WORST_FIRST.index(judged[each].status))
    worst = judged[rank]
    if worst.status is Status.PASS:
        added, message = {"ranks": Figure(value=len(judged))}, f"at each of {len(judged)} ranks: {worst.message}"
    else:
        added, message = {"rank": Figure(value=rank)}, f"at rank {rank} of {len(judged)}: {worst.message}"
    return worst.model_copy(update={"message": message, "figures": {**worst.figures, **added}})


def _by_its_bounds(part: AnyPart, context: Context, sheet: Sheet) -> AnyPart:
    """Return the part with the bounds that apply to this unit. Record them if they depend on more than the workload.

    Raises `Settled`, which ends the judgement, if a bound depends on the candidate's data type and the system does not
    report this type.
    """
    situation = context.situation(part)
    for path, bound in part.bounds().items():
        if bound.asks_dtype and situation.dtype is None:
            _settle_without_dtype(path, part.arms()[part.candidate_path], context)
        if not bound.of_workload_alone:
            value, conditions = bound.decided(situation)
            sheet.figure(f"{path.replace('.', '_')}_bound", f"{value:g} ({conditions})")
    return part.resolved(situation)


def _settle_without_dtype(path: str, candidate: str, context: Context) -> NoReturn:
    """End the judgement (by raising `Settled`), because a bound depends on the candidate's data type and no run reports
    this type."""
    for probe in dict.fromkeys(run.probe for run in context.runs):
        context.sound_runs(probe)
    run = next((run for run in context.runs if candidate in run.arms or candidate in run.failed), None)
    if run is None:
        settle(
            reasons.EVIDENCE_MISSING,
            f"`{path}` depends on a data type, but no evidence states the data type of {candidate}",
        )
    executed(run, candidate)
    settle(
        reasons.CAPABILITY_MISSING,
        f"`{path}` depends on a data type, but the system of {candidate} does not report its `dtype`",
    )


def _composite(claim: CompositeClaim, context: Context) -> Judgement:
    """Return status and reason code of the worst part, and the figures and denominators of all parts, with the parts'
    names as prefixes."""
    names = part_names(claim)
    judged = dict(zip(names, (_judge_part(part, context) for part in claim.parts), strict=True))
    name, worst = min(judged.items(), key=lambda entry: WORST_FIRST.index(entry[1].status))
    figures: dict[str, Figure] = {}
    denominators: dict[str, int] = {}
    for prefix, judgement in judged.items():
        figures[f"{prefix}.status"] = Figure(value=str(judgement.status))
        figures |= {f"{prefix}.{key}": figure for key, figure in judgement.figures.items()}
        denominators |= {f"{prefix}.{key}": number for key, number in judgement.denominators.items()}
    judged = {name: _of_part(f"{name}.", judgement) for name, judgement in judged.items()}
    decided = judged[name].decided
    if worst.status is Status.PASS:
        decided = next((each.decided for each in judged.values() if each.decided is not None), None)
    mechanisms = {judgement.mechanism for judgement in judged.values()} - {None}
    if worst.status is Status.PASS:
        message = f"all {len(names)} parts hold: " + "; ".join(part.message for part in judged.values())
    else:
        message = f"{name}: {worst.message}"
    return worst.model_copy(
        update={
            "message": message,
            "figures": figures,
            "denominators": denominators,
            "demands": tuple(demand for each in judged.values() for demand in each.demands),
            "decided": decided,
            "mechanism": mechanisms.pop() if len(mechanisms) == 1 else claim.mechanism,
        }
    )


def _of_part(prefix: str, judgement: Judgement) -> Judgement:
    """Return the judgement of a part, with the part's prefix in each demand, so that a report finds the figure of the
    demand."""
    demands = tuple(replace(each, part=prefix) for each in judgement.demands)
    decided = judgement.decided and replace(judgement.decided, part=prefix)
    return judgement.model_copy(update={"demands": demands, "decided": decided})

"""Require that a claim was seen over all steps of its workload.

A run that was cut short may have lost the steps in which a claim does not hold. A claim's own number of steps is the
fewest that it may be judged by. This is checked last, where everything else leads to PASS: a fault that a shorter run
shows is a fault.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.contract.claims import AnyPart
from harness.evidence.run_evidence import ArmEvidence, RunEvidence
from harness.judging import reasons
from harness.judging.context import Context, end_of
from harness.judging.sheet import settle
from harness.kinds import probe_of
from harness.kinds.steps.model import StepAccuracy


def require_whole_runs(part: AnyPart, context: Context) -> None:
    """Settle ERROR where an arm of the part was not called for as many steps as its workload has, at any rank."""
    steps = context.contract.workloads[context.workload].steps
    probe = probe_of(part)
    found = [run for run in context.runs if run.probe == probe.name and probe.trainings != "none"]
    for view in [view for run in found for view in (run, *run.ranks)]:
        for arm in dict.fromkeys(part.arms().values()):
            for training in _trainings(part, view, arm):
                called = sum(end_of(execution).steps_called for execution in training)
                ended = any(each.long_replay is not None and each.long_replay.ended for each in training)  # of itself
                if called != steps and not ended:
                    settle(
                        reasons.EVIDENCE_MISSING,
                        f"run {view.run_id} has {called} steps of arm {arm}, and its workload has {steps}",
                    )


def _trainings(part: AnyPart, run: RunEvidence, arm: str) -> list[Sequence[ArmEvidence]]:
    """Return the executions of an arm, grouped by the training that they made up together."""
    executions = run.arms.get(arm, [])
    if isinstance(part, StepAccuracy):  # with seeds of gradients alone it ends after the last of these
        return [(each,) for each in executions if each.start.facts.get("seed") in part.loss_seeds]
    trainings: list[Sequence[ArmEvidence]] = []
    for each in executions:
        if each.loaded is not None and trainings:  # it resumes with what the one before it saved
            trainings[-1] = [*trainings[-1], each]
        else:
            trainings.append([each])
    return trainings

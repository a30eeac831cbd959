"""Execute only the arms that a fault can change, and take the rest from the unfaulted control run.

An arm without the fault is the same program on the same input as in the control run, and equal runs of one machine
are equal in bits (FALSIFY-GPUTRAIN-006 holds the trainer to that), so its evidence is executed once for all faults.
Were that untrue, the first differing step would be 0 instead of the one that the fault declares, and the drill would
fail rather than pass. Gradients are compared on the device, so a comparison's two arms run in one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.evidence.plan_records import Run
from harness.evidence.run_evidence import RunEvidence
from harness.evidence.serving import DONATED, SAME, serves
from harness.kinds import probe_named
from harness.system.wrappers import SWAPPED_ARMS


def arms_to_execute(run: Run) -> set[str]:
    """Return the faulted arms, and every arm that their gradients or ends are compared with in the same process."""
    if not probe_named(run.probe).arm_by_arm or run.fault == SWAPPED_ARMS:
        return set(run.arms)  # swapped arms change places with one another
    needed = _changed(run)
    pending = list(needed)
    while pending:
        arm = pending.pop()
        compared = {*_bounded_apart(run, arm), run.baseline_of.get(arm, arm)} - needed
        needed |= compared
        pending += compared
    return needed


def _bounded_apart(run: Run, arm: str) -> set[str]:
    """Return the arms from whose end that of `arm` may lie a bounded distance.

    One of the two has several ranks and the other a single one; or the movements of `arm` are compared with those of an
    arm before it. Other arms end equal in bits, or as far apart as their digests and losses show."""
    several = run.arms[arm].arm.ranks > 1
    apart = {other for other in _compared_with(run, arm) if (run.arms[other].arm.ranks > 1) is not several}
    return apart | {other for other in run.arms if arm in _moved_after(run, other)}


def _compared_with(run: Run, arm: str) -> set[str]:
    return {other for arms in run.compared or [] if arm in arms for other in arms} & run.arms.keys()


def _moved_after(run: Run, arm: str) -> set[str]:
    """Return later arms that record how differently from this arm they move what they train."""
    if not run.arms[arm].moves:
        return set()
    order = list(run.arms)
    later = order[order.index(arm) + 1 :]
    return {other for other in _compared_with(run, arm) & {*later} if run.arms[other].moves}


def donor_for(run: Run, controls: Sequence[Run]) -> Run | None:
    """Return the control run that has all that `run` leaves out; None if all of `run` must be executed.
    A probe that does not go arm by arm needs an equal run: whatever a fault does not touch is executed once."""
    if not probe_named(run.probe).arm_by_arm:
        return next((control for control in controls if serves(control, run, SAME)), None)
    left_out = {arm: arm for arm in run.arms.keys() - arms_to_execute(run)}
    return next((control for control in controls if serves(control, run, DONATED, left_out)), None)


def reduced(run: Run) -> Run:
    """Return the run with only the arms to execute; an unfaulted arm, there for its gradients alone, executes once."""
    needed, changed = arms_to_execute(run), _changed(run)
    arms = {
        arm: planned if arm in changed else planned.model_copy(update={"replicas": 1, "observe_syncs": False})
        for arm, planned in run.arms.items()
        if arm in needed
    }
    baseline_of = {candidate: base for candidate, base in run.baseline_of.items() if candidate in needed}
    return run.model_copy(update={"arms": arms, "baseline_of": baseline_of})


def _changed(run: Run) -> set[str]:
    """Return the arms whose evidence the fault can change: the faulted ones, and those compared with one of them."""
    faulted = set(run.fault_arms)
    moved = {other for arm in faulted & run.arms.keys() for other in _moved_after(run, arm)}
    return faulted | moved | {candidate for candidate, baseline in run.baseline_of.items() if baseline in faulted}


def merged(run: Run, faulted: RunEvidence, control: RunEvidence) -> RunEvidence:
    """Return the evidence of `run` with all arms: those the fault can change from `faulted`, the rest from `control`.

    `run` may be the reduced one: it has every comparison that the fault can change. The control's arms that no claim of
    the run reads do no harm. If either died, the whole counts as dead: half the evidence decides nothing.
    """
    whole = _merged_at_one_rank(run, faulted, control)
    number = max(len(faulted.ranks), len(control.ranks))
    ranks = [_merged_at_one_rank(run, _at_rank(faulted, rank), _at_rank(control, rank)) for rank in range(number)]
    return replace(whole, ranks=tuple(ranks))


def _at_rank(seen: RunEvidence, other: int) -> RunEvidence:
    """Return what one rank behind the first saw; of a run with fewer ranks, what its first rank saw."""
    return seen.ranks[other] if other < len(seen.ranks) else seen


def _merged_at_one_rank(run: Run, faulted: RunEvidence, control: RunEvidence) -> RunEvidence:
    changed = _changed(run)
    arms = {arm: executions for arm, executions in control.arms.items() if arm not in changed}
    arms |= {arm: executions for arm, executions in faulted.arms.items() if arm in changed}
    failed = {arm: failure for arm, failure in control.failed.items() if arm not in changed}
    failed |= {arm: failure for arm, failure in faulted.failed.items() if arm in changed}
    return replace(
        faulted,
        arms=arms,
        failed=failed,
        death=faulted.death or control.death,
        obstacle=faulted.obstacle or control.obstacle,
        ranks=(),
    )

"""Check what a measurement of two arms must show besides its numbers: that both trained, and alike."""

from __future__ import annotations

from collections.abc import Mapping

from harness.contract.claims import parts_of
from harness.evidence.run_evidence import ArmEvidence
from harness.judging import reasons
from harness.judging.comparison import Comparison, Group
from harness.judging.context import Context
from harness.judging.end_state import note_watched
from harness.judging.series import Bounds, difference, losses, require_equal
from harness.judging.sheet import Sheet, settle
from harness.kinds.speed.model import compares_timed_steps
from harness.kinds.trajectory.model import TrajectoryMatch
from harness.kinds.trajectory.trajectory_match import require_precisions


def named_trajectory(claim_id: str, context: Context) -> TrajectoryMatch:
    """Return the trajectory_match claim of the contract with this id; settle when there is none.

    Of several in one claim return the first that can be about measured steps: a bound of another metric, or one that
    applies before any update, would let different losses pass.
    """
    named = [claim for claim in context.contract.claims if claim.id == claim_id]
    found = [each for claim in named for each in parts_of(claim) if isinstance(each, TrajectoryMatch)]
    if not found:
        settle(reasons.EVIDENCE_MISSING, f"the contract has no trajectory_match claim {claim_id}")
    chosen = next((each for each in found if compares_timed_steps(each)), found[0])
    trajectory = context.resolved(chosen)
    return trajectory if isinstance(trajectory, TrajectoryMatch) else chosen


def require_equal_training(
    trajectory: TrajectoryMatch,
    named: Mapping[str, ArmEvidence],
    comparison: Comparison,
    sheet: Sheet,
    *,
    nothing: str,
    same_system: bool,
) -> None:
    """Settle unless the measured steps of both arms satisfy `trajectory`, and trained, by the rules of its own judge.

    `named`: the baseline, then the candidate; `nothing`: the sentence where no step was recorded; `same_system`:
    True if one system trains both.
    """
    (theirs, baseline), (ours, candidate) = named.items()
    require_precisions(trajectory, candidate, baseline)
    group = Group(
        named,
        same_system=same_system,
        same_formats=same_system and trajectory.precisions is None,
        more_in=ours if trajectory.equality == "within" else None,
        bits=trajectory.equality == "bitwise",
    )
    comparison.begin(group)
    bounds = Bounds(trajectory.max_abs_difference, trajectory.max_relative_difference)
    found = difference(losses(candidate), losses(baseline), trajectory.compare, bounds)
    if found.steps == 0:
        settle(reasons.VACUOUS_STEPS, nothing)
    # `noise` is judged over all processes
    require_equal(found, trajectory.equality, bounds, f"{ours} and {theirs}", sheet, beside=True)
    note_watched(named, sheet)
    comparison.end(group)

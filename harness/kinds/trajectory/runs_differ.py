"""Judge `runs_differ`: two arms that differ in a setting differ in their losses, and in what else it must reach."""

from __future__ import annotations

import numpy as np

from harness.judging import reasons
from harness.judging.comparison import Comparison, Group
from harness.judging.context import Context, executed
from harness.judging.end_state import note_watched
from harness.judging.series import first_true, losses
from harness.judging.sheet import Sheet, require_steps, settle
from harness.judging.verdict import Judgement
from harness.kinds.trajectory.model import RunsDiffer


def judge(part: RunsDiffer, context: Context, sheet: Sheet) -> Judgement:
    """Judge in this order: finiteness, code that ran, steps, losses, batches, start, and that both arms trained."""
    run = context.only_run("paired")
    ours, theirs = executed(run, part.candidate), executed(run, part.baseline)
    named = {part.baseline: theirs, part.candidate: ours}
    comparison, group = Comparison(part, context, sheet), Group(named)
    comparison.captured(theirs, ours)
    note_watched(named, sheet)
    comparison.begin(group)
    steps = min(len(ours.series.loss), len(theirs.series.loss))
    sheet.count("steps", steps)
    require_steps(steps, max(part.steps, part.losses_from + 1), sheet)
    equal = losses(ours)[:steps].view(np.int64) == losses(theirs)[:steps].view(np.int64)
    same_batch = np.array(ours.series.batch_digest[:steps]) == np.array(theirs.series.batch_digest[:steps])
    later = np.flatnonzero(equal[part.losses_from :]) + part.losses_from
    first_batch = first_true(same_batch)
    sheet.figure("losses_equal", int(equal.sum()), "steps")
    sheet.figure("batches_equal", int(same_batch.sum()), "steps")
    sheet.figure("start_equal", ours.start.trainable_digest == theirs.start.trainable_digest)
    names = f"{part.candidate} and {part.baseline}"
    of = steps - part.losses_from
    if not sheet.meets("losses_equal", len(later), "none", noun="steps have equal losses", of=of):
        settle(
            reasons.LOSSES_EQUAL,
            f"the losses of {names} are equal in bits at {len(later)} of the steps from "
            f"{part.losses_from} on, first at step {later[0]}",
        )
    same = int(same_batch.sum())
    if part.batches and not sheet.meets("batches_equal", same, "none", noun="steps read the same batch", of=steps):
        settle(
            reasons.BATCHES_EQUAL,
            f"{names} read the same batch at {same} of {steps} steps, first at step {first_batch}",
        )
    if part.start and ours.start.trainable_digest == theirs.start.trainable_digest:
        settle(reasons.START_EQUAL, f"{names} start from equal trainable parameters")
    comparison.end(group)
    beside = [what for what, demanded in (("batches", part.batches), ("starts", part.start)) if demanded]
    also = f", and so do their {' and '.join(beside)}" if beside else ""
    return comparison.held(f"the losses of {names} differ in bits at every step from {part.losses_from} on{also}")
